"""What is known of a value on its way through the graph."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from unitvar.propagate.grid import Field, constant, gaussian
from unitvar.rules import Moments

__all__ = ["State"]


class State:
    """A value's moments, its law if it is a pointwise function of something, and how it came to be.

    Attributes:
        words: the path from the last weight on, op by op.
        depth: how many weights there were since the last norm; None before the first one, -1 for noise and constants.
        keep: the product of the keep rates since the last weight, up to the last Gaussian.
        last: that weight.
        positions: whether an example has more than one element of a feature, which a flattened shape no longer shows.
    """

    __slots__ = ("_chi", "_field", "_moments", "_slope", "depth", "features", "keep", "last",
                 "positions", "profile", "seen", "shape", "sums", "words")  # fmt: skip

    def __init__(
        self,
        moments: Moments | None = None,
        *,
        field: Field | None = None,
        shape: tuple[int, ...] = (),
        words: tuple[str, ...] = (),
        chi: float = 1.0,
        depth: int | None = None,
        slope: float = 1.0,
        keep: float = 1.0,
        features: int | None = None,
        seen: tuple[float, ...] = (1.0,),
        last: Any = None,
        profile: Any = None,
        positions: bool = False,
    ) -> None:
        self._moments, self._field = moments, field
        self.shape = shape or (moments.shape if moments is not None else ())
        self.words, self.depth, self.keep = words, depth, keep
        self._chi, self._slope, self.last = chi, slope, last
        self.profile = moments.profile if moments is not None and profile is None else profile
        self.features = moments.features if moments is not None and features is None else features
        self.seen = moments.seen if moments is not None else seen
        self.sums = moments is not None and moments.sums
        self.positions = positions or len(self.shape) > 2 or (moments is not None and moments.cross is not None)

    @property
    def moments(self) -> Moments:
        """Give the moments, with the law of maxima."""
        if self._moments is None:
            assert self._field is not None
            mean, second, cross = self._field.moments()
            near = None
            if cross is not None:
                cross, near = self._shared(cross, self._field.cross(independent=True) or mean**2)
            self._moments = Moments(mean, second, self.shape, cross=cross, near=near)
        m = self._moments
        cross, near = (m.pair, m.near) if self.positions else (None, None)
        return Moments(m.mean, m.second, self.shape, cross=cross, near=near, features=self.features,
                       seen=self.seen, sums=self.sums, extreme=self._extreme, profile=self.profile)  # fmt: skip

    @property
    def field(self) -> Field:
        """Give the law as a field: a Gaussian of these moments unless it is known better."""
        if self._field is None:
            m = self._moments
            assert m is not None
            if m.var <= 1e-24 * max(1.0, m.second) or not math.isfinite(m.second):
                self._field = constant(m.mean if math.isfinite(m.mean) else 0.0)
            else:
                rho = (max(m.pair, m.beside) - m.mean**2) / m.var
                axis = gaussian(m.mean, m.std, rho if rho > 1e-6 else 0.0, origin=self)
                self._field = Field(axis.nodes, (), axis)
        return self._field

    @property
    def has_field(self) -> bool:
        """Say whether the law is known."""
        return self._field is not None

    @property
    def chi(self) -> float:
        """Give d log E x² / d log E z², z the first pre-activation since the last norm."""
        source = self._source
        if source is None:
            return self._chi
        return self.field.growth() * source._chi

    @property
    def slope(self) -> float:
        """Give E[g_z²] / E[g_x²], z the pre-activation of the last weight."""
        source = self._source
        if source is None:
            return self._slope
        return self.field.slope() * source._slope

    @property
    def kept(self) -> float:
        """Give the product of keep rates since the last weight."""
        source = self._source
        rate = self.keep if source is None else source.keep
        if self._field is not None:
            rate *= math.prod(axis.keep for axis in self._field.noises)
        return rate

    @property
    def rank(self) -> tuple[int, int]:
        """Give what makes a path worth telling: depth, then nearness to the last weight."""
        return (0 if self.depth is None else self.depth + 1 if self.depth >= 0 else -1), -len(self.words)

    @property
    def _source(self) -> State | None:
        """Give the state whose Gaussian this is a function of; None if that is itself."""
        field = self._field
        if field is None or field.large is None or field.large.origin is self:
            return None
        return field.large.origin  # type: ignore[no-any-return]

    def moved(self, shape: tuple[int, ...], features: int | None) -> State:
        """Give the same elements in another shape."""
        _ = self.field if self._moments is not None and self._field is None and self._moments.var > 0 else None
        out = State(self._moments, field=self._field, shape=shape, words=self.words, chi=self._chi, depth=self.depth,
                    slope=self._slope, keep=self.keep, last=self.last)  # fmt: skip
        out.features, out.seen, out.sums = features, self.seen, self.sums
        out.profile = self.profile if shape == self.shape else None
        out.positions = len(shape) > 2 or self.positions
        return out

    def picked(self, shape: tuple[int, ...], features: int | None) -> State:
        """Give other elements with the same law."""
        if self._field is None or self._field.large is None:
            out = State(self.moments, shape=shape, words=self.words, chi=self._chi, depth=self.depth,
                        slope=self._slope, keep=self.keep, last=self.last)  # fmt: skip
            if self._field is not None:
                out._field = Field(self._field.values, tuple(a.twin() for a in self._field.noises), None)
        else:
            field, source = self._field, self._field.large
            large = source.twin()
            noises = tuple(a.twin() for a in field.noises)
            out = State(self._moments, field=Field(field.values, noises, large), shape=shape, words=self.words,
                        chi=self._chi, depth=self.depth, slope=self._slope, keep=self.keep, last=self.last)  # fmt: skip
            if large.origin is self:  # it is the Gaussian itself
                large.origin = out
        out.features, out.seen, out.sums = features, self.seen, self.sums
        out.profile, out.positions = None, len(shape) > 2 or self.positions
        return out

    def _shared(self, cross: float, least: float) -> tuple[float, float | None]:
        """Return E v_i v_j of any two positions and of neighbours, which share more or less of their Gaussians.

        The grid's pair shares as much as the more alike of the two; between it and independent Gaussians, where
        E v_i v_j is the least, the other is interpolated.
        """
        large = None if self._field is None else self._field.large
        m = None if large is None or large.origin is None else large.origin._moments
        if m is None or m.near is None or m.var <= 0:
            return cross, None
        common, near = m.pair - m.mean**2, m.beside - m.mean**2
        most = max(common, near)
        if most <= 0:
            return cross, None
        return least + (cross - least) * common / most, least + (cross - least) * near / most

    def _extreme(self, count: float, largest: bool) -> Moments:
        field = self.field
        given = field.conditional()
        laws: list[tuple[float, Any, Any]] = given if given is not None else [(1.0, *field.law())]
        # The maximum of k has the distribution F^k, so its quantile at g is that of x at g^(1/k).
        levels = ((np.arange(512) + 0.5) / 512) ** (1 / count)
        levels = levels if largest else 1 - levels
        first = second = cross = 0.0
        for weight, values, middle in laws:
            top = np.interp(levels, middle, values) if len(values) > 1 else values
            mean = float(top.mean())
            first += weight * mean
            second += weight * float((top * top).mean())
            cross += weight * mean * mean
        cross, near = self._shared(cross, first**2)
        shape, features, profile = self.shape, self.features, self.profile
        return Moments(first, second, shape, cross=cross, near=near, features=features, profile=profile)
