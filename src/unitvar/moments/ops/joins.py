"""Tensors that are joined: side by side, stacked, or written into each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unitvar.moments.correlation import KINDS
from unitvar.moments.ops.profiles import side_of
from unitvar.moments.ops.views import copies, gathered
from unitvar.moments.rule import RULES, Call, Rule, builtin, signals_in
from unitvar.moments.signal import Signal, least_seen

__all__ = ["MERGE"]

MERGE = "unitvar.merge"


def _mixture(
    parts: Sequence[Signal], shares: Sequence[float], shape: tuple[int, ...], across: Sequence[str] = ()
) -> Signal:
    """Mix tensors; two elements that differ in the kinds ``across`` may come from different ones."""
    whole = sum(shares) or 1.0
    weights = [share / whole for share in shares]
    main = max(parts, key=lambda p: p.path.rank)

    def mixed(numbers: Sequence[float]) -> float:
        return sum(w * n for w, n in zip(weights, numbers, strict=True))

    pairs = {k: mixed([p.pair(k) for p in parts]) for k in KINDS}
    for kind in across:
        level = mixed([p.mean for p in parts]) ** 2
        pairs[kind] = level + sum(w**2 * (p.pair(kind) - p.mean**2) for w, p in zip(weights, parts, strict=True))
    return main.related(
        pairs, mean=mixed([p.mean for p in parts]), second=mixed([p.second for p in parts]), shape=shape,
        seen=least_seen(*(p.seen for p in parts)), total=None,
    )  # fmt: skip


def _split_gradient(g: Signal, tensors: Sequence[Signal], *_: Any) -> tuple[Signal, ...]:
    if len(g.parts) == len(tensors):
        return tuple(p.like(shape=t.shape, axes=t.axes) for p, t in zip(g.parts, tensors, strict=True))
    if g.parts:  # of tensors that were joined themselves
        rest, found = list(g.parts), []
        for t in tensors:
            own = [rest.pop(0) for _ in range(max(1, len(t.parts)))]
            sizes = [math.prod(p.shape) for p in own]
            second = sum(n * p.second for n, p in zip(sizes, own, strict=True)) / max(1, sum(sizes))
            found.append(
                own[0].like(second=second, shape=t.shape, axes=t.axes, parts=tuple(own) if len(own) > 1 else ())
            )
        return tuple(found)
    return tuple(g.like(shape=t.shape, axes=t.axes) for t in tensors)


@builtin("cat", "concat", "concatenate", word="cat", gradient=_split_gradient)
def cat(tensors: Sequence[Signal], dim: int = 0) -> Signal:
    full = [t for t in tensors if math.prod(t.shape)] or list(tensors)
    shape = list(full[0].shape)
    shape[dim] = sum(t.shape[dim] for t in full)
    across = {"p": ("positions",), "f": ("features",)}.get(full[0].axes[dim], ())
    made = _mixture(full, [math.prod(t.shape) for t in full], tuple(shape), across)
    if made.axes[dim] == "f" and len(full) == len(tensors):
        flat = tuple(p for t in full for p in (t.parts if t.parts and t.joined == dim % len(shape) else (t,)))
        return made.like(parts=flat, joined=dim % len(shape))
    made = made.like(profile=_side_byside_of(full, dim % len(shape), made))
    return made.like(parts=tuple(full), joined=dim % len(shape)) if len(full) == len(tensors) else made


def _side_byside_of(parts: Sequence[Signal], dim: int, made: Signal) -> tuple[Any, ...] | None:
    """Return the profile of tensors that were joined along a spatial dimension, such as zeros around an image."""
    n = len(made.shape) - 2
    if n < 1 or dim < 2 or made.axes[1] != "f" or made.second <= 0:
        return None
    side = np.concatenate([side_of(p, dim - 2, n) * (p.second / made.second) for p in parts])
    known = [p.profile for p in parts if p.profile is not None and len(p.profile) == n]
    rest = list(known[0]) if known else [None] * n
    rest[dim - 2] = side
    return tuple(rest)


@builtin("stack", "hstack", "vstack", "dstack", "column_stack", call=True, word="stack",
         gradient=lambda g, call: _split_gradient(g[0], signals_in(call.args)))  # fmt: skip
def stack(call: Call) -> Signal:
    tensors = signals_in(call.args)
    first, shape = tensors[0], call.shapes[0]
    made = _mixture(tensors, [math.prod(t.shape) for t in tensors], first.shape)
    axes = made.axes
    if len(shape) > len(axes):
        dim = int(call.args[1]) % len(shape) if len(call.args) > 1 and isinstance(call.args[1], int) else 0
        axes = axes[:dim] + "f" + axes[dim:]  # copies of nothing: each with a life of its own
        return made.like(shape=shape, axes=axes, parts=tuple(tensors), joined=dim)
    return made.like(shape=shape, axes=axes)


def _merge(call: Call) -> Signal:
    """Read a tensor after parts of it were written through other views."""
    x, written, shares, boxes = call.args
    if shares[-1] == 1.0:
        last: Signal = written[-1]
        return last.but(shape=x.shape, axes=x.axes)
    made = _mixture([x, *written], [1 - sum(shares), *shares], x.shape, ("positions", "features"))
    words = x.path.words or written[-1].path.words
    profile = _written(x, written[0], boxes[0], made) if len(written) == 1 else None
    return made.like(axes=x.axes, path=replace(x.path, words=words), profile=profile)


def _written(x: Signal, y: Signal, box: Any, made: Signal) -> tuple[Any, ...] | None:
    """Return the profile of an image whose middle was written to, where the rest is zero."""
    n = len(x.shape) - 2
    if box is None or n < 1 or x.second > 0 or x.axes[1] != "f" or made.second <= 0:
        return None
    sides = []
    for i, (low, high) in enumerate(box[2:]):
        side = np.zeros(x.shape[2 + i])
        side[low:high] = side_of(y, i, n)
        sides.append(side / side.mean())
    return tuple(sides)


def _merge_gradient(g: Any, call: Call) -> tuple[Signal, ...]:
    x, written, shares, _ = call.args
    parts = zip((x, *written), (1 - sum(shares), *shares), strict=True)
    counts = math.prod(g[0].shape)
    return tuple(
        g[0].like(second=g[0].second * share * counts / max(1, math.prod(p.shape)), shape=p.shape, axes=p.axes)
        for p, share in parts
    )


RULES[MERGE] = Rule(_merge, gradient=_merge_gradient, word="", call=True)


@builtin("copy", call=True, word="", gradient=lambda g, call: (None, gathered(g[0], call.args[1])))
def copy(call: Call) -> Signal | None:
    x = call.args[1]
    return copies(x, call.shapes[0]) if isinstance(x, Signal) else None
