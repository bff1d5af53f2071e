"""Noise, and switching it off."""

import random

import numpy as np
import numpy.random  # loaded on first use, and only what is loaded can be drawn from
import pytest
import torch
from torch import Tensor, nn

import unitvar
from unitvar.stochastic import RandomState, evaluating, owned_generators, random_state_kept, same

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


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)
        self.python, self.legacy = random.Random(3), np.random.RandomState(3)
        self.system = random.SystemRandom()  # has no state to put back
        self.numpy, self.twister = np.random.default_rng(3), np.random.Generator(np.random.MT19937(3))


DRAWS = {
    "torch": lambda owner: torch.rand(1),
    "python": lambda owner: random.random(),
    "numpy": lambda owner: np.random.rand(),
    "its own": lambda owner: torch.rand(1, generator=owner.generator),
    "its own, Python's": lambda owner: owner.python.random(),
    "its own, numpy's": lambda owner: owner.numpy.random(),
    "its own, numpy's with arrays in its state": lambda owner: owner.twister.random(),
    "its own, numpy's of old": lambda owner: owner.legacy.rand(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_random_state_notices_a_draw_and_undoes_it(draw) -> None:
    owner = Owner()
    with random_state_kept(owner) as before:
        first = draw(owner)
        assert not RandomState.read(owned_generators(owner)).same_as(before)
    assert RandomState.read(owned_generators(owner)).same_as(before)
    assert draw(owner) == first


def test_same_looks_inside_structures() -> None:
    a, b = torch.ones(2), torch.zeros(2)
    assert same({"x": (a, [a])}, {"x": (a.clone(), [a])})
    assert same(torch.tensor(torch.nan), torch.tensor(torch.nan))
    for other in ({"x": (a, [b])}, {"y": (a, [a])}, {"x": (a,)}):
        assert not same({"x": (a, [a])}, other)
