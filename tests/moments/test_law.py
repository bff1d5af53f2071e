"""Laws on grids: moments, slopes, and what two elements have in common."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import unitvar
from unitvar.moments.correlation import KINDS, Correlation
from unitvar.moments.law import Axis, Field, bernoulli, gaussian

rates = st.floats(0.05, 1.0)


means, stds = st.floats(-3, 3), st.floats(0.1, 3)


def field(function: Callable[[Tensor], Tensor], mean: float = 0.0, std: float = 1.0, rho: float = 0.0) -> Field:
    axis = gaussian(mean, std, Correlation(positions=rho))
    return Field(function(axis.nodes), (), axis)


def pair(found: Field, kind: str = "positions") -> float:
    """Return E v_1 v_2."""
    assert found.large is not None
    return found.pairs(found.full.detach(), found.large.correlation)[KINDS.index(kind)]


@given(mean=means, std=stds)
def test_a_grid_has_the_moments_of_its_gaussian(mean: float, std: float) -> None:
    first, second = field(lambda x: x, mean, std).moments()
    assert first == pytest.approx(mean, abs=1e-9)
    assert second == pytest.approx(mean**2 + std**2, rel=1e-9)


@given(mean=means, std=stds, keep=rates)
def test_a_mask_divides_the_second_moment_by_its_rate(mean: float, std: float, keep: float) -> None:
    x = field(torch.relu, mean, std)
    mask = bernoulli(keep)
    dropped = Field(x.values.unsqueeze(-2) * mask.nodes.unsqueeze(-1) / keep, (mask,), x.large)
    first, second = x.moments()
    assert dropped.moments() == pytest.approx((first, second / keep), rel=1e-9)
    assert dropped.slope() == pytest.approx(x.slope() / keep, rel=1e-9)
    assert dropped.growth() == pytest.approx(x.growth(), rel=1e-9)


@given(mean=means, std=stds)
def test_slope_and_growth_are_those_of_the_activation(mean: float, std: float) -> None:
    found, exact = field(torch.tanh, mean, std), unitvar.activation_moments("tanh", mean, std)
    assert found.slope() == pytest.approx(exact.slope, rel=1e-6)
    # Of z itself, not of its deviation from the mean: E z v v' / E v².
    z, w = found.large.nodes.detach(), found.large.weights  # type: ignore[union-attr]
    expected = (w * z * z.tanh() * (1 - z.tanh() ** 2)).sum() / (w * z.tanh() ** 2).sum()
    assert found.growth() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)


@given(rho=st.floats(0.01, 0.99))
def test_relu_of_two_positions_follows_the_arc_cosine(rho: float) -> None:
    found = pair(field(torch.relu, rho=rho))
    exact = (math.sqrt(1 - rho**2) + rho * (math.pi - math.acos(rho))) / (2 * math.pi)  # Cho & Saul, degree 1
    assert found == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
def test_tanh_of_two_positions_is_the_double_integral(rho: float) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    u, v = nodes[:, None], rho * nodes[:, None] + math.sqrt(1 - rho**2) * nodes
    exact = weights @ (np.tanh(u) * np.tanh(v)) @ weights / weights.sum() ** 2
    assert pair(field(torch.tanh, rho=rho)) == pytest.approx(exact, rel=1e-4)


# Pairs against draws --------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "gelu": F.gelu, "step": lambda x: (x > 0).double(),
}  # fmt: skip
RHO = Correlation(features=0.1, positions=0.8, neighbours=0.6, examples=-0.3, masks=0.4)
SHARED: dict[str, frozenset[str]] = {
    "own": frozenset(),
    "shared by positions": frozenset({"positions", "neighbours"}),
    "shared by all": frozenset(KINDS),
}


def drawn(axis: Axis, count: int, same: bool) -> tuple[Tensor, Tensor]:
    """Draw a noise for two elements."""
    first, second = (axis.nodes[torch.multinomial(axis.weights, count, replacement=True)] for _ in range(2))
    return first, first if same else second


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_pairs_are_those_of_draws(name: str, shared: str) -> None:
    """Two masks, one shared as said and one never, a Gaussian with a mean: E v_1 v_2 for each kind of pair."""
    function, count = FUNCTIONS[name], 1 << 18
    axis, keep, scale = gaussian(0.3, 1.5, RHO), bernoulli(0.7), Axis(*_scales(), SHARED[shared])
    grid = function(axis.nodes) * keep.nodes.view(-1, 1, 1) / 0.7 * scale.nodes.view(1, -1, 1)
    found = Field(grid, (keep, scale), axis)
    pairs = found.pairs(found.full.detach(), RHO)
    for kind, rho, pair in zip(KINDS, RHO, pairs, strict=True):
        u, v = torch.randn(2, count, dtype=torch.float64)
        first, second = u, rho * u + math.sqrt(1 - rho**2) * v
        masks, scales = drawn(keep, count, False), drawn(scale, count, kind in SHARED[shared])
        values = [function(0.3 + 1.5 * z) * m / 0.7 * s for z, m, s in zip((first, second), masks, scales, strict=True)]
        products = values[0] * values[1]
        error = products.std().item() / math.sqrt(count)
        # Beyond 24 Hermite terms rho counts with one power; a step, whose series is the slowest, has 5 % left there.
        assert pair == pytest.approx(products.mean().item(), abs=5 * error + 0.05 * abs(rho) ** 24)


def _scales() -> tuple[Tensor, Tensor]:
    return torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


@given(rho=st.floats(-0.95, 0.95))
def test_steps_of_two_elements_follow_the_arc_sine(rho: float) -> None:
    found = pair(field(FUNCTIONS["step"], rho=rho))
    exact = 0.25 + math.asin(rho) / (2 * math.pi)  # Sheppard
    # What 24 Hermite terms leave counts with the next power of rho.
    left = 0.25 - sum(math.comb(2 * m, m) / 4**m / (2 * m + 1) for m in range(12)) / (2 * math.pi)
    assert found == pytest.approx(exact, abs=2 * left * abs(rho) ** 24 + 1e-9)


@given(mean=means, std=stds, keep=rates)
def test_of_equal_gaussians_and_noises_a_pair_is_a_square(mean: float, std: float, keep: float) -> None:
    axis, mask = gaussian(mean, std, Correlation(1.0, 1.0, 1.0, 1.0, 1.0)), bernoulli(keep, frozenset({"positions"}))
    found = Field(torch.relu(axis.nodes) * mask.nodes.view(-1, 1) / keep, (mask,), axis)
    second = found.moments()[1]
    assert pair(found) == pytest.approx(second, rel=1e-9, abs=1e-12)
    assert pair(found, "examples") == pytest.approx(second * keep, rel=1e-9, abs=1e-12)  # masks of their own
