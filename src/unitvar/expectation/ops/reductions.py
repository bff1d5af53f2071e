"""Sums and means."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from unitvar.expectation.ops.linear import spans_examples
from unitvar.expectation.ops.table import register
from unitvar.expectation.uncertain import Common, Uncertain, example_size, mean_of, var_of


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
