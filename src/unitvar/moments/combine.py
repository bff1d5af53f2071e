"""Sums and products of tensors whose elements have nothing to do with each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from unitvar.moments import axes as labels
from unitvar.moments.correlation import KINDS, Tilt
from unitvar.moments.signal import Signal

__all__ = ["added", "broadcast", "centred", "contracted", "joined_axes", "multiplied", "stacked"]

_FREE = ("positions", "neighbours")


def joined_axes(operands: Sequence[Signal], shape: tuple[int, ...]) -> str:
    """Name the dimensions of what several tensors are broadcast to."""
    whole = [x for x in operands if len(x.shape) == len(shape)]
    if not whole:
        return labels.default(shape)
    names = list(max(whole, key=lambda x: (x.path.rank, math.prod(x.shape))).axes)
    for d in range(len(shape)):
        known = {x.axes[d] for x in whole if x.shape[d] == shape[d] and (shape[d] > 1 or x.axes[d] != "c")}
        if names[d] not in known and known:
            names[d] = min(known)
        elif "p" in known and names[d] == "f" and "f" in names[:d] + names[d + 1 :]:
            names[d] = "p"  # after mixing tokens, which are positions still
    return "".join(names)


def broadcast(x: Signal, shape: tuple[int, ...], axes: str) -> Signal:
    """Repeat a tensor along dimensions: there its elements are the same.

    Of two elements that differ in a kind of dimension, a share q are copies of one, and the rest is as alike as before.
    """
    if x.shape == shape and x.axes == axes:
        return x
    own = (1,) * (len(shape) - len(x.shape)) + x.shape
    known = dict(zip(KINDS, x.correlations, strict=True))
    was = "?" * (len(shape) - len(x.shape)) + x.axes
    for label, kind in labels.KIND.items():
        dims = [d for d in range(len(shape)) if axes[d] == label and shape[d] > 1]
        whole, distinct = math.prod(shape[d] for d in dims), math.prod(own[d] for d in dims)
        kept = [d for d in dims if own[d] > 1]
        # What the elements along these dimensions share is told by what the dimensions were.
        old = max((known_of(x, was[d]) for d in kept), default=known[kind])
        q = (whole / distinct - 1) / (whole - 1) if whole > 1 else 0.0
        known[kind] = q + (1 - q) * (old if kept else known[kind])
        if label == "p" and dims:
            gone = sum(own[d] == 1 for d in dims) / len(dims)
            near = x.correlations.neighbours if all(was[d] == "p" for d in kept) else old
            known["neighbours"] = gone + (1 - gone) * near
    return x.but(shape=shape, axes=axes, correlation=x.correlations._replace(**known), parts=(), sum_of=())


def known_of(x: Signal, label: str) -> float:
    """Return the correlation along a dimension of this name."""
    return 1.0 if label == "c" else float(getattr(x.correlations, labels.KIND[label])) if label in labels.KIND else 0.0


def added(a: Signal, b: Signal, shape: tuple[int, ...], *, axes: str = "") -> Signal:
    """Add independent tensors: means add, variances add, and so does what pairs share."""
    axes = axes or joined_axes((a, b), shape)
    a, b = broadcast(a, shape, axes), broadcast(b, shape, axes)
    mean = a.mean + b.mean
    pairs = {k: mean**2 + a.pair(k) - a.mean**2 + b.pair(k) - b.mean**2 for k in KINDS}
    return a.related(pairs, mean=mean, second=mean**2 + a.var + b.var, total=None, tilt=None)


def stacked(parts: Sequence[Signal], shape: tuple[int, ...], axes: str) -> Signal:
    """Add tensors that were stacked along a dimension."""
    first, *rest = [p.but(shape=shape, axes=axes, law=None, parts=()) for p in parts]
    for part in rest:
        first = added(first, part, shape)
    return first


def centred(x: Signal, mean: Signal, shape: tuple[int, ...]) -> Signal:
    """Subtract the mean of some elements from each of them: what they share is gone."""
    mean = broadcast(mean, shape, x.axes)
    pairs = {k: x.pair(k) - mean.pair(k) for k in KINDS}
    return x.related(pairs, mean=0.0, second=max(0.0, x.second - mean.second), total=None)


def multiplied(a: Signal, b: Signal, shape: tuple[int, ...]) -> Signal:
    """Multiply independent tensors: every moment multiplies."""
    axes = joined_axes((a, b), shape)
    a, b = broadcast(a, shape, axes), broadcast(b, shape, axes)
    pairs = {k: a.pair(k) * b.pair(k) for k in KINDS}
    return a.related(pairs, mean=a.mean * b.mean, second=a.second * b.second, total=None)


def contracted(
    a: Signal, b: Signal, over: Sequence[tuple[int, int]], shape: tuple[int, ...], axes: str, free: int | None = None
) -> Signal:
    """Sum the products of elements along some dimensions, as matrix products do.

    With n terms E y² = n E a² E b² + Σ E a_k a_l E b_k b_l over pairs of different terms, and a pair of outputs has the
    same formula with pairs in place of squares. So what the rows of a softmax, which sum to one, do with what the
    positions of their values share needs no rule of its own.

    Args:
        a: its dimensions that are not summed over come out with their names.
        b: the other operand; a weight, mostly.
        over: pairs of dimensions, of a and of b, that are summed over.
        shape: of the result.
        axes: of the result.
        free: the dimension of b that comes out, if a's positions do, too.
    """
    sizes = [a.shape[i] for i, _ in over]
    n = math.prod(sizes)
    mean = n * a.mean * b.mean

    def total(a_same: float, b_same: float, a_kind: str | None, b_kind: str | None) -> float:
        found = n * a_same * b_same
        for chosen in _subsets(len(over)):
            ways = n * math.prod(sizes[i] - 1 for i in chosen)
            if ways:
                one = min(_apart(a, over[i][0], a_kind, a_same, n) for i in chosen)
                other = min(_apart(b, over[i][1], b_kind, b_same, n) for i in chosen)
                found += ways * one * other
        return found

    # Attention, whichever way its product is written: weights lean towards values that are like the query.
    weights, values, dim = (b, a, 0) if b.tilt else (a, b, 1)
    tilt = weights.tilt if len(over) == 1 and not _is_weight(values) else None
    more = tilt.scaled(values.second - values.along(over[0][dim])) if tilt else Tilt()
    second = total(a.second, b.second, None, None) + more.own
    pairs = {
        "examples": total(a.pair("examples"), b.pair("examples"), "examples", "examples") + more.examples,
        "masks": total(a.pair("masks"), b.pair("masks"), "masks", "masks") + more.masks,
    }
    rows_of_b = "p" in axes and "p" not in [c for i, c in enumerate(a.axes) if i not in {d for d, _ in over}]
    for kind in _FREE:
        if rows_of_b:
            pairs[kind] = total(a.second, b.pair(kind), None, kind) + more.positions
        else:
            pairs[kind] = total(a.pair(kind), b.second, kind, None) + more.positions
    if free is not None:
        pairs["features"] = total(a.second, b.along(free), None, labels.KIND.get(b.axes[free], "features"))
    elif "f" in [c for i, c in enumerate(a.axes) if i not in {d for d, _ in over}]:  # keys, when heads are mixed
        pairs["features"] = total(a.pair("features"), b.second, "features", None)
    else:
        pairs["features"] = mean**2
    return a.related(
        pairs,
        mean=mean,
        second=max(second, mean**2),
        shape=shape,
        axes=axes,
        profile=None,
        total=None,
        tilt=None,
        mixed=a.participating if _is_weight(b) else 0.0,
    )


def _is_weight(x: Signal) -> bool:
    """Return True for what is the same at all positions and in all examples, and has no level of its own."""
    level = x.mean**2 > 0.01 * x.second  # numbers that are there, unlike those that are to be drawn, have a small mean
    return min(x.correlations.positions, x.correlations.examples) == 1.0 and not level


def _subsets(n: int) -> list[tuple[int, ...]]:
    return [c for size in range(1, n + 1) for c in itertools.combinations(range(n), size)]


def _apart(x: Signal, dim: int, kind: str | None, same: float, n: int) -> float:
    """Return E x_1 x_2 of two elements that differ along a dimension and, if a kind is given, in that, too."""
    if kind is None:
        return x.along(dim)
    if x.total is not None and n > 1:  # two rows, each of which has a known sum
        return (x.total**2 - n * same) / (n * (n - 1))
    way = labels.KIND.get(x.axes[dim])
    return x.second if way is None else x.apart(way, x.along(dim), kind, same)


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a product of matrices, or of vectors."""
    if len(a) == 1:
        return (*b[:-2], *b[-1:]) if len(b) > 1 else ()
    if len(b) == 1:
        return a[:-1]
    batch: tuple[Any, ...] = tuple(
        max(x, y) for x, y in itertools.zip_longest(reversed(a[:-2]), reversed(b[:-2]), fillvalue=1)
    )[::-1]
    return (*batch, a[-2], b[-1])
