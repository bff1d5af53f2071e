"""Means, sums, extremes and norms along dimensions."""

from __future__ import annotations

import math
from typing import Any

import torch

from unitvar.moments.combine import multiplied, stacked
from unitvar.moments.law import Field
from unitvar.moments.rule import builtin
from unitvar.moments.signal import Signal

__all__: list[str] = []

_MANY = 1e6  # examples: as many as it takes
_SELF_AVERAGING = 8  # terms from which on an average is nearly a number


def _reduced(x: Signal, dim: Any, keepdim: bool) -> tuple[tuple[int, ...], str, dict[str, float]]:
    """Return shape and axes after a reduction, and how many elements of each kind go into one."""
    n = len(x.shape)
    every = dim is None or dim in ((), [])
    dims = set(range(n)) if every else {d % n for d in ([dim] if isinstance(dim, int) else dim)} if n else set()
    kept = [d for d in range(n) if keepdim or d not in dims]
    terms: dict[str, float] = {}
    for d in dims:
        terms[x.axes[d]] = terms.get(x.axes[d], 1.0) * x.shape[d]
    return tuple(1 if d in dims else x.shape[d] for d in kept), "".join(x.axes[d] for d in kept), terms


def _read(dim: Any, keepdim: Any) -> tuple[Any, bool]:
    """Read arguments, of which there may be only a dtype."""
    return (None, False) if not isinstance(keepdim, bool) or hasattr(dim, "itemsize") else (dim, keepdim)


def _copied(g: Signal, x: Signal, terms: dict[str, float]) -> Signal:
    """Repeat a gradient along what was summed over."""
    correlation = g.correlations
    if "p" in terms:
        correlation = correlation.with_positions(1.0)
    if "f" in terms:
        correlation = correlation._replace(features=1.0)
    return g.like(shape=x.shape, axes=x.axes, correlation=correlation)


def _sum_gradient(g: Signal, x: Signal, dim: Any = None, keepdim: Any = False, *_: Any) -> tuple[Signal]:
    return (_copied(g, x, _reduced(x, *_read(dim, keepdim))[2]),)


def _mean_gradient(g: Signal, x: Signal, dim: Any = None, keepdim: Any = False, *_: Any) -> tuple[Signal]:
    terms = _reduced(x, *_read(dim, keepdim))[2]
    return (_copied(g, x, terms).scaled(1 / math.prod(terms.values())),)


@builtin("mean", word="mean", gradient=_mean_gradient)
def mean(x: Signal, dim: Any = None, keepdim: Any = False, *_: Any) -> Signal:
    terms = _reduced(x, *_read(dim, keepdim))[2]
    made = sum_(x, dim, keepdim)
    share = 1 / max(1.0, math.prod(terms.values()))
    return made.scaled(share, statistic=made.statistic * share, average_of=x.origin)


@builtin("sum", word="sum", gradient=_sum_gradient)
def sum_(x: Signal, dim: Any = None, keepdim: Any = False, *_: Any) -> Signal:
    dim, keepdim = _read(dim, keepdim)
    shape, axes, terms = _reduced(x, dim, keepdim)
    if (
        x.parts
        and x.axes[x.joined] != "p"
        and _only(dim, len(x.shape)) == x.joined
        and len(x.parts) == x.shape[x.joined]
    ):
        return stacked(x.parts, shape, axes).like(path=x.path)
    batch = terms.get("b", 1.0)
    if batch > 1:  # a plan is not for the example's batch alone: the mean of a batch is that of many
        made = x.summed({**terms, "b": _MANY}, shape=shape, axes=axes, profile=None).scaled(batch / _MANY)
    else:
        made = x.summed(terms, shape=shape, axes=axes, profile=None)
    return made.like(statistic=made.mean if _is_statistic(x, made, math.prod(terms.values())) else 0.0)


def _only(dim: Any, n: int) -> int | None:
    """Return the one dimension that is reduced; None if there are several."""
    if isinstance(dim, int):
        return dim % n
    return dim[0] % n if dim is not None and len(dim) == 1 else None


def _is_statistic(x: Signal, made: Signal, count: float) -> bool:
    """Return True for an average of many numbers that are never negative, such as squares."""
    positive = x.law is not None and float(x.law.values.detach().min()) >= 0
    return positive and count >= _SELF_AVERAGING and made.var < 0.5 * made.mean**2


def _extreme_gradient(g: Signal, x: Signal, dim: Any = None, keepdim: Any = False) -> tuple[Signal]:
    """Hand all energy to the largest element."""
    terms = _reduced(x, dim, bool(keepdim))[2]
    count = math.prod(terms.values())
    return (g.like(second=g.second / count, shape=x.shape, axes=x.axes, winners=count),)


def _extreme(x: Signal, dim: Any, keepdim: Any, largest: bool) -> tuple[Signal, Signal]:
    shape, axes, terms = _reduced(x, dim, bool(keepdim))
    kind = "positions" if set(terms) == {"p"} else "features"
    top = (x.maximum if largest else x.minimum)(math.prod(terms.values()), kind)
    return top.like(shape=shape, axes=axes, profile=None), Signal(0.0, 0.0, shape)


# max and min of two tensors, ``.other``, are pointwise: replayed.
@builtin("max.default", "max.dim", "amax", word="max", gradient=_extreme_gradient)
def amax(x: Signal, dim: Any = None, keepdim: Any = False) -> tuple[Signal, Signal]:
    return _extreme(x, dim, keepdim, True)


def _least_gradient(g: Signal, x: Signal, dim: Any = None, keepdim: Any = False) -> tuple[Signal]:
    (made,) = _extreme_gradient(g, x, dim, keepdim)
    return (made.like(winners=-made.winners),)


@builtin("min.default", "min.dim", "amin", word="min", gradient=_least_gradient)
def amin(x: Signal, dim: Any = None, keepdim: Any = False) -> tuple[Signal, Signal]:
    return _extreme(x, dim, keepdim, False)


def _inside(x: Signal, terms: dict[str, float]) -> tuple[float, float]:
    """Return the variance inside what is reduced, and how many independent numbers it is an average of."""
    n = max(1.0, math.prod(terms.values()))
    many = {**terms, "b": _MANY} if terms.get("b", 1.0) > 1 else terms
    whole = x.summed(many).scaled(1 / math.prod(many.values()))
    return max(1e-30, x.second - whole.second), n


@builtin("var", "var_mean", word="var")
def var(x: Signal, dim: Any = None, unbiased: Any = True, keepdim: bool = False, *_: Any) -> tuple[Signal, Signal]:
    dim = None if isinstance(dim, bool) else dim
    shape, axes, terms = _reduced(x, dim, keepdim)
    inner, count = _inside(x, terms)
    inner *= count / (count - 1) if unbiased not in (False, 0) and count > 1 else 1.0
    spread = 2 / max(2.0, count)
    made = x.like(mean=inner, second=inner**2 * (1 + spread), shape=shape, axes=axes, profile=None)
    return made.like(statistic=inner if count >= _SELF_AVERAGING else 0.0), mean(x, dim, keepdim)


@builtin("std", "std_mean", word="std")
def std(x: Signal, *rest: Any) -> tuple[Signal, Signal]:
    square, average = var(x, *rest)
    spread = square.second / square.mean**2 - 1  # the root of a sum of squares has a quarter of its relative variance
    made = square.like(mean=math.sqrt(square.mean) * (1 - spread / 8), second=square.mean)
    return made.like(statistic=math.sqrt(square.statistic)), average


@builtin("linalg_vector_norm", "norm", word="norm")
def norm(x: Signal, order: Any = 2, dim: Any = None, keepdim: bool = False, *_: Any) -> Signal | None:
    if order not in (2, None):
        return None
    shape, axes, terms = _reduced(x, dim if not hasattr(dim, "itemsize") else None, keepdim)  # or a dtype
    count = max(1.0, math.prod(terms.values()))
    first = math.sqrt(x.second * count) * (1 - 1 / (4 * count))  # as in std
    made = x.like(mean=first, second=x.second * count, shape=shape, axes=axes, profile=None)
    return made.like(statistic=math.sqrt(made.second) if count >= _SELF_AVERAGING else 0.0)


@builtin("glu", word="glu")
def glu(x: Signal, dim: int = -1) -> Signal:
    """One half is multiplied by the sigmoid of the other."""
    field = x.field
    gate = Field(torch.sigmoid(field.values), field.noises, field.large)
    mean, second = gate.moments()
    gates = x.like(mean=mean, second=second, correlation=gate.correlation(mean, second))
    shape = tuple(s // 2 if i == dim % len(x.shape) else s for i, s in enumerate(x.shape))
    return multiplied(x, gates, x.shape).like(shape=shape)
