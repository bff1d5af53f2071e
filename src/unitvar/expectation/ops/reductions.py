"""Sums and means."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from unitvar.expectation import gaussian
from unitvar.expectation.ops.linear import spans_examples
from unitvar.expectation.ops.table import register
from unitvar.expectation.uncertain import LARGEST, Common, Uncertain, example_size, mean_of, var_of, wide


def _dims(x: Tensor, dim: Any) -> tuple[int, ...]:
    if dim is None or dim == () or dim == []:
        return tuple(range(x.dim()))
    return tuple(d % x.dim() for d in ((dim,) if isinstance(dim, int) else dim))


@register("sum", "mean")
def reduced(op: Any, x: Uncertain, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Uncertain:
    """Add up or average: exact for independent elements, for channels and for examples dropped as a whole."""
    dims = _dims(x.mean, dim)
    averages = "mean" in str(op)
    count = math.prod(x.mean.shape[d] for d in dims)
    share = 1 / count if averages else 1.0
    mean = x.mean.to(dtype or x.mean.dtype)
    mean = mean.mean(dims, keepdim) if averages else mean.sum(dims, keepdim)
    if not _within(x, dims):
        return Uncertain(mean, x.var.sum(dims, keepdim) * share**2)
    assert x.common is not None
    size = x.common.size.sum(dims, keepdim) * share
    var = x.rest.sum(dims, keepdim) * share**2 + size.square()
    left = example_size(mean)
    if spans_examples(x) and left > 1:
        return Uncertain(mean, var, Common(size, left, x.common.key))
    return Uncertain(mean, var)  # one element a block is left, and blocks are independent


def _within(x: Uncertain, dims: tuple[int, ...]) -> bool:
    """Return True if a sum stays inside blocks: over some of an example, or over just the dimensions of a channel."""
    if x.common is None or 0 in dims:
        return False
    inside = x.mean.shape[min(dims) :]
    return spans_examples(x) or (
        x.common.block == math.prod(inside) and len(dims) == len(inside)
    )  # fmt: skip


def _outside(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    """Return the shape after a reduction."""
    kept = [1 if d in dims else n for d, n in enumerate(x.shape)]
    return tuple(n for d, n in enumerate(kept) if keepdim or d not in dims)


def _extreme(x: Uncertain, dims: tuple[int, ...], keepdim: bool, sign: float) -> Uncertain:
    """Take the largest or, with a sign, the smallest, pair by pair: exact for two Gaussians (Clark 1961)."""
    shape = _outside(x.mean, dims, keepdim)
    mean, var = (t.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims)) for t in (wide(x.mean), x.var))
    mean = sign * mean
    while mean.shape[-1] > 1:
        half, rest = mean.shape[-1] // 2, mean.shape[-1] % 2
        left, right = ((mean[..., at], var[..., at], None) for at in (slice(half), slice(half, 2 * half)))
        best, spread, _ = gaussian.greater(left, right)
        mean = torch.cat([best, mean[..., -1:]], -1) if rest else best
        var = torch.cat([spread, var[..., -1:]], -1) if rest else spread
    return Uncertain((sign * mean).reshape(shape).to(x.mean.dtype), var.reshape(shape))


@register("amax", "amin", method="closed form")
def extreme(op: Any, x: Uncertain, dim: Any = (), keepdim: bool = False) -> Uncertain:
    """Take the largest or the smallest over some dimensions."""
    return _extreme(x, _dims(x.mean, dim), keepdim, -1.0 if "amin" in str(op) else 1.0)


@register("max.dim", "min.dim", method="closed form")
def extreme_along(op: Any, x: Uncertain, dim: int, keepdim: bool = False) -> tuple[Uncertain, Tensor]:
    """Take the largest or the smallest along a dimension; the indices are those of the means."""
    made = _extreme(x, _dims(x.mean, dim), keepdim, -1.0 if "min" in str(op) else 1.0)
    return made, op(x.mean, dim, keepdim)[1]


@register("logsumexp", method="first order")
def logsumexp(op: Any, x: Uncertain, dim: Any, keepdim: bool = False) -> Uncertain:
    """Take the logarithm of a sum of exponentials: the mean to second order."""
    dims, level = _dims(x.mean, dim), wide(x.mean)
    total = level.logsumexp(dims, keepdim=True)
    p = torch.exp(level - total)
    bend = 0.5 * (p * (1 - p) * x.var).sum(dims, keepdim)
    mean = total.reshape(bend.shape) + bend
    return Uncertain(mean.to(x.mean.dtype), (p.square() * x.var).sum(dims, keepdim))


def _squares(x: Uncertain, centre: Tensor, dims: tuple[int, ...], left: float = 1.0) -> tuple[Tensor, Tensor]:
    """Add up squares of independent Gaussians around some centre; return the mean, and the variance over its square.

    Args:
        x: the Gaussians.
        centre: their means, less what was subtracted.
        dims: the dimensions to add up, which are kept.
        left: how much of an element's own variance is left after the subtraction.
    """
    square, var = centre.square(), left * x.var
    total = (square + var).sum(dims, keepdim=True)
    unit = 1 / total.clamp_min(torch.finfo(total.dtype).tiny)  # fourth powers would leave the range of float32
    return total, (2 * (var * unit).square() + 4 * (square * unit) * (x.var * unit)).sum(dims, keepdim=True)


def _root(total: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Take the root of a sum of squares: E √S ≈ √E S (1 - Var S / 8 (E S)²), and E (√S)² is E S itself."""
    share = spread / 8
    return total.sqrt() * (1 - share), total * share * (2 - share)


@register(
    "linalg_vector_norm",
    method="first order",
    takes=lambda x, power=2, *rest, **named: isinstance(x, Uncertain) and power == 2,
)
def vector_norm(
    op: Any, x: Uncertain, power: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Uncertain:
    """Take the Euclidean norm."""
    dims = _dims(x.mean, dim)
    mean, var = _root(*_squares(x, wide(x.mean), dims))
    shape = _outside(x.mean, dims, keepdim)
    return Uncertain(mean.reshape(shape).to(dtype or x.mean.dtype), var.reshape(shape))


@register("var.correction", "std.correction", method="first order")
def variance(
    op: Any, x: Uncertain, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> Uncertain:
    """Take the variance of some elements, or its root."""
    dims, level = _dims(x.mean, dim), wide(x.mean)
    count = math.prod(x.mean.shape[d] for d in dims)
    free = count - (1 if correction is None else correction)
    share = 1 / free if free > 0 else math.nan  # as torch has it
    # Of each element's own noise the mean takes 1 / count off.
    total, spread = _squares(x, level - level.mean(dims, keepdim=True), dims, 1 - 1 / count)
    total = total * share
    mean, var = _root(total, spread) if "std" in str(op) else (total, (total.square() * spread).clamp_max(LARGEST))
    shape = _outside(x.mean, dims, keepdim)
    return Uncertain(mean.reshape(shape).to(x.mean.dtype), var.reshape(shape))


@register("cumsum")
def cumsum(op: Any, x: Uncertain, dim: int, *, dtype: Any = None) -> Uncertain:
    """Add up step by step."""
    return Uncertain(op(x.mean, dim, dtype=dtype), x.var.cumsum(dim))


@register("col2im", takes=lambda x, *rest: isinstance(x, Uncertain))
def col2im(op: Any, x: Uncertain, *rest: Any) -> Uncertain:
    """Add up overlapping windows: exact for independent elements."""
    return Uncertain(op(x.mean, *rest), op(x.var, *rest))


@register("index_add", "scatter_add", takes=lambda x, dim, index, *rest, **named: not isinstance(index, Uncertain))
def added(op: Any, x: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1) -> Uncertain:
    """Add elements into places: exact for independent elements."""
    named = {} if alpha == 1 else {"alpha": alpha}
    squared = {} if alpha == 1 else {"alpha": alpha**2}
    mean = op(mean_of(x), dim, index, mean_of(source), **named)
    return Uncertain(mean, op(var_of(x), dim, index, var_of(source), **squared))
