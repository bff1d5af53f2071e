"""Pointwise ops, replayed on grids."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unitvar.propagate.grid import Axis, Field, bernoulli, quantiles
from unitvar.propagate.state import State
from unitvar.rules import Moments
from unitvar.rules.moments import default_features, least_seen
from unitvar.rules.pool import total

__all__ = ["evaluate", "multiplied"]

_MOST = 256  # states of all noises together; beyond it a law is taken as a Gaussian again
_SUMS = {"aten.add": 1.0, "aten.sub": -1.0, "aten.subtract": -1.0}
_PRODUCTS = {"aten.mul", "aten.multiply"}


def evaluate(name: str, call: Callable[..., Any], args: tuple[Any, ...], shape: tuple[int, ...]) -> State | None:
    """Replay an op on the grids of its arguments.

    Args:
        name: of the op.
        call: computes it.
        args: in schema order, States for tensors.
        shape: of its output; PReLU's slopes do not broadcast as others do.

    Returns:
        The state of its output; None if the op will not run on grids.
    """
    states = [a for a in args if isinstance(a, State)]
    fields = [s.field for s in states]
    large = {id(f.large): f.large for f in fields if f.large is not None}
    if len(large) > 1:
        independent = _independent(name, args, shape)
        if independent is not None:
            return independent
        fields = [_compressed(f) for f in fields]
        large = {}
    axis = next(iter(large.values()), None)
    noises: list[Axis] = []
    for field in fields:
        noises += [a for a in field.noises if not any(a is b for b in noises)]
    if axis is not None and math.prod(len(a.nodes) for a in noises) > _MOST:
        return _independent(name, args, shape)
    order = {id(a): i for i, a in enumerate(noises)}
    rows = iter([_laid_out(f, noises, order) for f in fields])
    values = [next(rows) if isinstance(a, State) else a for a in args]
    try:
        with torch.enable_grad():
            out = call(*values)
    except (RuntimeError, TypeError, NotImplementedError, IndexError):
        return None
    if not isinstance(out, Tensor):
        return None
    if out.is_floating_point() and not out.isfinite().all():
        out = _without(out.isfinite(), call, values)
    if out.dtype != torch.float64:
        out = out.double()
    if out.dim() != len(noises) + 1:
        out = out.expand(*(1,) * len(noises), -1) if out.dim() == 1 else out
    result = _tidied(Field(out, tuple(noises), axis))
    main = _main(states)
    made = State(field=result, shape=shape, words=main.words, depth=main.depth, features=_features(states, shape),
                 profile=_profile(states, shape),
                 seen=least_seen(*(s.seen for s in states)), keep=main.keep, chi=main._chi, slope=main._slope,
                 last=main.last, positions=any(s.positions for s in states))  # fmt: skip
    if axis is None:
        made._chi = main.chi
    return made


def _without(good: Tensor, call: Callable[..., Any], values: list[Any]) -> Tensor:
    """Replay with the middle instead of nodes where an op has no value: a mean of squares is never negative."""
    mended = [
        torch.where(good.expand_as(v), v, v.detach().mean()) if isinstance(v, Tensor) and v.shape == good.shape else v
        for v in values
    ]
    with torch.enable_grad():
        out: Tensor = call(*mended)
    return out.nan_to_num()


def _laid_out(field: Field, noises: list[Axis], order: dict[int, int]) -> Tensor:
    """Put a field's dimensions in the order of all noises."""
    if not noises:
        return field.values
    wanted = sorted(range(len(field.noises)), key=lambda i: order[id(field.noises[i])])
    values = field.values.permute(*wanted, -1) if wanted != list(range(len(wanted))) else field.values
    return Field(values, tuple(field.noises[i] for i in wanted), field.large).aligned(noises)


def _main(states: list[State]) -> State:
    """Choose the operand whose path tells most: the deepest, then the one nearest to its weight."""
    return max(states, key=lambda s: s.rank)


def _features(states: list[State], shape: tuple[int, ...]) -> int | None:
    """Choose the dimension of features; where operands differ, as after mixing tokens, the usual one."""
    found = [s.features for s in states if len(s.shape) == len(shape) and s.features is not None]
    usual = default_features(shape)
    return usual if usual in found else found[0] if found else None


def _aligned(state: State, features: int | None, shape: tuple[int, ...]) -> Moments:
    """Give moments whose pairs of positions are those of the result."""
    same = features is None or len(state.shape) != len(shape)
    return state.moments if same else state.moments.along(features)  # type: ignore[arg-type]


def _profile(states: list[State], shape: tuple[int, ...]) -> Any:
    return next((s.profile for s in states if s.profile is not None and s.shape == shape), None)


def _compressed(field: Field) -> Field:
    if field.large is None and math.prod(len(a.nodes) for a in field.noises) <= 32:
        return field
    axis = quantiles(field, 32)
    return Field(axis.nodes.unsqueeze(-1), (axis,), None)


def _tidied(field: Field) -> Field:
    """Merge nodes of equal value where noise was thresholded, and drop noises that no longer matter."""
    if field.large is None and len(field.noises) == 1 and len(field.noises[0].nodes) > 16:
        axis = field.noises[0]
        values = field.values.detach().expand(len(axis.nodes), 1)[:, 0]
        distinct, inverse = torch.unique(values, return_inverse=True)
        if len(distinct) <= 16:
            weights = torch.zeros(len(distinct), dtype=torch.float64, device="cpu").index_add_(0, inverse, axis.weights)
            keep = float(weights[-1]) if len(distinct) == 2 and distinct[0] == 0 else 1.0
            merged = Axis(distinct, weights, shared=axis.shared, keep=keep)
            return Field(distinct.unsqueeze(-1), (merged,), None)
    return field


def _independent(name: str, args: tuple[Any, ...], shape: tuple[int, ...]) -> State | None:
    """Combine operands of different origin by their moments."""
    states = [a for a in args if isinstance(a, State)]
    if len(states) != 2 or not all(isinstance(a, State) for a in args[:2]):
        return None
    a, b = states
    features = _features(states, shape)
    x, y = (_aligned(s, features, shape) for s in states)
    main = _main(states)
    if name in _SUMS:
        alpha = args[2] if len(args) > 2 and isinstance(args[2], (int, float)) else 1
        y = y.scaled(_SUMS[name] * alpha)
        out = total([x, y])
        share = x.second + y.second
        chi = (x.second * a.chi + y.second * b.chi) / share if share > 0 else 1.0
        slope = main.slope
        words = (*main.words, "add")
    elif name in _PRODUCTS:
        out = x.like(mean=x.mean * y.mean, second=x.second * y.second, cross=x.pair * y.pair)
        chi, slope = a.chi + b.chi if min(a.rank, b.rank)[0] > 0 else main.chi, main.slope
        slope *= (y if main is a else x).second
        words = (*main.words, "mul")
    else:
        return None
    return State(
        out.like(shape=shape, features=None, seen=least_seen(a.seen, b.seen)), words=words, chi=chi, depth=main.depth,
        slope=slope, keep=main.kept, features=features, last=main.last, profile=_profile(states, shape),
        positions=any(s.positions for s in states),
    )  # fmt: skip


def multiplied(x: State, keep: float, *, shared: bool) -> State:
    """Multiply by a Bernoulli mask over its keep rate: what every dropout does."""
    field = x.field
    if math.prod(len(a.nodes) for a in field.noises) * 2 > _MOST:
        moments = x.moments
        made = moments.like(second=moments.second / keep, cross=moments.pair / (keep if shared else 1.0))
        return State(made, words=x.words, chi=x.chi, depth=x.depth, slope=x.slope / keep, keep=x.kept * keep,
                     features=x.features, last=x.last, profile=x.profile, positions=x.positions)  # fmt: skip
    axis = bernoulli(keep, shared=shared)
    mask = (axis.nodes / keep).unsqueeze(-1)
    with torch.enable_grad():
        values = field.values.unsqueeze(-2) * mask
    return State(field=Field(values, (*field.noises, axis), field.large), shape=x.shape, words=x.words, depth=x.depth,
                 features=x.features, keep=x.keep, chi=x._chi, slope=x._slope, last=x.last,
                 profile=x.profile, positions=x.positions)  # fmt: skip
