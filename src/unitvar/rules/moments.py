"""What the engine knows of a tensor: the moments of one of its elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["Moments", "default_features", "least_seen"]


def least_seen(*rows: tuple[float, ...]) -> tuple[float, ...]:
    """Choose the mask that leaves least."""
    return min(rows, key=lambda shares: sum(shares) / len(shares))


def default_features(shape: tuple[int, ...]) -> int | None:
    """Images and volumes come with channels second, all else with features last."""
    return 1 if len(shape) in (4, 5) else len(shape) - 1 if shape else None


@dataclass(frozen=True, slots=True)
class Moments:
    """Hold mean and second moment of an element of a tensor, over units, examples and draws of the weights.

    Attributes:
        mean: E x.
        second: E x².
        shape: the tensor's shape.
        cross: E x_i x_j of one feature at two positions (pixels, tokens) of an example; None: independent, mean², or
            there are no positions. Deep networks make positions alike, and what a pool or an average does depends
            on it.
        near: the same of neighbours, which the window of a pool holds; None: as for any two. They are more alike where
            zeros beyond the borders set the edges apart.
        features: the dimension that counts features; None: the last one.
        profile: along each spatial dimension, how the second moment is distributed (mean 1): where convolutions pad
            with zeros, borders are quieter. None: evenly.
        seen: on the way to a softmax, the share of each row that masks have left, all else being minus infinity; of a
            boolean mask, the share of each row that is True.
        sums: whether rows are the weights of a softmax, which sum to one along the last dimension.
    """

    mean: float
    second: float
    shape: tuple[int, ...] = ()
    cross: float | None = field(default=None, kw_only=True)
    near: float | None = field(default=None, kw_only=True)
    features: int | None = field(default=None, kw_only=True)
    seen: tuple[float, ...] = field(default=(1.0,), kw_only=True, repr=False)
    sums: bool = field(default=False, kw_only=True)
    profile: tuple[Any, ...] | None = field(default=None, kw_only=True, repr=False, compare=False)
    # The law of the maximum (True) or minimum of k elements, where the engine knows more than moments.
    extreme: Callable[[float, bool], Moments] | None = field(default=None, kw_only=True, repr=False, compare=False)

    @property
    def var(self) -> float:
        """Give the variance."""
        return max(0.0, self.second - self.mean**2)

    @property
    def pair(self) -> float:
        """Give E x_i x_j for two positions."""
        return self.mean**2 if self.cross is None else min(self.cross, self.second)

    @property
    def beside(self) -> float:
        """Give E x_i x_j for neighbours."""
        return self.pair if self.near is None else min(self.near, self.second)

    @property
    def has_positions(self) -> bool:
        """Say whether an example has more than one element of a feature, as far as the shape tells."""
        return self.cross is not None or len(self.shape) > 2

    def along(self, dim: int) -> Moments:
        """Take another dimension for that of the features.

        Elements that differ in what were the features so far have weights of their own: nothing but the mean is shared.
        """
        n = len(self.shape)
        features = n - 1 if self.features is None else self.features
        return self if not n or features == dim % n else self.like(cross=None, features=dim % n)

    def like(self, **changes: Any) -> Moments:
        """Copy with changes. What is said of all pairs and not of neighbours holds for these, too."""
        if "cross" in changes:
            changes.setdefault("near", None)
        return replace(self, extreme=None, **changes)

    def scaled(self, factor: float, **changes: Any) -> Moments:
        """Multiply the tensor by a number."""
        square = factor**2
        cross, near = (None if e is None else e * square for e in (self.cross, self.near))
        changes = {"mean": self.mean * factor, "second": self.second * square, "cross": cross, "near": near, **changes}
        return self.like(**changes)

    def averaged(self, count: float, *, neighbours: bool = False, **changes: Any) -> Moments:
        """Average over some positions: what they share stays, the rest shrinks by their number."""
        count = max(1.0, count)
        second = (self.second + (count - 1) * (self.beside if neighbours else self.pair)) / count
        return self.like(second=second, **changes)

    def maximum(self, count: float) -> Moments:
        """Take the largest over some positions."""
        return self._extreme(count, True)

    def minimum(self, count: float) -> Moments:
        """Take the smallest over some positions."""
        return self._extreme(count, False)

    def _extreme(self, count: float, largest: bool) -> Moments:
        if self.extreme is None:
            raise ValueError("These moments do not know their law; only those that the engine hands to a rule do.")
        return self.extreme(max(1.0, count), largest)

    @staticmethod
    def product(a: Moments, b: Moments, terms: float, shape: tuple[int, ...]) -> Moments:
        """Sum some products of independent elements, as a matrix product does."""
        mean = terms * a.mean * b.mean
        var = terms * (a.second * b.second - (a.mean * b.mean) ** 2)
        return Moments(mean, max(0.0, var) + mean**2, shape)

    @property
    def std(self) -> float:
        """Give the standard deviation."""
        return math.sqrt(self.var)
