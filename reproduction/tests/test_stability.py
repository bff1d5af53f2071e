"""Stability: chi is what a layer does to a small deviation."""

import itertools
import math

import pytest

from unitvar import activation_moments
from unitvar_reproduction.experiments.stability import STABLE, UNSTABLE, mean_field, measured


@pytest.mark.parametrize("name", [*STABLE, *UNSTABLE])
def test_a_small_deviation_grows_by_chi_a_layer(name: str) -> None:
    deviation = [math.log(q) for q in mean_field(name, 1 + 1e-5, depth=10)]
    chi = activation_moments(name).chi
    for before, after in itertools.pairwise(deviation):
        assert after / before == pytest.approx(chi, rel=1e-3)


@pytest.mark.parametrize("name", [*STABLE, *UNSTABLE])
def test_one_is_a_fixed_point(name: str) -> None:
    assert mean_field(name, 1.0, depth=3) == pytest.approx([1, 1, 1], abs=1e-7)


def test_real_networks_follow() -> None:
    sizes = {"width": 200, "depth": 60, "examples": 50, "seed": 0}
    for name in ("elu", "selu", "tanh"):
        assert 0.4 < min(measured(name, **sizes)[0]) <= max(measured(name, **sizes)[0]) < 2.5
    for name in ("silu", "hardswish"):
        mean, (low, _, high) = measured(name, **sizes)
        assert mean[-1] > 100
        assert low < 1e-3 < 1e3 < high
