"""Pooling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unitvar.expectation import gaussian
from unitvar.expectation.ops.linear import spans_examples
from unitvar.expectation.ops.table import register
from unitvar.expectation.uncertain import Common, Uncertain, example_size, wide


def _spread(value: Any, n: int) -> tuple[int, ...]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return sizes * n if len(sizes) == 1 else sizes


def _rank(op: Any) -> int:
    """Read the number of pooled dimensions from the name of an op: ``max_pool2d``."""
    return int(str(op).split("pool")[1][0])


def _outputs(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    """Count the windows along a dimension, as torch does."""
    out = (size + 2 * pad - dilation * (kernel - 1) - 1 + (stride - 1 if ceil else 0)) // stride + 1
    return out - 1 if ceil and (out - 1) * stride >= size + pad else out


def _outer(lines: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    """Multiply numbers along each dimension into one tensor."""
    product = torch.ones((), dtype=like.dtype, device=like.device)
    for d, line in enumerate(lines):
        row = torch.tensor(line, dtype=like.dtype, device=like.device)
        product = product * row.reshape(-1, *(1 for _ in lines[d + 1 :]))
    return product


@register("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    op: Any, x: Uncertain, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    padded: bool = True, divisor: int | None = None,
) -> Uncertain:  # fmt: skip
    """Average windows: exact for independent elements, for channels and for examples dropped as a whole."""
    n = _rank(op)
    rest = (kernel, stride, padding, ceil, padded, *((divisor,) if n > 1 else ()))
    lines = []
    kernels, pads = _spread(kernel, n), _spread(padding, n)
    for size, k, s, p in zip(x.mean.shape[-n:], kernels, _spread(stride, n) or kernels, pads, strict=True):
        spans = [(o * s - p, min(o * s - p + k, size + p)) for o in range(_outputs(size, k, s, p, 1, ceil))]
        lines.append([1 / (end - start if padded else min(end, size) - max(start, 0)) for start, end in spans])
    per = _outer(lines, x.var)
    return _averaged(x, lambda t: op(t, *rest), per if divisor is None else torch.full_like(per, 1 / divisor))


@register("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d")
def adaptive_avg_pool(op: Any, x: Uncertain, size: Any) -> Uncertain:
    """Average windows of which there is a fixed number: exact where averages are."""
    n = _rank(op)
    lines = [
        [1 / (-(-(i + 1) * inner // outer) - i * inner // outer) for i in range(outer)]
        for inner, outer in zip(x.mean.shape[-n:], _spread(size, n), strict=True)
    ]
    return _averaged(x, lambda t: op(t, size), _outer(lines, x.var))


def _averaged(x: Uncertain, pool: Callable[[Tensor], Tensor], per: Tensor) -> Uncertain:
    """Pool linearly; ``per`` is the weight of an element in each window."""
    mean = pool(x.mean)
    if not _whole(x):
        return Uncertain(mean, pool(x.var) * per)
    assert x.common is not None
    size = pool(x.common.size)
    return _with(x, mean, pool(x.rest) * per + size.square(), size)


def _whole(x: Uncertain) -> bool:
    """Return True if the elements of a channel, or of an example, share their noise."""
    return x.common is not None and (spans_examples(x) or x.common.block == math.prod(x.mean.shape[2:]))


def _with(x: Uncertain, mean: Tensor, var: Tensor, size: Tensor) -> Uncertain:
    assert x.common is not None
    block = example_size(mean) if spans_examples(x) else math.prod(mean.shape[2:])
    return Uncertain(mean, var, Common(size, block, x.common.key) if block > 1 else None)


@register("max_pool1d", "max_pool2d", "max_pool3d", method="closed form")
def max_pool(
    op: Any, x: Uncertain, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Uncertain:
    """Take the largest of each window, pair by pair: exact for two Gaussians (Clark 1961)."""
    n = _rank(op)
    kernels = _spread(kernel, n)
    sides = zip(kernels, _spread(stride, n) or kernels, _spread(padding, n), _spread(dilation, n), strict=True)
    return _largest(x, list(sides), ceil)


@register("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d_with_indices", method="closed form")
def max_pool_with_indices(
    op: Any, x: Uncertain, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[Uncertain, Tensor]:
    """Take the largest of each window; the indices are those of the means."""
    _, indices = op(x.mean, kernel, stride, padding, dilation, ceil)
    return max_pool(op, x, kernel, stride, padding, dilation, ceil), indices


@register(
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", method="closed form",
    takes=lambda x, size: all(i % o == 0 for i, o in zip(x.mean.shape[-len(size) :], size, strict=True)),
)  # fmt: skip
def adaptive_max_pool(op: Any, x: Uncertain, size: Any) -> tuple[Uncertain, Tensor]:
    """Take the largest of windows of which there is a fixed number; the indices are those of the means."""
    _, indices = op(x.mean, size)
    kernels = [i // o for i, o in zip(x.mean.shape[-len(size) :], size, strict=True)]
    return _largest(x, [(k, k, 0, 1) for k in kernels], False), indices


def _largest(x: Uncertain, sides: list[tuple[int, int, int, int]], ceil: bool) -> Uncertain:
    sizes = x.mean.shape[-len(sides) :]
    outs = [_outputs(size, *side, ceil) for size, side in zip(sizes, sides, strict=True)]
    mean, var = wide(x.mean), x.var
    common = x.common.size if x.common is not None and _whole(x) else None
    around: list[int] = []
    for size, out, (k, s, p, d) in zip(sizes, outs, sides, strict=True):
        around = [p, max(0, (out - 1) * s + (k - 1) * d + 1 - p - size), *around]
    if any(around):
        low = (mean - 8 * var.sqrt()).amin() - 1  # never the largest, and its square is finite
        mean, var = F.pad(mean - low, around) + low, F.pad(var, around)
        common = None if common is None else F.pad(common, around)
    windows: list[tuple[Tensor, Tensor, Tensor | None]] = []
    for offsets in itertools.product(*(range(k) for k, *_ in sides)):
        starts = [o * d for o, (_, _, _, d) in zip(offsets, sides, strict=True)]
        cut = [slice(a, a + (out - 1) * s + 1, s) for a, out, (_, s, _, _) in zip(starts, outs, sides, strict=True)]
        at: Any = (..., *cut)
        windows.append((mean[at], var[at], None if common is None else common[at]))
    while len(windows) > 1:
        pairs = [gaussian.greater(a, b) for a, b in zip(windows[::2], windows[1::2], strict=False)]
        windows = pairs + windows[len(pairs) * 2 :]
    best, spread, size_of_common = windows[0]
    best = best.to(x.mean.dtype)
    return Uncertain(best, spread) if size_of_common is None else _with(x, best, spread, size_of_common)


@register(
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa", takes=lambda x, *rest, **named: isinstance(x, Uncertain),
)  # fmt: skip
def interpolate(op: Any, x: Uncertain, size: Any, align: bool = False, *scales: Any) -> Uncertain:
    """Interpolate: exact for independent elements, with the squares of the weights."""
    mean, var = op(x.mean, size, align, *scales), x.var
    name, n = str(op), x.mean.dim() - 2
    factors = [*scales[0]] if scales and isinstance(scales[0], (list, tuple)) else [*scales]  # by overload
    for d, scale in enumerate((factors + [None] * n)[:n], 2):
        before, after = x.mean.shape[d], mean.shape[d]
        eye = torch.eye(before, dtype=var.dtype, device=var.device)[None, None]
        # A factor that is no quotient of sizes moves the samples.
        by = {"size": (after, before)} if scale is None else {"scale_factor": (scale, 1.0)}
        mode = "bicubic" if "bicubic" in name else "bilinear"
        line = F.interpolate(eye, **by, mode=mode, align_corners=align, antialias="_aa" in name)[0, 0]
        var = torch.movedim(torch.movedim(var, d, -1) @ line.square().mT, -1, d)
    return Uncertain(mean, var)
