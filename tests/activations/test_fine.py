"""activation_moments of functions that vary within a step of any fixed grid: integrated, or refused by name."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unitvar.activations import activation_moments, closed, features

PLACES = st.floats(-4, 4)


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def bump(at: float, width: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.exp(-(((x - at) / width) ** 2) / 2)


def expected(at: float, width: float) -> tuple[float, float, float]:
    """E b, E b² and E b'² of a bump, exactly: products of Gaussians are Gaussians."""

    def gaussian(variance: float) -> tuple[float, float, float]:
        """The integral of exp(-(x - at)²/(2 variance)) times the density, and mean and variance of that product."""
        total = 1 + variance
        mass = math.sqrt(variance / total) * math.exp(-(at**2) / (2 * total))
        return mass, at / total, variance / total

    first, (second, mean, variance) = gaussian(width**2)[0], gaussian(width**2 / 2)
    return first, second, second * ((mean - at) ** 2 + variance) / width**4


@given(PLACES, st.sampled_from([1e-2, 1e-3, 1e-4, 1e-5]), st.sampled_from([1.0, 100.0, 1e4]))
def test_a_narrow_bump_anywhere_is_integrated(at: float, width: float, height: float) -> None:
    fn = bump(at, width)
    found = activation_moments(lambda x: height * fn(x))
    first, second, slope = expected(at, width)
    # In float64, x itself is known to 1e-16, and the bump's argument to 1e-16 / width.
    assert found.mean == pytest.approx(height * first, rel=1e-8)
    assert found.second == pytest.approx(height**2 * second, rel=1e-8)
    assert found.slope == pytest.approx(height**2 * slope, rel=1e-8)


@given(PLACES, st.sampled_from([1e-2, 1e-3, 1e-4, 1e-5]))
def test_a_narrow_bump_on_an_activation_is_integrated(at: float, width: float) -> None:
    fn = bump(at, width)
    found = activation_moments(lambda x: torch.relu(x) + 100 * fn(x))
    first, second, slope = expected(at, width)
    assert found.mean == pytest.approx(1 / math.sqrt(2 * math.pi) + 100 * first, rel=1e-8)
    # On the narrow bump relu is a line, but for the kink: the cross terms are 2·100·E[b relu] and 2·100·E[b' relu'].
    cross = abs(at) * 200 * first + 200 * width
    assert abs(found.second - (0.5 + 1e4 * second)) <= 2 * cross
    assert found.slope == pytest.approx(0.5 + 1e4 * slope, abs=200 * (2 * density(at) + width) + 1e-8 * 1e4 * slope)


@given(st.floats(-4.9, 4.9), st.floats(-4, -2))
def test_no_hat_as_wide_as_the_gap_is_missed(at: float, exponent: float) -> None:
    half = features.GAP * 10 ** (exponent + 4) / 2  # the narrowest that is promised, and wider ones
    found = activation_moments(lambda x: torch.tanh(x) + 100 * torch.relu(1 - (x - at).abs() / half))
    # A slope of ±100/half over 2 half, besides that of tanh.
    exact = (100 / half) ** 2 * (math.erf((at + half) / math.sqrt(2)) - math.erf((at - half) / math.sqrt(2))) / 2
    assert found.slope == pytest.approx(exact, rel=1e-3, abs=1.0)


@given(st.floats(-3, 3), st.floats(1e-3, 1e-2))
def test_a_box_of_known_edges_is_exact(at: float, width: float) -> None:
    found = activation_moments(lambda x: 100 * ((x > at) & (x <= at + width)).to(x))
    pieces = [(at, at + width, {(0, 0.0): 100.0})]
    assert found.second == pytest.approx(closed.integrals(pieces, 0.0, 1.0)[1], rel=1e-8)


@pytest.mark.parametrize("k", [1e1, 1e2, 1e3, 1e4, 1e5, 1e6])
@pytest.mark.parametrize("at", [0.0, 0.7123])
def test_a_steep_tanh_has_its_slope(k: float, at: float) -> None:
    found = activation_moments(lambda x: torch.tanh(k * (x - at)))
    # ∫ k² sech⁴(k u) φ(at + u) du, with φ to second order: ∫ sech⁴ = 4/3 and ∫ v² sech⁴ v = (π² - 6)/9.
    curvature = (at**2 - 1) * (math.pi**2 - 6) / 18 / k**2
    exact = density(at) * k * (4 / 3 + curvature)
    assert found.slope == pytest.approx(exact, rel=max(2e-8, 3 / k**4))
    # 1 - tanh² = sech², whose integral is 2.
    assert 1 - found.second == pytest.approx(2 * density(at) / k, rel=max(1e-8 * k, 1 / k**2))


@given(st.floats(-3, 3), st.sampled_from([1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6]))
def test_a_continuous_step_has_the_slope_of_its_ramp(at: float, width: float) -> None:
    found = activation_moments(lambda x: ((x - at) / width).clamp(0, 1))
    inside = (math.erf((at + width) / math.sqrt(2)) - math.erf(at / math.sqrt(2))) / 2
    assert found.slope == pytest.approx(inside / width**2, rel=max(1e-8, 1e-14 / width**2))


@given(st.floats(0, 4), st.floats(0, 2 * math.pi))
@settings(max_examples=20)
def test_oscillations_are_integrated_up_to_ten_thousand(exponent: float, phase: float) -> None:
    omega = 10**exponent
    found = activation_moments(lambda x: torch.sin(omega * x + phase))
    damping = math.exp(-2 * omega**2) * math.cos(2 * phase)
    assert found.second == pytest.approx((1 - damping) / 2, rel=1e-8)
    assert found.slope == pytest.approx(omega**2 * (1 + damping) / 2, rel=1e-8)


def spikes(period: float, width: float) -> Callable[[Tensor], Tensor]:
    return lambda x: 1000 * torch.exp(-(((torch.remainder(x / period, 1) - 0.5) * period / width) ** 2))


def hash_of(x: Tensor) -> Tensor:
    return torch.remainder(torch.sin(x * 12.9898e6) * 43758.5453, 1)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.sin(1e5 * x),
        lambda x: torch.sin(1e6 * x),
        lambda x: torch.sin(1e9 * x),
        spikes(1e-3, 1e-6),
        spikes(1e-2, 1e-6),
        hash_of,
    ],
    ids=["sin 1e5", "sin 1e6", "sin 1e9", "many spikes", "fewer spikes", "hash"],
)
def test_what_is_too_fine_is_refused_by_name(fn: Callable[[Tensor], Tensor]) -> None:
    name = getattr(fn, "__name__", "")
    with pytest.raises(ValueError, match=rf"{name}.* under N\(0, 1²\) (varies too fast|cannot be integrated).*Smooth"):
        activation_moments(fn)


def test_an_integral_that_the_probes_contradict_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blind everything that looks for features: the comparison alone must catch what the panels then miss."""
    nothing = features.Hidden(np.empty(0), np.empty(0, dtype=np.intp), 0)
    monkeypatch.setattr("unitvar.activations.integrate.hidden", lambda *_: nothing)
    monkeypatch.setattr("unitvar.activations.integrate.jumps", lambda *_: (np.empty(0), np.empty(0)))
    fn = bump(0.312, 1e-3)
    with pytest.raises(ValueError, match=r"E f is .* by quadrature, but 0\.0009"):
        activation_moments(lambda x: fn(x))


@pytest.mark.parametrize("reach", [10.0, 15.0, 37.0])
def test_probes_leave_no_gap_and_no_probability(reach: float) -> None:
    laid = features.probes(-reach, reach, 4 * (2 * round(reach / (20 / 4096)) - 1) + 1)
    points = np.unique(np.concatenate([laid.points.ravel(), laid.bounds]))  # the bounds are nodes: f is known there
    assert np.diff(points).max() <= features.GAP
    assert len(points) == laid.points.size + laid.bounds.size
    assert points[0] <= -features.WINDOW + 2e-3
    assert points[-1] >= features.WINDOW - 2e-3
    assert laid.weights.sum() == pytest.approx(math.erf(features.WINDOW / math.sqrt(2)), abs=1e-6)


def test_the_scale_is_that_of_the_input() -> None:
    """A function as fine as sigma allows is exact; its features count in standard deviations."""
    found = activation_moments(lambda x: torch.tanh(1e3 * (x - 20.01)), mean=20.0, std=0.01)
    same = activation_moments(lambda x: torch.tanh(10 * (x - 1)))
    assert found.second == pytest.approx(same.second, rel=1e-8)
    assert found.slope * 1e-4 == pytest.approx(same.slope, rel=1e-8)
