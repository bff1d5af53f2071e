"""Convolutions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from unitvar.expectation.ops.linear import spans_examples
from unitvar.expectation.ops.table import register
from unitvar.expectation.reuse import arithmetic
from unitvar.expectation.uncertain import Common, Uncertain, example_size, wide


@register(
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    keyed=True,
    takes=lambda x, weight, bias=None, *rest: not isinstance(weight, Uncertain) and not isinstance(bias, Uncertain),
)  # fmt: skip
def convolution(
    op: Any, x: Uncertain, weight: Tensor, bias: Tensor | None = None, *rest: Any,
    keys: tuple[int | None, ...] = (), key: int = 0,
) -> Uncertain:  # fmt: skip
    """Convolve: exact for independent elements, and for channels or examples that dropout left or took as a whole.

    Of what dropped channels make of an output channel, its positions share from then on what a mean over them would.
    """
    mean, matrix = op(x.mean, weight, bias, *rest), wide(weight)
    if x.common is None:
        return Uncertain(mean, op(x.var, matrix.square(), None, *rest))
    common = x.common
    groups = _groups(op, rest)
    lone = groups == x.mean.shape[1] == weight.shape[0] and weight.shape[1] == 1
    channel = math.prod(x.mean.shape[2:])
    if spans_examples(x) or (lone and common.block == channel):
        size = op(common.size, matrix, None, *rest)
        block = example_size(mean) if spans_examples(x) else math.prod(mean.shape[2:])
        var = op(x.rest, matrix.square(), None, *rest) + size.square()
        return Uncertain(mean, var, Common(size, block, common.key))
    if common.block == channel:
        var = op(x.rest, matrix.square(), None, *rest)
        square, size = _channels(op, common.size, matrix, rest, groups)
        return Uncertain(mean, var + square, Common(size, math.prod(mean.shape[2:]), key))
    return Uncertain(mean, op(x.var, matrix.square(), None, *rest))


def _channels(
    op: Any, size: Tensor, weight: Tensor, rest: tuple[Any, ...], groups: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Convolve each channel by itself; return the variance that all make, and the part that positions share.

    Output position p gets Σ_c a_c(p) u_c with one u_c a channel. One number cannot stand for all u_c: what is kept is
    Σ_c w_c u_c with the w_c of a mean over positions, to which p is Σ_c a_c(p) w_c / |w|. One channel of each group is
    taken at a time, since no output sees two of them; a grouped convolution of all at once takes far longer.
    """
    o = arithmetic(size, weight)
    each, transposed = size.shape[1] // groups, _transposed(op, rest)
    positions = tuple(range(2, size.dim()))
    kernels = [weight[i::each] if transposed else weight[:, i : i + 1] for i in range(each)]
    level = size.mean(positions)  # the mean of a convolution is that of its input times the sum of its kernel
    out = weight.shape[1] * groups if transposed else weight.shape[0]
    means = torch.stack(
        [
            level[:, i::each].repeat_interleave(out // groups, 1)
            * kernel.sum(tuple(range(2, kernel.dim()))).reshape(-1)
            for i, kernel in enumerate(kernels)
        ]
    )
    length = means.square().sum(0).sqrt().clamp_min(torch.finfo(means.dtype).tiny)
    share = (means / length).reshape(*means.shape, *(1 for _ in positions))
    total: Tensor | None = None
    shared: Tensor | None = None
    for i, kernel in enumerate(kernels):
        made = op(size[:, i::each], kernel, None, *rest)
        shared = made * share[i] if shared is None else o.addcmul(shared, made, share[i])
        total = made * made if total is None else o.addcmul(total, made, made)
    assert total is not None
    assert shared is not None
    return total, shared


def op_kind(op: Any) -> str:
    """Return the name of an op without its overload."""
    return str(op).split(".")[1]


# How many arguments stand between the bias and the number of groups.
_GROUPS = {
    "conv1d": 3, "conv2d": 3, "conv3d": 3, "convolution": 5,
    "conv_transpose1d": 3, "conv_transpose2d": 3, "conv_transpose3d": 3,
}  # fmt: skip


def _groups(op: Any, rest: tuple[Any, ...]) -> int:
    position = _GROUPS[op_kind(op)]
    return int(rest[position]) if len(rest) > position else 1


def _transposed(op: Any, rest: tuple[Any, ...]) -> bool:
    return "transpose" in op_kind(op) or (op_kind(op) == "convolution" and bool(rest[3]))
