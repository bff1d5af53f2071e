"""Random numbers that a model draws itself: their distribution, as a list of equally or differently likely numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

__all__ = ["Law", "law_of"]

_GRID = 10_000  # midpoints of equally likely intervals: keep rates with up to four digits are exact


@dataclass(frozen=True, slots=True)
class Law:
    """The distribution of one number of a tensor of independent numbers.

    Attributes:
        numbers: what it may be, float64.
        weights: how likely each is.
        drawn: the shape in which numbers were drawn; 1 where they are repeated.
        source: identifies the draw.
    """

    numbers: Tensor
    weights: Tensor
    drawn: tuple[int, ...]
    source: int

    @property
    def mean(self) -> float:
        """Return the mean."""
        return float((self.numbers.double() * self.weights).sum())

    @property
    def var(self) -> float:
        """Return the variance."""
        return float(((self.numbers.double() - self.mean).square() * self.weights).sum())

    def through(self, numbers: Tensor) -> Law:
        """Return the distribution of a function of the number."""
        return replace(self, numbers=numbers)

    def seen(self, drawn: tuple[int, ...]) -> Law:
        """Return the same numbers in another shape."""
        return replace(self, drawn=drawn)


def law_of(kind: str, args: tuple[Any, ...], shape: tuple[int, ...], source: int) -> Law | None:
    """Return the distribution of what a random op draws, None if it is not known.

    Args:
        kind: "bernoulli", "uniform", "normal" or "exponential".
        args: its parameters; bounds of a uniform law, mean and standard deviation of a normal one.
        shape: how many are drawn.
        source: identifies the draw.
    """
    if not all(isinstance(a, (int, float)) for a in args):
        return None
    grid = (torch.arange(_GRID, dtype=torch.float64, device="cpu") + 0.5) / _GRID
    even = torch.full_like(grid, 1 / _GRID)
    if kind == "bernoulli":
        (p,) = args or (0.5,)
        weights = torch.tensor([1 - p, p], dtype=torch.float64, device="cpu")
        values = torch.tensor([0.0, 1.0], dtype=torch.float64, device="cpu")
        return Law(values, weights, shape, source)
    if kind == "uniform":
        low, high = args or (0.0, 1.0)
        return Law(low + (high - low) * grid, even, shape, source)
    if kind == "normal":
        mean, std = args or (0.0, 1.0)
        return Law(mean + std * torch.special.ndtri(grid), even, shape, source)
    (rate,) = args or (1.0,)
    return Law(-torch.log1p(-grid) / rate, even, shape, source)
