"""What borders and zeros do: profiles of images, pads, crops, triangles, unfolded windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from unitvar.moments.ops.convolution import taps_of
from unitvar.moments.ops.profiles import flattened, window
from unitvar.moments.ops.views import picked
from unitvar.moments.rule import Call, builtin
from unitvar.moments.signal import Signal

__all__: list[str] = []


def _share(x: Signal, share: float, shape: tuple[int, ...], value: float = 0.0) -> Signal:
    """Keep a share of the elements, the rest being one value."""
    mean = share * x.mean + (1 - share) * value
    second = share * x.second + (1 - share) * value**2
    both = {k: share**2 * x.pair(k) + 2 * share * (1 - share) * x.mean * value + (1 - share) ** 2 * value**2
            for k in ("positions", "neighbours", "features")}  # fmt: skip
    fixed = {k: share * x.pair(k) + (1 - share) * value**2 for k in ("examples", "masks")}
    return x.related({**both, **fixed}, mean=mean, second=second, shape=shape, axes=x.axes, total=None)


def _padded(x: Signal, amounts: Sequence[int]) -> tuple[tuple[int, ...], float]:
    """Return the shape after padding, negative amounts being crops, and the share of it that is real."""
    sizes, real = list(x.shape), list(x.shape)
    for i in range(len(amounts) // 2):
        low, high = amounts[2 * i], amounts[2 * i + 1]
        sizes[-1 - i] += low + high
        real[-1 - i] += min(0, low) + min(0, high)
    return tuple(sizes), math.prod(real) / max(1, math.prod(sizes))


def _pad_gradient(g: Signal, x: Signal, amounts: Sequence[int], mode: Any = "constant", *_: Any) -> tuple[Signal]:
    shape, share = _padded(x, amounts)
    if isinstance(mode, str) and mode != "constant":  # copies of the border hand their gradient back to it
        share = 1.0
    energy = share * math.prod(shape) / max(1, math.prod(x.shape))
    return (g.like(second=g.second * energy, shape=x.shape, axes=x.axes),)


def _pad_word(x: Any, amounts: Sequence[int], *_: Any) -> str:
    return "" if not any(amounts) else "crop" if all(a <= 0 for a in amounts) else "pad"


@builtin("pad", "constant_pad_nd", word=_pad_word, carries=True, gradient=_pad_gradient)
def pad(x: Signal, amounts: Sequence[int], mode: Any = "constant", value: Any = 0.0) -> Signal:
    shape, share = _padded(x, amounts)
    if isinstance(mode, str) and mode != "constant":
        return x.like(shape=shape, axes=x.axes, profile=None)
    if share == 1.0:  # only crops
        for i in range(len(amounts) // 2):
            dim = len(shape) - 1 - i
            part = picked(x, (*x.shape[:dim], shape[dim], *x.shape[dim + 1 :]), x.axes)
            spatial = x.profile is not None and len(x.profile) == len(shape) - 2 and dim >= 2
            x = window(part, x, dim, -amounts[2 * i]) if spatial else part
        return x
    filled = mode if not isinstance(mode, str) else value
    made = _share(x, share, shape, float(filled or 0.0))
    return made.like(profile=_edges(x, shape, amounts) if not filled else None)


def _edges(x: Signal, shape: tuple[int, ...], amounts: Sequence[int]) -> tuple[Any, ...] | None:
    """Return the profile of what was padded with zeros: where they are, there is nothing."""
    n = len(shape) - 2
    if n < 1 or len(amounts) > 2 * n:
        return None
    sides = []
    for i in range(n):
        at = n - 1 - i
        low, high = (amounts[2 * at], amounts[2 * at + 1]) if 2 * at + 1 < len(amounts) else (0, 0)
        old = x.profile[i] if x.profile is not None and len(x.profile) == n and x.profile[i] is not None else None
        flat = np.ones(x.shape[2 + i]) if old is None or len(old) != x.shape[2 + i] else np.asarray(old)
        flat = flat[max(0, -low) : len(flat) - max(0, -high)]
        side = np.concatenate([np.zeros(max(0, low)), flat, np.zeros(max(0, high))])
        sides.append(side / side.mean() if side.mean() > 0 else None)
    return tuple(sides)


@builtin("im2col", word="unfold", call=True)
def im2col(call: Call) -> Signal:
    """Lay the windows of a convolution out: those at borders hold zeros."""
    x, kernel, dilation, padding, stride = call.args[:5]
    taps, even = (taps_of(image, kernel, stride, padding, dilation) for image in (x, x.but(profile=None)))
    share = even.seen / math.prod(kernel)
    made = _share(x, share, x.shape)
    both = {k: x.pair(k) * taps.common / math.prod(kernel) for k in ("positions", "neighbours")}
    second = max(made.mean**2, x.second * taps.seen / math.prod(kernel))
    profile = flattened(taps.profile, taps.sizes) if len(call.shapes[0]) == 3 else None
    return made.related(both, second=second, shape=call.shapes[0], axes="bfp", profile=profile)


def _below(x: Signal, diagonal: int = 0) -> float:
    """Return the share of a matrix on a diagonal and below it."""
    rows, columns = x.shape[-2:]
    return sum(min(columns, max(0, i + diagonal + 1)) for i in range(rows)) / max(1, rows * columns)


def _above(x: Signal, diagonal: int = 0) -> float:
    return 1 - _below(x, diagonal - 1)


@builtin("tril", word="", backward=_below)
def tril(x: Signal, diagonal: int = 0) -> Signal:
    return _share(x, _below(x, diagonal), x.shape)


@builtin("triu", word="", backward=_above)
def triu(x: Signal, diagonal: int = 0) -> Signal:
    return _share(x, _above(x, diagonal), x.shape)
