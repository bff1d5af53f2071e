"""Pointwise ops, replayed on grids as they were recorded; operands of different origin combine by their moments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unitvar._torch import schema_of
from unitvar.moments.combine import broadcast, joined_axes
from unitvar.moments.joint import described, is_gaussian
from unitvar.moments.law import Axis, Field, quantiles
from unitvar.moments.ops.arithmetic import PRODUCTS, SUMS, arithmetic_gradient, combined, is_sum, main
from unitvar.moments.ops.expressions import drawn, expression, remembered
from unitvar.moments.ops.fine import finer_moments, is_plain
from unitvar.moments.ops.noise import MOST
from unitvar.moments.ops.views import picked
from unitvar.moments.rule import Call, Rule
from unitvar.moments.signal import Origin, Signal, least_seen

__all__ = ["POINTWISE", "is_sum", "replayed"]

# A grid is float64 on the CPU, whatever the model computes in and where.
_UNUSED = {"dtype", "layout", "device", "pin_memory", "memory_format"}
_LOGICAL = ("aten.bitwise", "aten.logical", "aten.__")
_MASKS = {"aten.where": 0, "aten.masked_fill": 1}  # name → which argument is a mask
_COARSE = 32  # nodes of a law that had to be taken for noise


def replayed(call: Call) -> Signal | None:
    """Follow signals through a pointwise op; None if it cannot be replayed."""
    if any(isinstance(a, tuple) and any(isinstance(t, Signal) for t in a) for a in call.args):
        return None
    call = _told_apart(call)
    operands = [a for a in call.args if isinstance(a, Signal)]
    if not operands:
        return None
    shape = call.shapes[0]
    made = combined(call, operands, shape)
    if made is not None:
        plain = call.name in SUMS or call.name in PRODUCTS
        return remembered(made, expression(call, operands, _called), plain=plain)
    fields = [x.field for x in operands]
    if len({id(f.large.key) for f in fields if f.large is not None}) > 1:
        made = drawn(call, operands, expression(call, operands, _called))
        if made is not None:
            return made
        fields = [_compressed(f) for f in fields]
    large = next((f.large for f in fields if f.large is not None), None)
    noises: list[Axis] = []
    for field in fields:
        noises += [a for a in field.noises if not any(a.key is b.key for b in noises)]
    if math.prod(len(a.nodes) for a in noises) > (MOST if large is not None else MOST * 64):
        return None
    rows = iter([f.aligned(noises) for f in fields])
    out = _evaluated(call, [next(rows) if isinstance(a, Signal) else a for a in call.args])
    if out is None:
        return None
    out = out.expand(*(1,) * len(noises), -1) if out.dim() == 1 else out
    law = _tidied(Field(out, tuple(noises), large))
    made = _finished(call, operands, law, shape)
    fine = len(operands) == 1 and not is_plain(call.name) and is_gaussian(law)
    return _refined(call, operands[0], made) if fine else made


def _told_apart(call: Call) -> Call:
    """Treat x and its transpose, where both are operands, as different elements with the same law."""
    met: dict[int, Signal] = {}
    args = list(call.args)
    for i, x in enumerate(args):
        if not isinstance(x, Signal) or x.origin is None:
            continue
        large = x.field.large
        first = None if large is None else met.setdefault(id(large.key), x)
        if first is not None and (first.shape, first.turn) != (x.shape, x.turn) and _many(first) and _many(x):
            args[i] = picked(x, x.shape, x.axes).but(origin=Origin(x.origin.home, x.origin.chi))
    for i, x in enumerate(args):
        if isinstance(x, Signal) and x.law is None and len(x.sum_of) == 1:
            args[i] = _unnormalised(x, [a for j, a in enumerate(args) if j != i and isinstance(a, Signal)])
    return replace(call, args=tuple(args))


def _unnormalised(x: Signal, others: list[Signal]) -> Signal:
    """Treat a normalised signal as a multiple of the signal where both are operands."""
    ((factor, term),) = x.sum_of
    field = term.field
    same = [a for a in others if a.shape == term.shape == x.shape and a.turn == term.turn]
    keys = {id(a.field.large.key) for a in same if a.field.large is not None}
    if field.large is None or id(field.large.key) not in keys:
        return x
    law = Field(factor * field.values + (x.mean - factor * term.mean), field.noises, field.large)
    return x.but(law=law, origin=None, turn=term.turn)


def _many(x: Signal) -> bool:
    return math.prod(x.shape) > 1


def _refined(call: Call, x: Signal, made: Signal) -> Signal:
    """Integrate between the nodes where a function is finer than the grid."""

    def called(values: Tensor) -> Any:
        return _called(call, [values if isinstance(a, Signal) else a for a in call.args])

    found = finer_moments(x.field, called, made.second)
    return made if found is None else made.like(mean=found[0], second=max(found[1], found[0] ** 2), path=made.path)


def _evaluated(call: Call, values: list[Any]) -> Tensor | None:
    try:
        with torch.enable_grad():
            out = _called(call, values)
            if isinstance(out, Tensor) and out.is_floating_point() and not out.isfinite().all():
                out = _without(out.isfinite(), lambda v: _called(call, v), values)
    except (RuntimeError, TypeError, NotImplementedError, IndexError):
        return None
    return out.double() if isinstance(out, Tensor) else None


def _called(call: Call, values: list[Any]) -> Any:
    """Call an op on grids: arguments in schema order, masks as booleans."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for value, argument in zip(values, schema_of(call.op.func).arguments, strict=False):
        if argument.is_out or argument.name in _UNUSED:
            continue
        if not argument.kwarg_only:
            positional.append(value)
        elif value is not None:
            keywords[argument.name] = value
    if call.name in ("aten.prelu", "aten._prelu_kernel"):  # which insist on channels
        x, slope = positional
        return torch.where(x > 0, x, slope * x)
    if call.name in _MASKS:
        positional[_MASKS[call.name]] = _boolean(positional[_MASKS[call.name]])
    elif call.name.startswith(_LOGICAL):
        positional = [_boolean(v) for v in positional]
    return call.op.functional(*positional, **keywords)


def _boolean(value: Any) -> Any:
    return value.bool() if isinstance(value, Tensor) else value


def _without(good: Tensor, call: Callable[[list[Any]], Any], values: list[Any]) -> Tensor:
    """Replay with the middle instead of nodes where an op has no value: a mean of squares is never negative."""
    mended = [
        torch.where(good.expand_as(v), v, v.detach().mean()) if isinstance(v, Tensor) and v.shape == good.shape else v
        for v in values
    ]
    out: Tensor = call(mended)
    return out.nan_to_num()


def _compressed(field: Field) -> Field:
    if field.large is None and math.prod(len(a.nodes) for a in field.noises) <= _COARSE:
        return field
    axis = quantiles(field, _COARSE)
    return Field(axis.nodes.unsqueeze(-1), (axis,), None)


def _tidied(field: Field) -> Field:
    """Merge nodes of equal value where noise was thresholded."""
    if field.large is None and len(field.noises) == 1 and len(field.noises[0].nodes) > 16:
        axis = field.noises[0]
        values = field.full.detach()[:, 0]
        distinct, inverse = torch.unique(values, return_inverse=True)
        if len(distinct) <= 16:
            weights = torch.zeros(len(distinct), dtype=torch.float64, device="cpu").index_add_(0, inverse, axis.weights)
            keep = float(weights[-1]) if len(distinct) == 2 and distinct[0] == 0 else 1.0
            return Field(distinct.unsqueeze(-1), (Axis(distinct, weights, axis.shared, keep),), None)
    return field


def _finished(call: Call, operands: list[Signal], law: Field, shape: tuple[int, ...]) -> Signal:
    first = main(operands)
    mean, second, correlation = described(law)
    keep = first.path.keep
    own = {id(a.key) for a in (first.law.noises if first.law is not None else ())}
    for axis in law.noises:  # a mask that was multiplied in by hand
        keep *= axis.keep if id(axis.key) not in own and axis.keep < 1 else 1.0
    word = "." + call.name.partition(".")[2].strip("_")
    path = replace(first.path, words=(*first.path.words, word), keep=keep)
    axes = joined_axes(operands, shape)
    profile = next((x.profile for x in operands if x.profile is not None and x.shape == shape), None)
    made = Signal(
        mean, second, shape, axes=axes, law=law, path=path, profile=profile, inside=first.inside, turn=first.turn,
        seen=least_seen(*(x.seen for x in operands)), width=max(x.width for x in operands),
        terms=max(x.terms for x in operands),
    )  # fmt: skip
    made = made.but(correlation=correlation, statistic=_statistic(operands, law))
    if first.mixed:  # what is not linear in it decorrelates features
        share = law.linear_share(made.var) ** 2
        made = made.but(mixed=first.mixed / share if share > 1e-9 else 0.0)
    return _spread(made, operands, shape, axes) if law.large is None else made


def _statistic(operands: list[Signal], law: Field) -> float:
    """Return the number that a function of a statistic nearly is, 0 if it is no such function."""
    first = operands[0]
    if len(operands) > 1 or not first.statistic or law.large is None or law.noises:
        return 0.0
    before = first.field.full.detach().numpy()
    nodes = law.large.nodes.detach().numpy()
    at = law.large.mean if len(set(before)) < 2 else float(np.interp(first.statistic, *_rising(before, nodes)))
    return float(np.interp(at, nodes, law.full.detach().numpy()))


def _rising(values: Any, nodes: Any) -> tuple[Any, Any]:
    """Sort a monotonous function's values, with the nodes they belong to."""
    order = np.argsort(values, kind="stable")
    return values[order], nodes[order]


def _spread(made: Signal, operands: list[Signal], shape: tuple[int, ...], axes: str) -> Signal:
    """Where laws were compressed, what pairs share is known by the operands alone."""
    correlation = [broadcast(x, shape, axes).correlations for x in operands if x.law is None or x.law.large is not None]
    if not correlation:
        return made
    return made.but(
        correlation=type(correlation[0])(*(sum(column) / len(column) for column in zip(*correlation, strict=True))),
    )


POINTWISE = Rule(replayed, gradient=arithmetic_gradient, word="", call=True)
"""The rule of all pointwise ops, whatever they are called."""
