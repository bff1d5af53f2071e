"""All that is known of a value on its way through a network, in one frozen record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unitvar.moments import axes as labels
from unitvar.moments.correlation import KINDS, UNRELATED, Correlation, Tilt
from unitvar.moments.law import Axis, Field, constant, gaussian
from unitvar.shown import html_table, number

__all__ = ["Origin", "Path", "Signal", "least_seen"]


def least_seen(*rows: tuple[float, ...]) -> tuple[float, ...]:
    """Choose the mask that leaves least."""
    return min(rows, key=lambda shares: sum(shares) / len(shares))


@dataclass(eq=False, slots=True)
class Origin:
    """The identity of a tensor's elements: two views of them are functions of the same Gaussian.

    Attributes:
        home: the graph's value that the elements belong to.
        chi: d log E z² / d log E z_0², where z_0 is the first pre-activation since the last norm.
        axis: the Gaussian, as soon as a pointwise op asks for it.
        joint: the expression of several sources that the elements are; None if they are a source of their own.
    """

    home: Any = None
    chi: float = 1.0
    axis: Axis | None = None
    joint: Any = None


MOST_WORDS = 200  # that a path keeps
_SHAPED = frozenset({"shape", "axes", "inside"})  # fields that must fit each other
# What is said of the very elements of a tensor, and of no other ones.
_FRESH: dict[str, Any] = {
    "law": None, "origin": None, "turn": (), "parts": (), "winners": 0.0, "sum_of": (), "joint": None,
    "statistic": 0.0, "average_of": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Path:
    """How a value came to be.

    Attributes:
        words: the ops since the last weight, in words; the latest ones, if there are very many.
        depth: how many weights there were since the last norm; None before the first one, -1 for noise and constants.
        keep: the product of the keep rates since the last weight.
        last: the last weight, if its scale is chosen.
    """

    words: tuple[str, ...] = ()
    depth: int | None = None
    keep: float = 1.0
    last: str | None = None

    def __post_init__(self) -> None:
        if len(self.words) > MOST_WORDS:  # a copy for every op: all of them would grow with the square of their number
            object.__setattr__(self, "words", ("…", *self.words[2 - MOST_WORDS :]))

    @property
    def rank(self) -> tuple[int, int]:
        """Return what makes a path worth telling: depth, then nearness to the last weight."""
        return (0 if self.depth is None else self.depth + 1 if self.depth >= 0 else -1), -len(self.words)

    def then(self, word: str) -> Path:
        """Return the path with one more op."""
        return Path((*self.words, word), self.depth, self.keep, self.last) if word else self


@dataclass(frozen=True)
class Signal:
    """Hold the moments of an element of a tensor, over units, examples and draws of the weights.

    An op makes the next record by :meth:`but`, and what it does not change travels on.

    Attributes:
        mean: E x.
        second: E x².
        shape: the tensor's shape.
        axes: what each dimension counts: ``b`` examples, ``f`` features, ``p`` positions, ``c`` copies.
        correlation: of two elements, for each kind of pair. None: the op keeps the correlation of its input.
        profile: along each spatial dimension, how the second moment is distributed (mean 1): where convolutions pad
            with zeros, borders are quieter. None: evenly.
        seen: on the way to a softmax, the share of each row that masks have left, all else being minus infinity; of a
            boolean mask, the share of each row that is True.
        total: the sum of a row along the last dimension, where it is known: 1 after a softmax.
        width: of the scores of attention, how many features the tokens have.
        terms: of the scores of attention, how many products each is a sum of.
        tilt: of the weights of attention, what its output gains because keys and values come from the same tokens; None
            for what gains nothing.
        parts: the tensors that were joined, as long as nothing has mixed them.
        joined: along which dimension.
        sum_of: of a sum, what was added, each with its factor: a term that comes again is no other one.
        mixed: how many features with a life of their own each of its features was mixed from; 0: each has its own.
        statistic: the number that it nearly is, if it is an average over many elements, such as a variance; else 0.
        average_of: the tensor that it is the mean of.
        winners: of a gradient that goes to the largest of some elements, how many these are, negative for the smallest;
            0: it goes to all.
        inside: for each dimension, those that views have merged into it; see :mod:`unitvar.moments.axes`.
        law: the values of an element as a function of the Gaussian that it goes back to; None: it is that Gaussian.
        turn: how its dimensions were reordered since its origin; () if they were not.
        joint: the expression that its elements are, if they are no function of one Gaussian; its origin keeps it. See
            :mod:`unitvar.moments.joint`.
        path: how it came to be.
        origin: whose elements they are.
    """

    mean: float
    second: float
    shape: tuple[int, ...] = ()
    axes: str = field(default="", kw_only=True, compare=False)
    correlation: Correlation | None = field(default=None, kw_only=True, compare=False)
    profile: tuple[Any, ...] | None = field(default=None, kw_only=True, repr=False, compare=False)
    seen: tuple[float, ...] = field(default=(1.0,), kw_only=True, repr=False, compare=False)
    total: float | None = field(default=None, kw_only=True, repr=False, compare=False)
    width: float = field(default=0.0, kw_only=True, repr=False, compare=False)
    terms: int = field(default=0, kw_only=True, repr=False, compare=False)
    tilt: Tilt | None = field(default=None, kw_only=True, repr=False, compare=False)
    parts: tuple[Signal, ...] = field(default=(), kw_only=True, repr=False, compare=False)
    joined: int = field(default=0, kw_only=True, repr=False, compare=False)
    sum_of: tuple[tuple[float, Signal], ...] = field(default=(), kw_only=True, repr=False, compare=False)
    mixed: float = field(default=0.0, kw_only=True, repr=False, compare=False)
    statistic: float = field(default=0.0, kw_only=True, repr=False, compare=False)
    average_of: Origin | None = field(default=None, kw_only=True, repr=False, compare=False)
    winners: float = field(default=0.0, kw_only=True, repr=False, compare=False)
    inside: labels.Inside = field(default=(), kw_only=True, repr=False, compare=False)
    law: Field | None = field(default=None, kw_only=True, repr=False, compare=False)
    turn: tuple[int, ...] = field(default=(), kw_only=True, repr=False, compare=False)
    joint: Any = field(default=None, kw_only=True, repr=False, compare=False)
    path: Path = field(default=Path(), kw_only=True, repr=False, compare=False)
    origin: Origin | None = field(default=None, kw_only=True, repr=False, compare=False)

    def __repr__(self) -> str:  # the name that users know it by
        return f"Moments(mean={self.mean:.6g}, second={self.second:.6g}, shape={self.shape})"

    def _repr_html_(self) -> str:
        sizes = "x".join(map(str, self.shape))
        return html_table(("shape", "E x", "E x²"), [(sizes, number(self.mean), number(self.second))])

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape):
            object.__setattr__(self, "axes", labels.default(self.shape))
        object.__setattr__(self, "inside", labels.normalised(self.axes, self.shape, self.inside))

    @property
    def var(self) -> float:
        """Return the variance."""
        return max(0.0, self.second - self.mean**2)

    @property
    def std(self) -> float:
        """Return the standard deviation."""
        return math.sqrt(self.var)

    @property
    def correlations(self) -> Correlation:
        """Return the correlations; zeros where none are known."""
        return self.correlation or UNRELATED

    @property
    def participating(self) -> float:
        """Return how many features of a position have a life of their own: (tr Σ)² / tr Σ² for their covariance Σ."""
        n = float(labels.features_in(self.inside))
        return 1 / (1 / n + 1 / self.mixed) if self.mixed else n

    def pair(self, kind: str) -> float:
        """Return E x_1 x_2 for a kind of pair: "features", "positions", "neighbours", "examples" or "masks"."""
        return self.mean**2 + float(getattr(self.correlations, kind)) * self.var

    def along(self, dim: int) -> float:
        """Return E x_1 x_2 for two elements that differ along a dimension only."""
        name = self.axes[dim]
        return self.second if name == "c" else self.pair(labels.KIND[name])

    def apart(self, way: str, pair: float, kind: str, same: float | None = None) -> float:
        """Return E x_1 x_2 of two elements that differ in two ways.

        What features share comes of weights across positions, what positions share of weights across features: not from
        the same source. All else has one: what a weight makes of a mean is the same for all examples and positions.

        Args:
            way: in which way they differ.
            pair: E x_1 x_2 of elements that differ in this way only.
            kind: in which way they differ, too.
            same: E x_1 x_2 of elements that differ in that way only; default: this signal's.
        """
        level, other = self.mean**2, self.pair(kind) if same is None else same
        if way == kind:
            return pair
        if {way, kind} in ({"features", "positions"}, {"features", "neighbours"}) or (pair - level) * (
            other - level
        ) <= 0:
            return level
        return min(pair, other) if pair > level else max(pair, other)

    def but(self, **changes: Any) -> Signal:
        """Copy with changes, as :func:`dataclasses.replace` does, but without setting two dozen fields one by one."""
        assert changes.keys() <= vars(self).keys(), f"{changes.keys() - vars(self).keys()} are no fields of a signal"
        made = object.__new__(Signal)
        vars(made).update(vars(self), **changes)
        if not changes.keys().isdisjoint(_SHAPED):
            made.__post_init__()
        return made

    def like(self, **changes: Any) -> Signal:
        """Copy with changes; the law is no longer that of the elements."""
        return self.but(**{**_FRESH, **changes})

    def related(self, pairs: Mapping[str, float], **changes: Any) -> Signal:
        """Copy with changes, and with these moments E x_1 x_2 for pairs of elements."""
        made = self.like(**changes)
        if made.var <= 1e-12 * made.second:
            return made.like(correlation=UNRELATED)
        known = {k: float(max(-1.0, min(1.0, (e - made.mean**2) / made.var))) for k, e in pairs.items()}
        return made.like(correlation=made.correlations._replace(**known))

    def scaled(self, factor: float, **changes: Any) -> Signal:
        """Multiply the tensor by a number."""
        total = None if self.total is None else self.total * factor
        tilt = None if self.tilt is None else self.tilt.scaled(factor**2)
        made = {"mean": self.mean * factor, "second": self.second * factor**2, "total": total, "tilt": tilt}
        return self.like(**{**made, **changes})

    def summed(self, terms: Mapping[str, float], **changes: Any) -> Signal:
        """Sum some elements.

        Args:
            terms: how many of each: ``{"p": 9}`` for nine positions, ``{"f": 4, "p": 9}`` for those of four features.
            changes: what else is new.

        Returns:
            The sum, by the moments of all pairs of terms. What two sums share is what single terms share of it.
        """
        copies = terms.get("c", 1.0)
        if copies != 1.0:
            rest = {label: n for label, n in terms.items() if label != "c"}
            return self.summed(rest, **changes).scaled(copies)
        n = math.prod(terms.values())
        return self._combined(n, self._pairs_among(terms), n * self.mean, 1.0, changes)

    def _pairs_among(self, terms: Mapping[str, float]) -> list[tuple[str, float, float]]:
        """List the ordered pairs of different terms: in which way they differ, how many there are, and E x_1 x_2."""
        b, f, p = (terms.get(label, 1.0) for label in "bfp")
        features, positions, examples = (self.pair(k) for k in ("features", "positions", "examples"))
        both = self.apart("examples", examples, "positions")
        counted = [
            ("positions", b * f * p * (p - 1), positions),
            ("features", b * f * (f - 1) * p, features),
            ("features", b * f * (f - 1) * p * (p - 1), self.apart("features", features, "positions")),
            ("examples", b * (b - 1) * f * p, examples),
            ("examples", b * (b - 1) * f * p * (p - 1), both),
            ("examples", b * (b - 1) * f * (f - 1) * p * p, self.apart("features", features, "examples")),
        ]
        return [(way, count, pair) for way, count, pair in counted if count]

    def averaged(self, count: float, *, neighbours: bool = False, **changes: Any) -> Signal:
        """Average over some positions: what they share stays, the rest shrinks by their number."""
        n = max(1.0, count)
        own = self.pair("neighbours" if neighbours else "positions")
        return self._combined(n, [("positions", n * (n - 1), own)], self.mean, n**-2, changes)

    def _combined(
        self, n: float, within: list[tuple[str, float, float]], mean: float, scale: float, changes: dict[str, Any]
    ) -> Signal:
        """Sum n terms, of which so many pairs have these moments, and multiply second moments by a number."""
        second = n * self.second + sum(count * pair for _, count, pair in within)
        # The terms of two sums differ in the kind of the pair, and most of them in the way of the sum, too.
        pairs = {}
        for kind in KINDS:
            both = sum(count * self.apart(way, pair, kind) for way, count, pair in within)
            pairs[kind] = scale * (n * self.pair(kind) + both)
        second = max(scale * second, mean**2)
        return self.related(pairs, **{"mean": mean, "second": second, "total": None, "parts": (), **changes})

    def maximum(self, count: float, kind: str = "neighbours") -> Signal:
        """Take the largest over some elements, which are pairs of a kind."""
        return self._extreme(count, kind, True)

    def minimum(self, count: float, kind: str = "neighbours") -> Signal:
        """Take the smallest over some elements."""
        return self._extreme(count, kind, False)

    def _extreme(self, count: float, kind: str, largest: bool) -> Signal:
        field = self.field
        rho = max(0.0, getattr(field.large.correlation, kind)) if field.large is not None else 0.0
        shared = [axis for axis in field.noises if kind in axis.shared]
        first, second, cross = field.extreme(max(1.0, count), rho, shared, largest)
        made = self.like(mean=first, second=second)
        if made.var <= 0:
            return made
        # An element is what its window shares and what is its own. Of two maxima the first part, which is all that two
        # neighbours have in common, makes the correlation `whole`; a pair of another kind has a part of each.
        near = max(0.0, getattr(self.correlations, kind))
        whole = min(1.0, max(0.0, (cross - first**2) / made.var)) if rho > 1e-6 and near > 1e-6 else 0.0
        correlation = {}
        for k, c in self.correlations._asdict().items():
            common = min(near, c) if c > 0 else 0.0
            own = (c - common) / (1 - near) if near < 1 else 0.0
            correlation[k] = max(-1.0, min(1.0, (whole * common / near if near > 1e-6 else 0.0) + (1 - whole) * own))
        return made.like(correlation=Correlation(**correlation))

    @property
    def field(self) -> Field:
        """Return the law as a field: a Gaussian of these moments unless it is known better."""
        if self.law is not None:
            return self.law
        if self.var <= 1e-24 * max(1.0, self.second) or not math.isfinite(self.second):
            return constant(self.mean if math.isfinite(self.mean) else 0.0)
        origin = self.origin or Origin()
        if origin.axis is None:
            origin.axis = gaussian(self.mean, self.std, self.correlations, origin)
        return Field(origin.axis.nodes, (), origin.axis)

    @property
    def source(self) -> Origin | None:
        """Return the origin of the Gaussian that this is a function of; None if that is itself, or there is none."""
        large = None if self.law is None else self.law.large
        return None if large is None or large.origin is self.origin else large.origin

    @property
    def chi(self) -> float:
        """Return d log E x² / d log E z², z the first pre-activation since the last norm."""
        source = self.source
        if source is not None and self.law is not None:
            return self.law.growth() * source.chi
        return self.origin.chi if self.origin is not None else 1.0
