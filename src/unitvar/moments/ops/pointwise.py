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
from unitvar.moments.axes import features_in
from unitvar.moments.combine import added, broadcast, centred, joined_axes, multiplied
from unitvar.moments.correlation import KINDS
from unitvar.moments.law import Axis, Field, constant, quantiles
from unitvar.moments.ops.fine import finer_moments, is_plain
from unitvar.moments.ops.noise import MOST
from unitvar.moments.ops.views import gathered, picked
from unitvar.moments.rule import Call, Rule
from unitvar.moments.signal import Origin, Path, Signal, least_seen

__all__ = ["POINTWISE", "is_sum", "replayed"]

# A grid is float64 on the CPU, whatever the model computes in and where.
_UNUSED = {"dtype", "layout", "device", "pin_memory", "memory_format"}
_LOGICAL = ("aten.bitwise", "aten.logical", "aten.__")
_MASKS = {"aten.where": 0, "aten.masked_fill": 1}  # name → which argument is a mask
_SUMS = {"aten.add": 1.0, "aten.sub": -1.0, "aten.subtract": -1.0}
_PRODUCTS = {"aten.mul", "aten.multiply"}
_QUOTIENTS = {"aten.div", "aten.divide", "aten.true_divide"}
_TERMS = 32  # of a sum that are remembered
_COARSE = 32  # nodes of a law that had to be taken for noise


def is_sum(name: str) -> bool:
    """Return True if an op adds its first two arguments."""
    return name == "aten.add"


def replayed(call: Call) -> Signal | None:
    """Follow signals through a pointwise op; None if it cannot be replayed."""
    if any(isinstance(a, tuple) and any(isinstance(t, Signal) for t in a) for a in call.args):
        return None
    call = _told_apart(call)
    operands = [a for a in call.args if isinstance(a, Signal)]
    if not operands:
        return None
    shape = call.shapes[0]
    combined = _combined(call, operands, shape)
    if combined is not None:
        return combined
    fields = [x.field for x in operands]
    if len({id(f.large.key) for f in fields if f.large is not None}) > 1:
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
    made = _finished(call, operands, _tidied(Field(out, tuple(noises), large)), shape)
    return made if len(operands) > 1 or is_plain(call.name) else _refined(call, operands[0], made)


def _told_apart(call: Call) -> Call:
    """Take one tensor in two places, as x and its transpose are, for other elements with the same law."""
    met: dict[int, Signal] = {}
    args = list(call.args)
    for i, x in enumerate(args):
        if not isinstance(x, Signal) or x.origin is None:
            continue
        large = x.field.large
        first = None if large is None else met.setdefault(id(large.key), x)
        if first is not None and (first.shape, first.turn) != (x.shape, x.turn) and _many(first) and _many(x):
            args[i] = replace(picked(x, x.shape, x.axes), origin=Origin(x.origin.home, x.origin.chi))
    for i, x in enumerate(args):
        if isinstance(x, Signal) and x.law is None and len(x.sum_of) == 1:
            args[i] = _unnormalised(x, [a for j, a in enumerate(args) if j != i and isinstance(a, Signal)])
    return replace(call, args=tuple(args))


def _unnormalised(x: Signal, others: list[Signal]) -> Signal:
    """Take what a norm made of a signal for a multiple of it, where it meets that signal again."""
    ((factor, term),) = x.sum_of
    field = term.field
    same = [a for a in others if a.shape == term.shape == x.shape and a.turn == term.turn]
    keys = {id(a.field.large.key) for a in same if a.field.large is not None}
    if field.large is None or id(field.large.key) not in keys:
        return x
    law = Field(factor * field.values + (x.mean - factor * term.mean), field.noises, field.large)
    return replace(x, law=law, origin=None, turn=term.turn)


def _many(x: Signal) -> bool:
    return math.prod(x.shape) > 1


def _refined(call: Call, x: Signal, made: Signal) -> Signal:
    """Take the moments between the nodes, where a function is finer than they are."""

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


def _main(operands: list[Signal]) -> Signal:
    """Choose the operand whose path tells most: the deepest, then the one nearest to its weight."""
    return max(operands, key=lambda x: x.path.rank)


def _finished(call: Call, operands: list[Signal], law: Field, shape: tuple[int, ...]) -> Signal:
    main = _main(operands)
    mean, second = law.moments()
    keep = main.path.keep
    own = {id(a.key) for a in (main.law.noises if main.law is not None else ())}
    for axis in law.noises:  # a mask that was multiplied in by hand
        keep *= axis.keep if id(axis.key) not in own and axis.keep < 1 else 1.0
    word = "." + call.name.partition(".")[2].strip("_")
    path = replace(main.path, words=(*main.path.words, word), keep=keep)
    axes = joined_axes(operands, shape)
    profile = next((x.profile for x in operands if x.profile is not None and x.shape == shape), None)
    made = Signal(
        mean, second, shape, axes=axes, law=law, path=path, profile=profile, inside=main.inside, turn=main.turn,
        seen=least_seen(*(x.seen for x in operands)), width=max(x.width for x in operands),
        terms=max(x.terms for x in operands),
    )  # fmt: skip
    made = replace(made, correlation=law.correlation(mean, second), statistic=_statistic(operands, law))
    if main.rank:  # what is not linear in it decorrelates features
        n = float(features_in(made.inside))
        share = law.linear_share(made.var) ** 2
        made = replace(made, rank=1 / (1 / n + share * max(0.0, 1 / main.participating - 1 / n)))
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
    alike = [broadcast(x, shape, axes).alike for x in operands if x.law is None or x.law.large is not None]
    if not alike:
        return made
    return replace(
        made, correlation=type(alike[0])(*(sum(column) / len(column) for column in zip(*alike, strict=True)))
    )


def _combined(call: Call, operands: list[Signal], shape: tuple[int, ...]) -> Signal | None:
    """Combine operands of different origin by their moments, and sums, which have no law of one Gaussian."""
    numbers = [a for a in call.args if isinstance(a, (int, float)) and not isinstance(a, bool)]
    name = call.name
    if len(operands) == 1 and operands[0].law is None and operands[0].total is not None and numbers:
        factor = numbers[0] if name in _PRODUCTS else 1 / numbers[0] if name in _QUOTIENTS and numbers[0] else 0.0
        return operands[0].scaled(factor, path=operands[0].path) if factor else None
    if len(operands) != 2 or not all(isinstance(a, Signal) for a in call.args[:2]):
        return None
    a, b = operands
    if name in _PRODUCTS or name in _QUOTIENTS:
        a, b = _number_for_statistic(a), _number_for_statistic(b)
        regrouped = _regrouped(call, a, b, shape) or _by_own_term(call, a, b, shape)
        if regrouped is not None:
            return regrouped
    fields = a.field, b.field
    keys = {id(f.large.key) for f in fields if f.large is not None}
    states = math.prod(len(x.nodes) for f in fields for x in f.noises)
    simplex = a.total is not None or b.total is not None
    if len(keys) < 2 and states <= MOST and not simplex and a is operands[0] and b is operands[1]:
        return None
    if name in _SUMS:
        alpha = call.args[2] if len(call.args) > 2 and isinstance(call.args[2], (int, float)) else 1
        own = b.average_of is not None and b.average_of is a.origin and _SUMS[name] * alpha == -1
        if own:
            made, word = centred(a, b, shape), "centre"
        else:
            made, word = _sum(a, b, _SUMS[name] * alpha, shape), "add"
    elif name in _PRODUCTS:
        made, word = multiplied(a, b, shape), "mul"
        made = made.like(total=_kept_total(a, b, shape), factors=(a, b) if len(keys) > 1 else ())
    elif name in _QUOTIENTS and len(call.args) == 2:
        inverse = _inverse(b)
        if inverse is None:
            return None
        made, word = multiplied(a, inverse, shape), "div"
    else:
        return None
    main = _main(operands)
    seen = least_seen(a.seen, b.seen)
    profile = next((x.profile for x in operands if x.profile is not None and x.shape == shape), None)
    scores = {"width": max(a.width, b.width), "terms": max(a.terms, b.terms)}
    path = main.path.then(word)
    kept = {"factors": made.factors, "sum_of": made.sum_of}
    return made.like(path=path, seen=seen, profile=profile, **kept, **scores)


def _sum(a: Signal, b: Signal, alpha: float, shape: tuple[int, ...]) -> Signal:
    """Add two tensors; terms that both have in common, as a stream that is added again, add up before squaring."""
    for product, other, one, two in ((a, b, 1.0, alpha), (b, a, alpha, 1.0)):
        for i, common in enumerate(product.factors):
            if common.origin is not None and common.origin is other.origin:  # x y + x is x (y + 1)
                rest = product.factors[1 - i].scaled(one)
                mean = rest.mean + two
                more = rest.related(
                    {k: rest.pair(k) + 2 * two * rest.mean + two**2 for k in KINDS},
                    mean=mean, second=rest.second + 2 * two * rest.mean + two**2,
                )  # fmt: skip
                return multiplied(common, more, shape)
    terms: dict[tuple[int, tuple[int, ...]], tuple[float, Signal]] = {}
    again = False
    for sign, x in ((1.0, a), (alpha, b)):
        for factor, term in x.sum_of or ((1.0, x),):
            key = id(term.origin), term.turn
            again |= key in terms
            terms[key] = sign * factor + (terms[key][0] if key in terms else 0.0), term
    if again:
        made, *later = [term.scaled(factor, path=term.path) for factor, term in terms.values()]
        for term in later:
            made = added(made, term, shape)
        off = a.mean + alpha * b.mean - made.mean  # a norm between has taken means away
        pairs = {k: made.pair(k) + 2 * off * made.mean + off**2 for k in KINDS}
        second = max((made.mean + off) ** 2, made.second + 2 * off * made.mean + off**2)
        made = made.related(pairs, mean=made.mean + off, second=second, shape=shape)
    else:
        made = added(a, b.scaled(alpha, path=b.path), shape)
    va, vb = a.var, b.var * alpha**2
    rank = (va + vb) ** 2 / (va**2 / a.participating + vb**2 / b.participating) if va + vb > 0 else 0.0
    return made.like(sum_of=tuple(terms.values()) if len(terms) <= _TERMS else (), rank=rank)


def _number_for_statistic(x: Signal) -> Signal:
    """Take a statistic of many elements for the number that it nearly is.

    What it normalises has, then, just the size that it is normalised to; independent of it, it would not.
    """
    if not x.statistic:
        return x
    return x.like(mean=x.statistic, second=x.statistic**2, law=constant(x.statistic))


def _by_own_term(call: Call, a: Signal, b: Signal, shape: tuple[int, ...]) -> Signal | None:
    """Multiply a sum by one of its terms: (c t + r) t has c² E t⁴ + 2 c E t³ E r + E t² E r²."""
    if call.name not in _PRODUCTS:
        return None
    for whole, t in ((a, b), (b, a)):
        found = [c for c, term in whole.sum_of if term.origin is not None and term.origin is t.origin]
        if len(found) != 1 or len(whole.sum_of) < 2:
            continue
        c, field = found[0], t.field
        v = field.full.detach()
        third, fourth = float(field.expected(v**3)), float(field.expected(v**4))
        rest = whole.mean - c * t.mean
        square = max(rest**2, whole.second - c**2 * t.second - 2 * c * t.mean * rest)
        mean = c * t.second + rest * t.mean
        second = max(mean**2, c**2 * fourth + 2 * c * third * rest + square * t.second)
        return multiplied(a, b, shape).like(mean=mean, second=second, path=_main([a, b]).path.then("mul"))
    return None


def _regrouped(call: Call, a: Signal, b: Signal, shape: tuple[int, ...]) -> Signal | None:
    """Multiply by the factor of a product that goes back to the same Gaussian: (x y) f(x) is (x f(x)) y."""
    if call.name not in _PRODUCTS:
        return None
    for product, other in ((a, b), (b, a)):
        large = other.field.large
        for i, factor in enumerate(product.factors):
            own = factor.field.large
            if large is None or own is None or own.key is not large.key:
                continue
            pair = replayed(replace(call, args=(factor, other), shapes=(factor.shape,)))
            if pair is not None:
                rest = product.factors[1 - i]
                made = multiplied(pair, rest, shape)
                return made.like(path=_main([a, b]).path.then("mul"), factors=(pair, rest))
    return None


def _kept_total(a: Signal, b: Signal, shape: tuple[int, ...]) -> float | None:
    """Rows of a softmax under a mask of mean one, as a dropout by hand is, have the same sum in the mean."""
    for x, other in ((a, b), (b, a)):
        if x.total is not None and x.shape == shape and other.total is None:
            return x.total * other.mean
    return None


def _inverse(x: Signal) -> Signal | None:
    field = x.field
    values = 1 / field.values
    if not values.isfinite().all():
        return None
    law = Field(values, field.noises, field.large)
    mean, second = law.moments()
    return replace(x, mean=mean, second=second, law=law, correlation=law.correlation(mean, second))


def _gradient(g: Any, call: Call) -> tuple[Signal | None, ...] | None:
    """Return the gradients of operands that go back to different Gaussians; None if they have to be drawn."""
    operands = [a for a in call.args if isinstance(a, Signal)]
    name, out = call.name, next(part for part in g if part is not None)
    if len(operands) == 2 and all(isinstance(a, Signal) for a in call.args[:2]):
        a, b = operands
        if name in _SUMS:
            alpha = call.args[2] if len(call.args) > 2 and isinstance(call.args[2], (int, float)) else 1
            return gathered(out, a), gathered(out.scaled(alpha), b)
        if name in _PRODUCTS:
            return _weighed(out, b, a), _weighed(out, a, b)
        if name in _QUOTIENTS:
            inverse = _inverse(b)
            if inverse is not None:
                return _weighed(out, inverse, a), None
    elif len(operands) == 1 and name in _SUMS:
        return (out,)
    elif len(operands) == 1 and name in _PRODUCTS:
        number = next(x for x in call.args if isinstance(x, (int, float)) and not isinstance(x, bool))
        return (out.scaled(float(number)),)
    return None


def _weighed(g: Signal, factor: Signal, x: Signal) -> Signal:
    """Multiply a gradient by the other factor, and add up what copies of an operand get."""
    return gathered(multiplied(g, replace(factor, path=Path()), g.shape), x)


POINTWISE = Rule(replayed, gradient=_gradient, word="", call=True)
"""The rule of all pointwise ops, whatever they are called."""
