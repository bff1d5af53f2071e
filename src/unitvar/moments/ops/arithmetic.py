"""Sums, products and quotients of tensors that go back to different Gaussians: by their moments."""

from __future__ import annotations

import math
from typing import Any

from unitvar.moments.combine import added, centred, multiplied
from unitvar.moments.correlation import KINDS
from unitvar.moments.law import Field, constant
from unitvar.moments.ops.noise import MOST
from unitvar.moments.ops.views import gathered
from unitvar.moments.rule import Call
from unitvar.moments.signal import Path, Signal, least_seen

__all__ = [
    "PRODUCTS",
    "QUOTIENTS",
    "SUMS",
    "arithmetic_gradient",
    "combined",
    "is_sum",
    "is_sum_or_difference",
    "main",
    "number_for_statistic",
]

SUMS = {"aten.add": 1.0, "aten.sub": -1.0, "aten.subtract": -1.0}
PRODUCTS = {"aten.mul", "aten.multiply"}
QUOTIENTS = {"aten.div", "aten.divide", "aten.true_divide"}
_TERMS = 32  # of a sum that are remembered


def is_sum(name: str) -> bool:
    """Return True if an op adds its first two arguments."""
    return name == "aten.add"


def is_sum_or_difference(name: str) -> bool:
    """Return True if an op adds its second argument to the first, or subtracts it."""
    return name in SUMS


def main(operands: list[Signal]) -> Signal:
    """Choose the operand whose path tells most: the deepest, then the one nearest to its weight."""
    return max(operands, key=lambda x: x.path.rank)


def combined(call: Call, operands: list[Signal], shape: tuple[int, ...]) -> Signal | None:
    """Combine operands of different origin by their moments, and sums, which have no law of one Gaussian."""
    numbers = [a for a in call.args if isinstance(a, (int, float)) and not isinstance(a, bool)]
    name = call.name
    if len(operands) == 1 and operands[0].law is None and operands[0].total is not None and numbers:
        factor = numbers[0] if name in PRODUCTS else 1 / numbers[0] if name in QUOTIENTS and numbers[0] else 0.0
        return operands[0].scaled(factor, path=operands[0].path) if factor else None
    if len(operands) != 2 or not all(isinstance(a, Signal) for a in call.args[:2]):
        return None
    a, b = operands
    if name in PRODUCTS or name in QUOTIENTS:
        a, b = number_for_statistic(a), number_for_statistic(b)
    fields = a.field, b.field
    keys = {id(f.large.key) for f in fields if f.large is not None}
    states = math.prod(len(x.nodes) for f in fields for x in f.noises)
    simplex = a.total is not None or b.total is not None
    if len(keys) < 2 and states <= MOST and not simplex and a is operands[0] and b is operands[1]:
        return None
    if name in SUMS:
        alpha = call.args[2] if len(call.args) > 2 and isinstance(call.args[2], (int, float)) else 1
        own = b.average_of is not None and b.average_of is a.origin and SUMS[name] * alpha == -1
        if own:
            made, word = centred(a, b, shape), "centre"
        else:
            made, word = _sum(a, b, SUMS[name] * alpha, shape), "add"
    elif name in PRODUCTS:
        made, word = multiplied(a, b, shape), "mul"
        made = made.like(total=_kept_total(a, b, shape))
    elif name in QUOTIENTS and len(call.args) == 2:
        inverse = _inverse(b)
        if inverse is None:
            return None
        made, word = multiplied(a, inverse, shape), "div"
    else:
        return None
    seen = least_seen(a.seen, b.seen)
    profile = next((x.profile for x in operands if x.profile is not None and x.shape == shape), None)
    scores = {"width": max(a.width, b.width), "terms": max(a.terms, b.terms)}
    path = main(operands).path.then(word)
    return made.like(path=path, seen=seen, profile=profile, sum_of=made.sum_of, **scores)


def _sum(a: Signal, b: Signal, alpha: float, shape: tuple[int, ...]) -> Signal:
    """Add two tensors; terms that both have in common, as a stream that is added again, add up before squaring."""
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
    return made.like(sum_of=tuple(terms.values()) if len(terms) <= _TERMS else (), mixed=_mixed(a, b, alpha))


def _mixed(a: Signal, b: Signal, alpha: float) -> float:
    """Return what the features of a sum are mixed from: the covariances of independent terms add."""
    if a.mixed == b.mixed and a.path.last == b.path.last:  # parts of one tensor, as in rotary positions
        return a.mixed
    va, vb = a.var, b.var * alpha**2
    apart = sum(var**2 / term.mixed for var, term in ((va, a), (vb, b)) if term.mixed)
    return (va + vb) ** 2 / apart if apart else 0.0


def number_for_statistic(x: Signal) -> Signal:
    """Replace a statistic of many elements by its mean.

    A mean square that divides its own tensor is not independent of it; as a number it gives the quotient unit size.
    """
    if not x.statistic:
        return x
    return x.like(mean=x.statistic, second=x.statistic**2, law=constant(x.statistic))


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
    return x.but(mean=mean, second=second, law=law, correlation=law.correlation(mean, second))


def arithmetic_gradient(g: Any, call: Call) -> tuple[Signal | None, ...] | None:
    """Return the gradients of operands that go back to different Gaussians; None if they have to be drawn."""
    operands = [a for a in call.args if isinstance(a, Signal)]
    name, out = call.name, next(part for part in g if part is not None)
    if len(operands) == 2 and all(isinstance(a, Signal) for a in call.args[:2]):
        a, b = operands
        if name in SUMS:
            alpha = call.args[2] if len(call.args) > 2 and isinstance(call.args[2], (int, float)) else 1
            return gathered(out, a), gathered(out.scaled(alpha), b)
        if name in PRODUCTS:
            return _weighed(out, b, a), _weighed(out, a, b)
        if name in QUOTIENTS:
            inverse = _inverse(b)
            if inverse is not None:
                return _weighed(out, inverse, a), None
    elif len(operands) == 1 and name in SUMS:
        return (out,)
    elif len(operands) == 1 and name in PRODUCTS:
        number = next(x for x in call.args if isinstance(x, (int, float)) and not isinstance(x, bool))
        return (out.scaled(float(number)),)
    return None


def _weighed(g: Signal, factor: Signal, x: Signal) -> Signal:
    """Multiply a gradient by the other factor, and add up what copies of an operand get."""
    return gathered(multiplied(g, factor.but(path=Path()), g.shape), x)
