"""Pooling, means and sums over positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from unitvar.rules.moments import Moments
from unitvar.rules.registry import builtin
from unitvar.rules.windows import windows

__all__: list[str] = []


def _each(value: Any, n: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return [int(v) for v in (values * n if len(values) == 1 else values)]


def _spatial(
    x: Moments, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
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
        _normal(r * m / (f * c)) if r is not None and f is not None else None
        for (_, m, r, *_), (_, c, f, *_) in zip(real, flat, strict=True)
    )
    shape = (*x.shape[:-n], *(w.outputs for w in flat))
    return shape, math.prod(kernels), math.prod(w.seen for w in flat), after


def _normal(profile: Any) -> Any:
    mean = profile.mean()
    return profile / mean if mean > 0 and math.isfinite(mean) else None


def _size(kernel: Any) -> str:
    values = [kernel] if isinstance(kernel, int) else list(kernel)
    return "x".join(str(v) for v in values)


def _max_backward(
    x: Moments, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> float:
    shape, *_ = _spatial(x, kernel, stride, padding, dilation, ceil)
    return math.prod(shape) / math.prod(x.shape)  # each output's gradient goes to one input


@builtin(
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "max_pool1d_with_indices",
    word=lambda x, kernel, *_: f"maxpool {_size(kernel)}", backward=_max_backward,
)  # fmt: skip
def max_pool(
    x: Moments, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[Moments, Moments]:
    shape, _, seen, profile = _spatial(x, kernel, stride, padding, dilation, ceil)
    return x.maximum(seen).like(shape=shape, profile=profile), Moments(0.0, 0.0, shape)


def _avg_backward(x: Moments, kernel: Any, stride: Any = (), padding: Any = 0, *rest: Any) -> float:
    shape, full, *_ = _spatial(x, kernel, stride, padding, 1, bool(rest[0]) if rest else False)
    return math.prod(shape) / math.prod(x.shape) / full


@builtin(
    "avg_pool1d", "avg_pool2d", "avg_pool3d",
    word=lambda x, kernel, *_: f"avgpool {_size(kernel)}", backward=_avg_backward,
)  # fmt: skip
def avg_pool(
    x: Moments, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, include_pad: bool = True, *_: Any
) -> Moments:
    shape, full, seen, profile = _spatial(x, kernel, stride, padding, 1, ceil)
    averaged = x.averaged(seen, neighbours=True, shape=shape, profile=profile)
    return averaged.scaled(seen / full) if include_pad else averaged


def _adaptive(x: Moments, size: Any) -> tuple[tuple[int, ...], float]:
    out = _each(size, 1)
    n = len(out)
    seen = math.prod(d / o if d % o == 0 else d / o + 1 - 1 / o for d, o in zip(x.shape[-n:], out, strict=True))
    return (*x.shape[:-n], *out), max(1.0, seen)


@builtin(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    word=lambda x, size: f"avgpool to {_size(size)}", backward=lambda x, size: _adaptive(x, size)[1] ** -2,
)  # fmt: skip
def adaptive_avg_pool(x: Moments, size: Any) -> Moments:
    shape, seen = _adaptive(x, size)
    return x.averaged(seen, shape=shape, profile=None)


@builtin(
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    word=lambda x, size: f"maxpool to {_size(size)}", backward=lambda x, size: 1 / _adaptive(x, size)[1],
)  # fmt: skip
def adaptive_max_pool(x: Moments, size: Any) -> tuple[Moments, Moments]:
    shape, seen = _adaptive(x, size)
    return x.maximum(seen).like(shape=shape, profile=None), Moments(0.0, 0.0, shape)


def _reduced(x: Moments, dim: Any, keepdim: bool) -> tuple[tuple[int, ...], float, float]:
    """Return the shape, and how many elements of other features and of other positions go into one."""
    n = len(x.shape)
    dims = (
        set(range(n)) if dim is None or dim in ((), []) else {d % n for d in ([dim] if isinstance(dim, int) else dim)}
    )
    shape = tuple(1 if i in dims else s for i, s in enumerate(x.shape) if keepdim or i not in dims)
    features = n - 1 if x.features is None else x.features
    # The first dimension counts examples, unless it alone is reduced: then it is time, which comes first, too.
    independent = {features} if dims == {0} and n > 2 else {features, 0}
    across = math.prod(x.shape[d] for d in dims & independent)
    along = math.prod(x.shape[d] for d in dims - independent)
    return shape, float(across), float(along)


def _sum_backward(x: Moments, dim: Any = None, keepdim: Any = False, *_: Any) -> float:
    return 1.0


def _mean_backward(x: Moments, dim: Any = None, keepdim: Any = False, *_: Any) -> float:
    if not isinstance(keepdim, bool):
        dim, keepdim = None, False
    _, across, along = _reduced(x, dim if not hasattr(dim, "itemsize") else None, keepdim)
    return (across * along) ** -2


@builtin("mean", word="mean", backward=_mean_backward)
def mean(x: Moments, dim: Any = None, keepdim: Any = False, *_: Any) -> Moments:
    if not isinstance(keepdim, bool) or hasattr(dim, "itemsize"):  # mean(x, dtype=...)
        dim, keepdim = None, False
    shape, across, along = _reduced(x, dim, keepdim)
    first = x.averaged(along)
    second = first.mean**2 + (first.second - first.mean**2) / across
    features = x.features if keepdim else None
    return x.like(second=second, cross=None if along > 1 else x.cross, shape=shape, features=features, profile=None)


@builtin("sum", word="sum", backward=_sum_backward)
def sum_(x: Moments, dim: Any = None, keepdim: Any = False, *_: Any) -> Moments:
    averaged = mean(x, dim, keepdim)
    count = math.prod(x.shape) / max(1, math.prod(averaged.shape))
    return averaged.scaled(count)


def _extreme_backward(x: Moments, dim: Any = None, keepdim: Any = False) -> float:
    _, across, along = _reduced(x, dim, bool(keepdim))
    return 1 / (across * along)  # each output's gradient goes to one input


# max and min of two tensors, ``.other``, are pointwise: replayed.
@builtin("max.default", "max.dim", "amax", word="max", backward=_extreme_backward)
def amax(x: Moments, dim: Any = None, keepdim: Any = False) -> tuple[Moments, Moments]:
    shape, across, along = _reduced(x, dim, bool(keepdim))
    top = x.maximum(across * along)
    return top.like(shape=shape, features=None, profile=None), Moments(0.0, 0.0, shape)


@builtin("min.default", "min.dim", "amin", word="min", backward=_extreme_backward)
def amin(x: Moments, dim: Any = None, keepdim: Any = False) -> tuple[Moments, Moments]:
    shape, across, along = _reduced(x, dim, bool(keepdim))
    low = x.minimum(across * along)
    return low.like(shape=shape, features=None, profile=None), Moments(0.0, 0.0, shape)


@builtin("var", "var_mean", word="var")
def var(x: Moments, dim: Any = None, unbiased: Any = True, keepdim: bool = False, *_: Any) -> tuple[Moments, Moments]:
    shape, across, along = _reduced(x, dim if not isinstance(dim, bool) else None, keepdim)
    inner = max(1e-30, x.second - (x.pair if along > 1 and across == 1 else x.mean**2))
    count = max(2.0, across * along)
    return Moments(inner, inner**2 * (1 + 2 / count), shape), mean(
        x, dim if not isinstance(dim, bool) else None, keepdim
    )


@builtin("std", "std_mean", word="std")
def std(x: Moments, *rest: Any) -> tuple[Moments, Moments]:
    square, average = var(x, *rest)
    spread = square.second / square.mean**2 - 1  # the root of a sum of squares has a quarter of its relative variance
    return Moments(math.sqrt(square.mean) * (1 - spread / 8), square.mean, square.shape), average


@builtin("linalg_vector_norm", "norm", word="norm")
def norm(x: Moments, order: Any = 2, dim: Any = None, keepdim: bool = False, *_: Any) -> Moments | None:
    if order not in (2, None):
        return None
    shape, across, along = _reduced(x, dim if not hasattr(dim, "itemsize") else None, keepdim)  # or a dtype
    count = max(1.0, across * along)
    return Moments(math.sqrt(x.second * count) * (1 - 1 / (4 * count)), x.second * count, shape)  # as in std


def _glu_word(*_: Any) -> str:
    return "glu"


@builtin("glu", word=_glu_word)
def glu(x: Moments, dim: int = -1) -> Moments:
    from unitvar.activations import activation_moments

    gate = activation_moments("sigmoid", x.mean, x.std)
    shape = tuple(s // 2 if i == dim % len(x.shape) else s for i, s in enumerate(x.shape))
    return x.like(mean=x.mean * gate.mean, second=x.second * gate.second, cross=x.pair * gate.mean**2, shape=shape)


def total(parts: Sequence[Moments]) -> Moments:
    """Add independent tensors: means add, variances add."""
    first = parts[0]
    mean = sum(p.mean for p in parts)
    changes: dict[str, float | None] = {"cross": None}
    if any(p.has_positions for p in parts):
        changes["cross"] = mean**2 + sum(p.pair - p.mean**2 for p in parts)
        if any(p.near is not None for p in parts):
            changes["near"] = mean**2 + sum(p.beside - p.mean**2 for p in parts)
    return first.like(mean=mean, second=mean**2 + sum(p.var for p in parts), **changes)
