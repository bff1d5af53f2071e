"""Mean and variance over dropout: exact where theory is exact, within Monte-Carlo error elsewhere."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import unitvar
from tests.expectation.sampling import DropPath, Residual, errors, runs


def every_mask(n: int, p: float) -> list[tuple[Tensor, float]]:
    """List every mask of n elements over its keep rate, with its probability."""
    masks = (torch.tensor(bits, dtype=torch.float64) for bits in itertools.product((0.0, 1.0), repeat=n))
    return [(m / (1 - p), float((m * (1 - p) + (1 - m) * p).prod())) for m in masks]


@settings(max_examples=10)
@given(p=st.floats(0.05, 0.95), seed=st.integers(0, 1000))
def test_a_linear_layer_after_dropout_is_exact(p: float, seed: int) -> None:
    """All 2⁶ masks, each with its probability."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    model = nn.Sequential(nn.Dropout(p), nn.Linear(6, 4)).double()
    outputs = [(model[1](x * mask), share) for mask, share in every_mask(6, p)]
    mean = sum(share * y for y, share in outputs)
    var = sum(share * (y - mean).square() for y, share in outputs)
    found = unitvar.expect(model, x)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.var, var)


class Linear(nn.Module):
    """Dense layers and dropouts, skips and reshapes, and nothing that is not linear."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(3, 3).double() for _ in range(3))
        self.norm = nn.BatchNorm1d(3).double()
        self.norm.running_var.fill_(2.0)
        self.norm.running_mean.fill_(0.3)
        self.drops = nn.ModuleList(nn.Dropout(p) for p in (0.5, 0.3, 0.2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(self.drops[0](x))
        x = x - 0.5 * self.norm(self.b(x).reshape(-1, 3))
        x = self.drops[1](x.view(x.shape))
        return -self.c(x / 3 + self.drops[2](self.a(x)))


class Masked(Linear):
    """The same with masks that are given."""

    def with_masks(self, x: Tensor, masks: list[Tensor]) -> Tensor:
        x = self.a(x * masks[0])
        x = x - 0.5 * self.norm(self.b(x).reshape(-1, 3))
        x = x * masks[1]
        return -self.c(x / 3 + self.a(x) * masks[2])


def test_linear_networks_are_exact_at_any_depth() -> None:
    """All 2⁹ triples of masks; skips, scales, views and BatchNorm in between."""
    torch.manual_seed(0)
    model, x = Masked().eval(), torch.randn(4, 3, dtype=torch.float64)
    outputs = []
    with torch.no_grad():
        for triple in itertools.product(*(every_mask(3, p) for p in (0.5, 0.3, 0.2))):
            share = triple[0][1] * triple[1][1] * triple[2][1]
            outputs.append((model.with_masks(x, [mask for mask, _ in triple]), share))
        found = unitvar.expect(model, x)
    mean = sum(share * y for y, share in outputs)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.var, sum(share * (y - mean).square() for y, share in outputs))
    assert set(found.methods.values()) == {"exact"}


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.0), nn.Linear(32, 3)),
        nn.Sequential(nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 1)),
        nn.Sequential(nn.Unflatten(-1, (1, 6)), nn.GRU(6, 3, 2, dropout=0.0)),
    ],
    ids=["mlp", "attention", "recurrence"],
)
def test_without_dropout_it_is_evaluation_to_the_bit(model: nn.Module) -> None:
    x = torch.randn(5, 4, 6) if isinstance(model[0], nn.TransformerEncoder) else torch.randn(5, 6)
    with torch.no_grad():
        found = unitvar.expect(model.train(), x)
        off = model.eval()(x)
        again = unitvar.expected(model)(x)
    results = ([t] if isinstance(t, Tensor) else t for t in (again, found.mean, found.var, off))
    for got, mean, var, wanted in zip(*results, strict=True):
        assert torch.equal(got, wanted)
        assert torch.equal(mean, wanted)
        assert not var.any()


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.Tanh(), nn.ELU()], ids=lambda a: type(a).__name__)
def test_wide_random_networks_within_monte_carlo_error(activation: nn.Module) -> None:
    """10,000 samples; the networks are random, so single elements deviate by 1/√width beyond the standard error."""
    torch.manual_seed(0)
    width = 512
    layers = [m for _ in range(3) for m in (nn.Linear(width, width), activation, nn.Dropout(0.4))]
    model = nn.Sequential(*layers, nn.Linear(width, 8))
    unitvar.initialize_(model, torch.randn(8, width))
    x = torch.randn(2, width)
    samples = runs(model, x, 10_000)
    with torch.no_grad():
        found = unitvar.expect(model, x)
    mean_errors, _ = errors(samples, found.mean, found.var)
    assert mean_errors.square().mean().sqrt() < 4  # 0.04 standard deviations of the output
    torch.testing.assert_close(found.var.mean(), samples.var(0).mean(), rtol=0.04, atol=0)
    off = (model(x) - samples.mean(0)).square().mean()
    assert (found.mean - samples.mean(0)).square().mean() < 0.1 * off


def test_one_hidden_layer_is_nearly_gaussian() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(256, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))
    x = torch.randn(3, 256)
    found = unitvar.expect(model, x)
    mean_errors, var_errors = errors(runs(model, x, 10_000), found.mean, found.var)
    assert mean_errors.max() < 4
    assert var_errors.max() < 10  # hidden units share their input's noise, which is neglected


@pytest.mark.parametrize(
    "after",
    [
        lambda: nn.Conv2d(6, 5, 3, padding=1, stride=2),
        lambda: nn.Conv2d(6, 6, 3, groups=6),
        lambda: nn.Conv2d(6, 4, 3, groups=2),
        lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2),
        lambda: nn.Sequential(nn.AvgPool2d(3, 2, 1), nn.Flatten(), nn.Linear(54, 4)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(216, 4)),
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)),
        lambda: nn.Sequential(nn.Conv2d(6, 6, 1, groups=6), nn.AdaptiveAvgPool2d(1)),
    ],
    ids=["conv", "depthwise", "grouped", "transposed", "avgpool", "linear", "global", "depthwise-global"],
)
@pytest.mark.parametrize(
    "drop", [nn.Dropout2d(0.3), DropPath(0.3), nn.FeatureAlphaDropout(0.3)], ids=["channel", "path", "alpha"]
)
def test_noise_that_elements_share_is_exact_through_the_next_linear_op(
    drop: nn.Module, after: Callable[[], nn.Module]
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(drop, after()).double(), torch.rand(3, 6, 6, 6, dtype=torch.float64) + 0.5
    found = unitvar.expect(model, x)
    mean_errors, var_errors = errors(runs(model, x, 4000), found.mean, found.var)
    assert mean_errors.max() < 5
    assert var_errors.max() < 5


CHANNELS: dict[str, Callable[[], nn.Module]] = {
    "pooled": lambda: nn.Sequential(nn.Conv2d(6, 8, 3), nn.AdaptiveAvgPool2d(1)),
    "twice": lambda: nn.Sequential(nn.Conv2d(6, 8, 3), nn.Conv2d(8, 4, 3)),
    "rectified": lambda: nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(6, 8, 2, 2, groups=2), nn.AdaptiveAvgPool2d(1)),
    "normalised": lambda: nn.Sequential(nn.GroupNorm(2, 6), nn.AdaptiveAvgPool2d(1)),
}


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "image") for name in CHANNELS), ("twice", "noise"), ("rectified", "noise")]
)
def test_dropped_channels_within_a_factor_of_two_later_on(name: str, kind: str) -> None:
    """Positions share the noise of dropped channels, with its sign: as a whole they are off tenfold and more."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Dropout2d(0.3), CHANNELS[name]())
    x = torch.randn(3, 6, 8, 8) if kind == "noise" else torch.rand(3, 6, 8, 8) + 0.5
    with torch.no_grad():
        found, samples = unitvar.expect(model, x), runs(model, x, 1000)
    assert 0.5 < found.var.mean() / samples.var(0).mean() < 2
    assert (found.mean - samples.mean(0)).square().mean() < 0.02 * samples.var(0).mean()


def test_a_residual_stream_with_drop_path_within_a_tenth() -> None:
    torch.manual_seed(0)
    blocks = [
        Residual(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), DropPath(0.3)))
        for _ in range(3)
    ]
    model, x = nn.Sequential(nn.Linear(16, 64), *blocks), torch.randn(4, 16)
    found, samples = unitvar.expect(model, x), runs(model, x, 4000)
    torch.testing.assert_close(found.var.mean(), samples.var(0).mean(), rtol=0.1, atol=0)
    assert (found.mean - samples.mean(0)).square().mean() < 0.005 * samples.var(0).mean()
