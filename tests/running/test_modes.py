"""Training flags, and dropout switched off by way of them."""

import pytest
import torch
from torch import Tensor, nn

import unitvar
from unitvar.running.modes import evaluating

# The run-time type checker draws random numbers itself, and refuses wrong types before the library can.
pytestmark = pytest.mark.usefixtures("untyped")


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) if self.training else x


class Droppy(nn.BatchNorm1d):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.inner = nn.Dropout(0.5)


NOISY = {
    "dropout": nn.Dropout(0.5),
    "alpha": nn.AlphaDropout(0.5),
    "feature alpha": nn.FeatureAlphaDropout(0.5),
    "channels": nn.Dropout1d(0.5),
    "own noise": Noise(),
    "nested": nn.Sequential(nn.Sequential(nn.Dropout(0.5))),
    "rrelu": nn.RReLU(),
    "attention": nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True),
}


@pytest.mark.parametrize("module", NOISY.values(), ids=NOISY.keys())
def test_what_follows_training_is_deterministic_inside(module: nn.Module) -> None:
    x = torch.randn(4, 6, 8)
    module.train()
    assert not torch.equal(module(x), module(x))
    with unitvar.dropout_off(module), torch.no_grad():
        assert torch.equal(module(x), module(x))
    assert not torch.equal(module(x), module(x))


def test_lstm_dropout_is_off_inside() -> None:
    lstm, x = nn.LSTM(4, 4, 2, dropout=0.9), torch.randn(5, 2, 4)
    with unitvar.dropout_off(lstm):
        assert torch.equal(lstm(x)[0], lstm(x)[0])
    assert not torch.equal(lstm(x)[0], lstm(x)[0])


@pytest.mark.parametrize("mode", [True, False])
def test_batch_norms_keep_their_mode_and_their_children_do_not(mode: bool) -> None:
    model = nn.Sequential(nn.BatchNorm1d(3).train(mode), Droppy(3).train(mode), nn.SyncBatchNorm(3).train(mode))
    with unitvar.dropout_off(model) as given:
        assert given is model
        assert [m.training for m in model] == [mode] * 3
        assert not model[1].inner.training
        assert not model.training
    assert model.training


def test_every_flag_returns_even_mixed_ones_and_after_an_error() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    model[1][1].eval()
    before = [m.training for m in model.modules()]
    for context in (unitvar.dropout_off, evaluating):
        with context(model):
            assert not any(m.training for m in model.modules())
        assert [m.training for m in model.modules()] == before
        with pytest.raises(KeyError), context(model):
            raise KeyError
        assert [m.training for m in model.modules()] == before
