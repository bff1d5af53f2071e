"""Pooling over windows of positions."""

from __future__ import annotations

import math
from typing import Any

from unitvar.moments.ops.windows import windows
from unitvar.moments.rule import builtin
from unitvar.moments.signal import Signal

__all__: list[str] = []


def _each(value: Any, n: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return [int(v) for v in (values * n if len(values) == 1 else values)]


def _spatial(
    x: Signal, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[tuple[int, ...], float, float, tuple[Any, ...]]:
    """Return the shape after pooling, the elements of a full window, those seen on average, and their profile."""
    n = len(kernel) if not isinstance(kernel, int) and len(kernel) > 1 else max(1, len(x.shape) - 2)
    n = min(n, len(x.shape) - 1)
    kernels = _each(kernel, n)
    strides = _each(stride, n) if stride not in (None, [], ()) else kernels
    profiles = x.profile if x.profile is not None and len(x.profile) == n else (None,) * n
    sizes = x.shape[-n:]
    pads, gaps = _each(padding, n), _each(dilation, n)
    flat = [windows(a, k, s, p, d, ceil) for a, k, s, p, d in zip(sizes, kernels, strides, pads, gaps, strict=True)]
    real = [
        windows(a, k, s, p, d, ceil, f)
        for a, k, s, p, d, f in zip(sizes, kernels, strides, pads, gaps, profiles, strict=True)
    ]
    # What windows see, over how many they see: the profile of an average or a maximum.
    after = tuple(
        _normal(r.profile * r.seen / (f.profile * f.seen)) if r.profile is not None and f.profile is not None else None
        for r, f in zip(real, flat, strict=True)
    )
    shape = (*x.shape[:-n], *(w.outputs for w in flat))
    return shape, math.prod(kernels), math.prod(w.seen for w in flat), after


def _normal(profile: Any) -> Any:
    mean = profile.mean()
    return profile / mean if mean > 0 and math.isfinite(mean) else None


def _size(kernel: Any) -> str:
    values = [kernel] if isinstance(kernel, int) else list(kernel)
    return "x".join(str(v) for v in values)


def _spread(g: Signal, x: Signal, energy: float) -> Signal:
    """Hand a share of a gradient's energy to the elements of the input."""
    ratio = math.prod(g.shape) / max(1, math.prod(x.shape))
    return g.like(second=g.second * energy * ratio, shape=x.shape, axes=x.axes)


def _max_gradient(
    g: Signal, x: Signal, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[Signal]:
    """Hand all energy to the largest element of each window, whose slope is no average one: ReLU's is on."""
    _, _, seen, _ = _spatial(x, kernel, stride, padding, dilation, ceil)
    return (_spread(g, x, 1.0).like(winners=seen),)


@builtin(
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "max_pool1d_with_indices",
    word=lambda x, kernel, *_: f"maxpool {_size(kernel)}", gradient=_max_gradient,
)  # fmt: skip
def max_pool(
    x: Signal, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[Signal, Signal]:
    shape, _, seen, profile = _spatial(x, kernel, stride, padding, dilation, ceil)
    return x.maximum(seen).like(shape=shape, profile=profile), Signal(0.0, 0.0, shape)


def _divisors(
    x: Signal, kernel: Any, stride: Any, padding: Any, ceil: bool, include_pad: bool, divisor: Any
) -> tuple[tuple[int, ...], float, float, tuple[Any, ...]]:
    shape, full, seen, profile = _spatial(x, kernel, stride, padding, 1, ceil)
    return shape, seen, float(divisor) if divisor else full if include_pad else seen, profile


def _avg_gradient(
    g: Signal, x: Signal, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, include_pad: bool = True,
    divisor: Any = None,
) -> tuple[Signal]:  # fmt: skip
    _, seen, by, _ = _divisors(x, kernel, stride, padding, ceil, include_pad, divisor)
    return (_spread(g, x, seen / by**2),)


@builtin(
    "avg_pool1d", "avg_pool2d", "avg_pool3d",
    word=lambda x, kernel, *_: f"avgpool {_size(kernel)}", gradient=_avg_gradient,
)  # fmt: skip
def avg_pool(
    x: Signal, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, include_pad: bool = True,
    divisor: Any = None,
) -> Signal:  # fmt: skip
    shape, seen, by, profile = _divisors(x, kernel, stride, padding, ceil, include_pad, divisor)
    # A window that holds all positions holds any two of them, not only neighbours.
    whole = seen > 0.75 * math.prod(x.shape[2 - len(shape) :] if len(shape) > 2 else x.shape[-1:])
    return x.averaged(seen, neighbours=not whole, shape=shape, profile=profile).scaled(seen / by)


def _adaptive(x: Signal, size: Any) -> tuple[tuple[int, ...], float, float]:
    """Return the shape, the mean number of elements in a window, and the mean of its inverse."""
    out = _each(size, 1)
    n = len(out)
    count = inverse = 1.0
    for d, o in zip(x.shape[-n:], out, strict=True):
        sizes = [-(-(i + 1) * d // o) - i * d // o for i in range(o)]
        count *= sum(sizes) / o
        inverse *= sum(1 / s for s in sizes) / o
    return (*x.shape[:-n], *out), count, inverse


def _adaptive_avg_gradient(g: Signal, x: Signal, size: Any) -> tuple[Signal]:
    _, _, inverse = _adaptive(x, size)
    made = _spread(g, x, inverse)
    if math.prod(_each(size, 1)) == 1:  # the same for all positions
        made = made.like(correlation=made.correlations.with_positions(1.0))
    return (made,)


@builtin(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    word=lambda x, size: f"avgpool to {_size(size)}", gradient=_adaptive_avg_gradient,
)  # fmt: skip
def adaptive_avg_pool(x: Signal, size: Any) -> Signal:
    shape, count, inverse = _adaptive(x, size)
    return x.averaged(1 / inverse, neighbours=math.prod(_each(size, 1)) > 1 and count < 10, shape=shape, profile=None)


def _adaptive_max_gradient(g: Signal, x: Signal, size: Any) -> tuple[Signal]:
    return (_spread(g, x, 1.0).like(winners=_adaptive(x, size)[1]),)


@builtin(
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    word=lambda x, size: f"maxpool to {_size(size)}", gradient=_adaptive_max_gradient,
)  # fmt: skip
def adaptive_max_pool(x: Signal, size: Any) -> tuple[Signal, Signal]:
    shape, count, _ = _adaptive(x, size)
    return x.maximum(count, "positions").like(shape=shape, profile=None), Signal(0.0, 0.0, shape)
