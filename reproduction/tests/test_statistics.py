"""statistics: intervals that cover as often as they say."""

import math

import numpy as np
import pytest

from unitvar_reproduction.statistics import Estimate, estimate


def test_intervals_cover_the_mean_95_times_in_100() -> None:
    rng = np.random.default_rng(0)
    covered = [abs((e := estimate(rng.normal(3.0, 2.0, size=8).tolist())).mean - 3) < e.half_width for _ in range(2000)]
    assert np.mean(covered) == pytest.approx(0.95, abs=5 * math.sqrt(0.95 * 0.05 / 2000))


def test_one_value_says_nothing_of_its_spread() -> None:
    assert estimate([0.5]) == Estimate(0.5, None)
    assert not estimate([0.5]).excludes_zero


def test_writes_itself() -> None:
    assert Estimate(0.0123, 0.0045).percent() == "1.23 ± 0.45"
    assert f"{Estimate(0.5, 0.25):.1f}" == "0.5 ± 0.2"
    for unknown in (None, math.inf):
        assert Estimate(0.0123, unknown).percent() == f"{Estimate(1.23, unknown):.2f}" == "1.23"
