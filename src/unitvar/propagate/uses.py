"""Where a parameter is used as a weight: which of its dimensions are summed over, and how many connections it makes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from unitvar.graph import Node, Value
from unitvar.init import fans
from unitvar.propagate.state import State

__all__ = ["Solver", "Use", "Weighing", "followed", "placed", "use_of"]

_CASTS = {
    "aten.to", "aten._to_copy", "aten.type_as", "aten.clone", "aten.contiguous", "aten.detach", "aten.alias",
    "aten.lift_fresh", "aten.expand", "aten.expand_as", "aten.view_as",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a parameter as a weight.

    Attributes:
        parameter: the parameter.
        operand: what the op gets: the parameter, or a view of it.
        columns: dimensions of the operand that are summed over.
        batch: dimensions that only select: experts, heads.
        fan_in: connections into an output, padding not counted.
        fan_out: connections out of an input.
        part: the share of the parameter's fan-in that the operand has.
        fill: how an initialiser must treat it: transposed, groups and stride.
    """

    parameter: Value
    operand: Value
    columns: tuple[int, ...]
    batch: tuple[int, ...]
    fan_in: float
    fan_out: float
    part: float
    fill: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Weighing:
    """What a solver is told of a use: all it needs to choose a scale.

    Attributes:
        use: the weight.
        x: the state that reaches it.
        forward: E z² that a weight of unit row norm would give.
        backward: E[g_x²] / E[g_z²] that it would give; None unless asked for.
        node: the op.
        share: the part of z's variance that this weight is to make: a half each for input and state of a recurrence.
    """

    use: Use
    x: State
    forward: float
    backward: float | None
    node: Node
    share: float = 1.0


Solver = Callable[[Weighing], float | None]


def followed(value: Value) -> Value | None:
    """Follow an operand back to the parameter whose elements it has, if nothing but views and casts lie between."""
    while value.kind == "derived":
        if value.parameter is not None:
            return value.parameter
        node = value.node
        if node is None or node.name not in _CASTS or not isinstance(node.args[0], Value):
            return None
        if node.args[0].shape != value.shape:
            return None
        value = node.args[0]
    return value if value.kind == "parameter" else None


def use_of(node: Node, position: int, operand: Value) -> Use | None:
    """Describe a use; None if its layout cannot be followed."""
    parameter = followed(operand)
    if parameter is None or len(operand.shape) < 2:
        return None
    name = node.name.removeprefix("aten.")
    shape, dims = operand.shape, len(operand.shape)
    batch: tuple[int, ...] = ()
    if "conv" in name:
        transposed, groups, stride = _convolution(node, name)
        fan = fans(torch.empty(shape, device="meta"), transposed=transposed, groups=groups, stride=stride)
        fill = {"transposed": transposed, "groups": groups, "stride": fan.stride}
        columns = (0, *range(2, dims)) if transposed else tuple(range(1, dims))
        return Use(parameter, operand, columns, (), fan.fan_in, fan.fan_out, 1.0, fill)
    if name == "einsum":
        columns, batch = _letters(node, position, operand)
    elif name == "bilinear":
        columns = (1, 2)
    elif name in ("matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm"):
        second = node.args[-1 if name in ("matmul", "mm", "bmm") else 2] is operand
        columns = (dims - 2,) if second else (dims - 1,)
        batch = tuple(range(dims - 2))
    else:
        columns = (dims - 1,)
    fan_in = math.prod(shape[d] for d in columns)
    fan_out = math.prod(shape[d] for d in range(dims) if d not in columns and d not in batch)
    if not fan_in or not columns:
        return None
    place = placed(parameter, operand, columns)
    if place is None:
        return None
    whole = math.prod(parameter.shape[d] for d in place)
    return Use(parameter, operand, columns, batch, float(fan_in), float(fan_out), fan_in / whole, {})


def placed(parameter: Value, operand: Value, dims: tuple[int, ...]) -> tuple[int, ...] | None:
    """Find the parameter's dimensions that some of an operand's are."""
    if operand.layout is None:  # the parameter itself, or a cast of it
        return dims
    _, strides, _ = operand.layout
    tensor = parameter.tensor
    assert tensor is not None
    own = {stride: d for d, stride in reversed(list(enumerate(tensor.stride()))) if tensor.shape[d] > 1}
    found = [own[strides[d]] for d in dims if operand.shape[d] > 1 and strides[d] in own]
    wanted = math.prod(operand.shape[d] for d in dims)
    if not found or math.prod(parameter.shape[d] for d in found) < wanted:
        return None
    return tuple(sorted(set(found)))


def _convolution(node: Node, name: str) -> tuple[bool, int, Any]:
    args = node.args
    if name in ("convolution", "_convolution"):
        return bool(args[6]), int(args[8]), _steps(args[3], args[1])
    if "transpose" in name:
        return True, int(args[6]), _steps(args[3], args[1])
    return False, int(args[6]), _steps(args[3], args[1])


def _steps(stride: Any, weight: Value) -> tuple[int, ...]:
    n = len(weight.shape) - 2
    steps = (stride,) if isinstance(stride, int) else tuple(stride)
    return steps * n if len(steps) == 1 else steps


def _letters(node: Node, position: int, operand: Value) -> tuple[tuple[int, ...], tuple[int, ...]]:
    equation = node.args[0].replace(" ", "")
    operands = list(node.args[1])
    at = next(i for i, v in enumerate(operands) if v is operand)
    left, arrow, right = equation.partition("->")
    letters = left.split(",")
    if not arrow:
        plain = left.replace(",", "")
        right = "".join(c for c in plain if plain.count(c) == 1)
    own = letters[at]
    if "..." in own:
        return (), ()
    others = "".join(t for i, t in enumerate(letters) if i != at)
    columns = tuple(i for i, c in enumerate(own) if c not in right)
    batch = tuple(i for i, c in enumerate(own) if c in right and c in others)
    return columns, batch
