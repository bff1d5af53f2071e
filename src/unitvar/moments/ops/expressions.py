"""Results of several sources: the expression is remembered, and drawn where moments do not tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from unitvar.moments.combine import broadcast, joined_axes
from unitvar.moments.correlation import KINDS
from unitvar.moments.joint import Joint, Operand
from unitvar.moments.ops.arithmetic import PRODUCTS, QUOTIENTS, SUMS, main, number_for_statistic
from unitvar.moments.rule import Call
from unitvar.moments.signal import Signal, least_seen

__all__ = ["drawn", "expression", "remembered"]

_AGREE = 0.02  # of a second moment, by which draws may differ from a closed form

Replay = Callable[[Call, list[Any]], Any]


def expression(call: Call, operands: list[Signal], replay: Replay) -> Joint | None:
    """Describe an op of several tensors as an expression of its sources; None if it is too long to be one.

    Args:
        call: of the op.
        operands: the tensors among its arguments.
        replay: calls the op on numbers.
    """
    averages = {id(x.average_of) for x in operands if x.average_of is not None}
    if any(x.total is not None or id(x.origin) in averages for x in operands):
        return None
    if call.name in PRODUCTS or call.name in QUOTIENTS:
        operands = [number_for_statistic(x) for x in operands]
    shape = call.shapes[0]
    axes = joined_axes(operands, shape)

    def function(values: Sequence[Tensor]) -> Tensor:
        rows = iter(values)
        out: Tensor = replay(call, [next(rows) if isinstance(a, Signal) else a for a in call.args])
        return out

    linear = call.name in SUMS or len(operands) == 1
    return Joint.of(function, [_operand(x, shape, axes) for x in operands], shape, linear=linear)


def _operand(x: Signal, shape: tuple[int, ...], axes: str) -> Operand:
    """Describe an operand as it is after broadcasting."""
    field = x.field
    if x.law is not None and field.large is not None:
        x = x.like(correlation=field.large.correlation, turn=x.turn)
    return Operand.of(field, broadcast(x, shape, axes).correlations, x.shape, x.turn)


def remembered(made: Signal, joint: Joint | None, *, plain: bool) -> Signal:
    """Attach its expression to a result of closed forms; where these do not hold, take what is drawn.

    Args:
        made: the result.
        joint: its expression.
        plain: whether the forms hold for operands that are not Gaussian, as those of sums and products do.
    """
    if joint is None:
        return made
    found = joint.moments() if joint.dependent or (joint.heavy and not plain) else None
    if found is not None:
        mean, second, correlation = found
        pairs = [getattr(correlation, k) * (second - mean**2) + mean**2 - made.pair(k) for k in KINDS]
        off = max(abs(second - made.second), abs(mean**2 - made.mean**2), *map(abs, pairs))
        if off > _AGREE * second:  # closed forms are exact where they hold
            made = made.but(mean=mean, second=second, correlation=correlation)
    return made.but(joint=joint)


def drawn(call: Call, operands: list[Signal], joint: Joint | None) -> Signal | None:
    """Draw the result of an op that has no closed form; None if it cannot be drawn."""
    found = None if joint is None else joint.moments()
    if found is None:
        return None
    mean, second, correlation = found
    shape, first = call.shapes[0], main(operands)
    word = "." + call.name.partition(".")[2].strip("_")
    return Signal(
        mean, second, shape, axes=joined_axes(operands, shape), correlation=correlation, path=first.path.then(word),
        seen=least_seen(*(x.seen for x in operands)), inside=first.inside, joint=joint,
    )  # fmt: skip
