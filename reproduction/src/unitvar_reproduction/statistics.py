"""Means over seeds with their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Estimate", "estimate", "median_interval"]


@dataclass(frozen=True)
class Estimate:
    """A mean and the half-width of its 95 % interval, by Student's t."""

    mean: float
    half_width: float | None
    """None for a single value, which says nothing of its spread."""

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside the interval."""
        return self.half_width is not None and abs(self.mean) > self.half_width

    def percent(self) -> str:
        """Write both in percent."""
        return f"{Estimate(100 * self.mean, None if self.half_width is None else 100 * self.half_width):.2f}"

    def __format__(self, spec: str) -> str:
        alone = self.half_width is None or math.isinf(self.half_width)  # as older files have it
        return f"{self.mean:{spec}}" if alone else f"{self.mean:{spec}} ± {self.half_width:{spec}}"


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values with its interval, if there is more than one."""
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return Estimate(float(values[0]), None)
    return Estimate(float(np.mean(values)), float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n)))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % interval of the median, whatever the distribution: the order statistics that enclose it.

    With five values or fewer even the whole range covers it less often than that, and is returned.
    """
    from scipy.stats import binom

    ordered = sorted(values)
    n = len(ordered)
    below = max(int(binom.ppf(0.025, n, 0.5)) - 1, 0)  # P(fewer than this many lie below the median) < 2.5 %
    return ordered[below], ordered[n - 1 - below]
