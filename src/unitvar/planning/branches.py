"""Scales for residual branches, by the number n of branches that are added to one stream.

- ``"scaled"``: the last weight of a branch is scaled until the branch adds E b² = 1/n.
- ``"damped"``: the rows of its other weights are n^(1/4) times shorter, too, and the branch adds n^(-3/2). DeepNorm
  (Wang et al., 2022) has these exponents: rows (4n)^(1/4) times shorter, and a stream that is n^(1/4) times larger.
  Here the last weight does the stream's part.
- ``"auto"``: damped where norms follow the sums (post-norm), scaled elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from unitvar.moments import Propagation
from unitvar.planning.records import Record
from unitvar.planning.streams import Branch, Stream
from unitvar.planning.walker import Walker

__all__ = ["Branches"]

_CLOSE = 0.02  # a relative error of a second moment that is none
_NORMED = "; a norm after it sets its size"
_PASSES = 4  # over the graph, for streams inside branches


class _End(NamedTuple):
    """A branch, its stream, and those of its weights that may be scaled."""

    branch: Branch
    stream: Stream
    names: tuple[str, ...]

    @property
    def n(self) -> int:
        """Return the number of branches of the stream."""
        return len(self.stream.branches)


def _by_weight(ratios: Sequence[tuple[_End, float]]) -> dict[str, float]:
    """Return one ratio a weight: the mean over the branches of a stream that it ends, the product over streams."""
    found: dict[str, dict[int, list[float]]] = {}
    for end, ratio in ratios:
        for name in end.names:
            found.setdefault(name, {}).setdefault(id(end.stream), []).append(ratio)
    return {name: math.prod(len(r) / sum(1 / x for x in r) for r in each.values()) for name, each in found.items()}


class Branches:
    """Scale the weights of every branch until it adds what it should to its stream.

    Args:
        streams: of the graph.
        planned: the parameters whose scale may be chosen.
        residual: "auto", "damped", "scaled", "unit" or "zero".
    """

    def __init__(self, streams: Sequence[Stream], planned: Collection[str], residual: str) -> None:
        self.residual, self.streams, self.planned = residual, streams, planned
        self.ends = [
            _End(branch, stream, tuple(name for name in branch.weights if name in planned))
            for stream in streams
            for branch in stream.branches
        ]
        self.damped = {id(stream) for stream in streams} if residual == "damped" else set()
        self.idle: set[int] = set()  # branches that no weight's scale can change

    @property
    def weights(self) -> set[str]:
        """Return the last weights whose scale changes."""
        if self.residual == "unit":
            return set()
        return {name for end in self.ends if end.n > 1 or self.residual == "zero" for name in end.names}

    def scale(self, walker: Walker, out: Propagation, fixed: dict[str, float]) -> tuple[dict[str, Record], Propagation]:
        """Set the walker's factors, and walk with them.

        Args:
            walker: has walked with branches of unit variance.
            out: what it found.
            fixed: the squared scales fixed so far.
        """
        if self.residual == "zero":
            walker.factors.update(dict.fromkeys(self.weights, 0.0))
            return walker.walk(fixed)
        records, after = self._fit(walker, out, fixed)
        if self.residual == "auto":
            self.damped = {id(stream) for stream in self.streams if _is_post_norm(stream, out, after)}
            if self.damped:
                records, after = self._fit(walker, after, fixed)
        return records, after

    def _fit(self, walker: Walker, out: Propagation, fixed: dict[str, float]) -> tuple[dict[str, Record], Propagation]:
        """Walk until every branch adds what it should."""
        inner = self._inner()
        if inner:
            walker.factors.update(inner)
            _, out = walker.walk(fixed)
        # What a branch would add by itself, with all of its last weights at unit scale.
        unit = {id(end.branch): out.signal(end.branch.value).second / self._factor(walker, end) for end in self.ends}
        unit.update((id(stream), out.signal(stream.start).second) for stream in self.streams)
        wrong = self._wrong(walker, out, unit)
        for _ in range(_PASSES):
            for name, ratio in _by_weight(wrong).items():
                walker.factors[name] = min(1.0, walker.factors.get(name, 1.0) * ratio)
            records, out = walker.walk(fixed)
            wrong = self._wrong(walker, out, unit)
            if not wrong:
                break
        return records, out

    def _inner(self) -> dict[str, float]:
        """Return the weights of damped branches before the last, and what their squared scales are multiplied by."""
        ends = [end for end in self.ends if id(end.stream) in self.damped and end.names]
        return {name: end.n**-0.5 for end in ends for name in end.branch.inner if name in self.planned}

    def _factor(self, walker: Walker, end: _End) -> float:
        return max((walker.factors.get(name, 1.0) for name in end.names), default=1.0)

    def _wrong(self, walker: Walker, out: Propagation, unit: dict[int, float]) -> list[tuple[_End, float]]:
        """List the branches that do not add what they should, with the factors that their squared scales lack."""
        found = []
        for end in self.ends:
            key, second = id(end.branch), out.signal(end.branch.value).second
            if end.n == 1 or not end.names or second <= 0 or key in self.idle:
                continue
            factor = self._factor(walker, end)
            if factor < 0.8 and second > (1 + factor) / 2 * unit[key]:
                # Something takes the scale away, as a norm does that is written out: it stays as it was.
                self.idle.add(key)
                found.append((end, 1 / factor))
                continue
            # A stream inside a branch is as large as the weight that it starts from, which the outer one scales.
            start = out.signal(end.stream.start).second / max(1e-12, unit[id(end.stream)])
            target = end.n ** (-1.5 if id(end.stream) in self.damped else -1.0)
            ratio = start * target / second
            if abs(ratio - 1) > _CLOSE and not (ratio > 1 and factor >= 1):  # a LayerScale makes it small enough
                found.append((end, ratio))
        return found

    @property
    def labels(self) -> dict[str, str]:
        """Give, for each weight that ends a branch, which branch of which stream that is; also for those inside."""
        found: dict[str, list[str]] = {}
        for stream in self.streams:
            n = len(stream.branches)
            damped = id(stream) in self.damped
            for i, branch in enumerate(stream.branches, 1) if n > 1 or self.residual == "zero" else ():
                label = f"branch {i} of {n}" + (f" in {stream.name!r}" if stream.name else "")
                idle = id(branch) in self.idle
                for name in branch.weights or branch.normed:
                    found.setdefault(name, []).append(label + (_NORMED if idle or branch.normed else ""))
                for name in branch.inner if damped else ():
                    found.setdefault(name, []).append(f"inside {label}")
        return {name: "; ".join(dict.fromkeys(labels)) for name, labels in found.items()}


def _is_post_norm(stream: Stream, large: Propagation, small: Propagation) -> bool:
    """Return True if what branches are added to does not depend on the size of the branches before.

    Args:
        stream: any stream.
        large: a walk with larger branches.
        small: a walk with smaller ones.
    """

    def shrinks(value: object) -> bool:
        return small.signal(value).second < (1 - _CLOSE) * large.signal(value).second  # type: ignore[arg-type]

    return len(stream.sums) > 1 and any(map(shrinks, stream.sums)) and not any(map(shrinks, stream.joined[1:]))
