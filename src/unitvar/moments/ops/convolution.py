"""Convolutions: weights shared by all positions, zeros beyond the borders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from unitvar.init.connections import counted
from unitvar.moments.ops.linear import plus
from unitvar.moments.ops.windows import Windows, tallied, windows
from unitvar.moments.rule import Connection, builtin
from unitvar.moments.signal import Signal

__all__ = ["taps_of"]


class Taps(NamedTuple):
    """What an output of a convolution sees of its input.

    Attributes:
        sizes: of the output.
        seen: the taps that an output sees on average; padding gives nothing.
        common: those that two outputs at different positions have in common.
        beside: those that neighbours have in common.
        profile: of the output.
    """

    sizes: tuple[int, ...]
    seen: float
    common: float
    beside: float
    profile: tuple[Any, ...]


def _taps(sides: Sequence[Windows]) -> Taps:
    sizes, seen = tuple(w.outputs for w in sides), math.prod(w.seen for w in sides)
    n, own = math.prod(sizes), math.prod(w.own for w in sides)
    both = math.prod(w.common for w in sides)  # drawn with replacement: one pair in n is an output and itself
    common = (n * both - own) / (n - 1) if n > 1 else own
    beside = sum(seen / w.seen * w.beside for w in sides if w.seen > 0) / len(sides)  # along each dimension
    return Taps(sizes, seen, max(0.0, common), beside, tuple(w.profile for w in sides))


def _profiles(x: Signal, n: int) -> Sequence[Any]:
    return x.profile if x.profile is not None and len(x.profile) == n else (None,) * n


def taps_of(x: Signal, kernel: Sequence[int], stride: Sequence[int], padding: Any, dilation: Sequence[int]) -> Taps:
    """Count what the windows of a convolution see."""
    profiles = _profiles(x, len(kernel))
    sides = []
    for i, (size, k) in enumerate(zip(x.shape[-len(kernel) :], kernel, strict=True)):
        s, d = stride[i % len(stride)], dilation[i % len(dilation)]
        if isinstance(padding, str):
            both = d * (k - 1) if padding == "same" else 0  # an uneven sum pads more on the right
            before = profiles[i]
            flat = np.ones(size) if before is None or len(before) != size else before
            odd = np.concatenate([flat, np.zeros(both % 2)])
            sides.append(windows(len(odd), k, s, both // 2, d, False, odd))
        else:
            sides.append(windows(size, k, s, padding[i % len(padding)], d, False, profiles[i]))
    return _taps(sides)


def _connection(args: Sequence[Any], position: int, operand: Any) -> Connection | None:
    return _connected(operand, False, args[3], int(args[6]))


def _transposed_connection(args: Sequence[Any], position: int, operand: Any) -> Connection | None:
    return _connected(operand, True, args[3], int(args[6]))


def _any_connection(args: Sequence[Any], position: int, operand: Any) -> Connection | None:
    return _connected(operand, bool(args[6]), args[3], int(args[8]))


def _connected(weight: Any, transposed: bool, stride: Any, groups: int) -> Connection:
    n = len(weight.shape)
    steps = (stride,) if isinstance(stride, int) else tuple(stride)
    steps = steps * (n - 2) if len(steps) == 1 else steps
    fan = counted(tuple(weight.shape), transposed=transposed, groups=groups, stride=steps)
    columns = (0, *range(2, n)) if transposed else tuple(range(1, n))
    fill = {"transposed": transposed, "groups": groups, "stride": fan.stride}
    return Connection(columns, (), fan.fan_in, fan.fan_out, fill)


def _channels(position: int) -> int:
    return 1


def _conv_backward(
    x: Signal, weight: Signal, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> float:
    taps = taps_of(x, weight.shape[2:], stride, padding, dilation)
    reached = weight.shape[0] / groups * taps.seen * math.prod(taps.sizes) / math.prod(x.shape[-len(taps.sizes) :])
    return reached * weight.second


@builtin(
    "conv1d", "conv2d", "conv3d", weights=(1,), connect=_connection, units=_channels, bias=2, backward=_conv_backward
)
def conv(
    x: Signal, weight: Signal, bias: Any = None, stride: Any = (1,), padding: Any = (0,), dilation: Any = (1,),
    groups: int = 1,
) -> Signal:  # fmt: skip
    taps = taps_of(x, weight.shape[2:], stride, padding, dilation)
    return plus(_convolved(x, weight, weight.shape[1], weight.shape[0], taps), bias)


def _convolved(x: Signal, weight: Signal, fan_in: float, channels: int, taps: Taps) -> Signal:
    """Sum over channels and taps; two outputs share those taps whose weight meets a real input in both."""
    n = len(taps.sizes)
    shape = (*x.shape[: -n - 1], channels, *taps.sizes)
    axes = "b" * (len(shape) - n - 1) + "f" + "p" * n
    terms = fan_in * taps.seen
    mean = terms * x.mean * weight.mean

    apart = weight.pair("features") * x.mean**2  # of two taps, whose weights may sum to zero in a row

    def total(pair: float, count: float) -> float:
        return fan_in * count * (pair * weight.second - apart) + terms**2 * apart

    pairs = {kind: total(x.pair(kind), taps.seen) for kind in ("examples", "masks")}
    spatial = x.axes[len(x.axes) - n]  # whatever it is called: what a convolution slides along are positions
    common = x.pair("positions") if spatial == "p" else x.pair("features") if spatial == "f" else x.pair("examples")
    beside = x.pair("neighbours") if spatial == "p" else common
    pairs |= {"positions": total(common, taps.common), "neighbours": total(beside, taps.beside), "features": mean**2}
    second = max(total(x.second, taps.seen), mean**2)
    return x.related(
        pairs, mean=mean, second=second, shape=shape, axes=axes, profile=taps.profile, total=None,
        mixed=x.participating * max(1.0, taps.seen),
    )  # fmt: skip


def _transposed_taps(x: Signal, weight: Signal, stride: Any, padding: Any, extra: Any, dilation: Any) -> Taps:
    kernel = weight.shape[2:]
    profiles = _profiles(x, len(kernel))
    sides = []
    for i, (size, k) in enumerate(zip(x.shape[-len(kernel) :], kernel, strict=True)):
        s, p, e, d = (v[i % len(v)] for v in (stride, padding, extra, dilation))
        full = (size - 1) * s + d * (k - 1) + 1
        profile = profiles[i] if profiles[i] is not None and len(profiles[i]) == size else np.ones(size)
        seen = np.zeros((k, full + e))
        for tap in range(k):
            seen[tap, tap * d : tap * d + (size - 1) * s + 1 : s] = profile
        sides.append(tallied(seen[:, p : full + e - p], profile))
    return _taps(sides)


def _transposed_backward(
    x: Signal, weight: Signal, bias: Any, stride: Any, padding: Any, extra: Any, groups: int, dilation: Any
) -> float:
    taps = _transposed_taps(x, weight, stride, padding, extra, dilation)
    ratio = math.prod(taps.sizes) / math.prod(x.shape[-len(taps.sizes) :])
    return weight.shape[1] * taps.seen * ratio * weight.second


@builtin(
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", weights=(1,), connect=_transposed_connection,
    units=_channels, bias=2, backward=_transposed_backward,
)  # fmt: skip
def conv_transpose(
    x: Signal, weight: Signal, bias: Any = None, stride: Any = (1,), padding: Any = (0,), extra: Any = (0,),
    groups: int = 1, dilation: Any = (1,),
) -> Signal:  # fmt: skip
    taps = _transposed_taps(x, weight, stride, padding, extra, dilation)
    return plus(_convolved(x, weight, weight.shape[0] / groups, weight.shape[1] * groups, taps), bias)


def _any_backward(
    x: Signal, weight: Signal, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any,
    groups: int, *_: Any,
) -> float:  # fmt: skip
    if transposed:
        return _transposed_backward(x, weight, bias, stride, padding, extra, groups, dilation)
    return _conv_backward(x, weight, bias, stride, padding, dilation, groups)


@builtin(
    "convolution",
    "_convolution",
    weights=(1,),
    connect=_any_connection,
    units=_channels,
    bias=2,
    backward=_any_backward,
)
def convolution(
    x: Signal, weight: Signal, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any,
    groups: int, *_: Any,
) -> Signal:  # fmt: skip
    if transposed:
        return conv_transpose(x, weight, bias, stride, padding, extra, groups, dilation)
    return conv(x, weight, bias, stride, padding, dilation, groups)
