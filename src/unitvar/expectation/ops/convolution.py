"""Convolutions."""

from __future__ import annotations

import math
from typing import Any

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

    What dropped channels make of an output channel is taken as common to its positions from then on.
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
        square = _channels(op, common.size, matrix, rest, groups)
        return Uncertain(mean, var + square, Common(square.sqrt(), math.prod(mean.shape[2:]), key))
    return Uncertain(mean, op(x.var, matrix.square(), None, *rest))


def _channels(op: Any, size: Tensor, weight: Tensor, rest: tuple[Any, ...], groups: int) -> Tensor:
    """Convolve each channel by itself and add the squares; a grouped convolution of all at once takes far longer.

    One channel of each group is taken at a time: no output sees two of them.
    """
    o = arithmetic(size, weight)
    each = size.shape[1] // groups
    transposed = _transposed(op, rest)
    total: Tensor | None = None
    for i in range(each):
        kernel = weight[i::each] if transposed else weight[:, i : i + 1]
        made = op(size[:, i::each], kernel, None, *rest)
        total = made * made if total is None else o.addcmul(total, made, made)
    assert total is not None
    return total


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
