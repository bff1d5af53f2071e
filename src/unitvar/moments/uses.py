"""Where a parameter is used as a weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unitvar.graph import Node, Value
from unitvar.moments.known import followed
from unitvar.moments.rule import Connection, Rule
from unitvar.moments.signal import Signal

__all__ = ["Solver", "Use", "Weighing", "operands", "placed", "use_of"]


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a parameter as a weight.

    Attributes:
        parameter: the parameter.
        operand: what the op gets: the parameter, or a view of it.
        connection: how it connects inputs and outputs.
        part: the share of the parameter's fan-in that the operand has.
    """

    parameter: Value
    operand: Value
    connection: Connection
    part: float

    @property
    def fan_in(self) -> float:
        """Return the connections into an output."""
        return self.connection.fan_in

    @property
    def fan_out(self) -> float:
        """Return the connections out of an input."""
        return self.connection.fan_out


@dataclass(frozen=True, slots=True)
class Weighing:
    """What a solver is told of a use: all it needs to choose a scale.

    Attributes:
        use: the weight.
        x: the signal that reaches it.
        second: E z² that a weight of unit row norm would give.
        node: the op.
        share: the part of z's variance that this weight is to make: a half each for input and state of a recurrence.
    """

    use: Use
    x: Signal
    second: float
    node: Node
    share: float = 1.0


Solver = Callable[[Weighing], float | None]


def operands(args: Sequence[Any], rule: Rule) -> list[tuple[int, Any]]:
    """List what stands at the positions of weights, with its position; lists are taken apart."""
    found = []
    for position in rule.weights:
        arg = args[position] if position < len(args) else None
        found += [(position, a) for a in (arg if isinstance(arg, (tuple, list)) else (arg,)) if a is not None]
    return found


def use_of(node: Node, rule: Rule, position: int, operand: Value) -> Use | None:
    """Describe a use; None if its layout cannot be followed."""
    parameter = followed(operand)
    if parameter is None or len(operand.shape) < 2:
        return None
    connection = rule.connect(node.args, position, operand)
    if connection is None:
        return None
    if connection.fill and operand.shape == parameter.shape:  # a convolution, which takes its weight whole
        return Use(parameter, operand, connection, 1.0)
    if connection.fill:
        if connection.fill["transposed"] or connection.fill["groups"] != 1:
            return None
        connection = replace(connection, fill={})
    place = placed(parameter, operand, connection.columns)
    if place is None:
        return None
    whole = math.prod(parameter.shape[d] for d in place)
    return Use(parameter, operand, connection, connection.fan_in / whole)


def placed(parameter: Value, operand: Value, dims: tuple[int, ...]) -> tuple[int, ...] | None:
    """Find the parameter's dimensions that some of an operand's are."""
    if operand.layout is None:  # the parameter itself, or a cast of it
        return dims
    _, strides, _ = operand.layout
    tensor = parameter.tensor
    assert tensor is not None
    own = sorted((stride, d) for d, stride in enumerate(tensor.stride()) if tensor.shape[d] > 1)
    found: set[int] = set()
    for d in dims:
        reach, step = strides[d] * operand.shape[d], strides[d]
        # A dimension of a view may be several of the parameter's, merged.
        found |= {k for stride, k in own if operand.shape[d] > 1 and step <= stride < reach}
    wanted = math.prod(operand.shape[d] for d in dims)
    if not found or math.prod(parameter.shape[k] for k in found) < wanted:
        return None
    return tuple(sorted(found))
