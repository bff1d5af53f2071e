"""Randomness: what the dropouts do, and what fresh noise looks like."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from unitvar.moments import axes as labels
from unitvar.moments.law import Axis, Field, bernoulli, constant, uniform
from unitvar.moments.rule import Call, builtin
from unitvar.moments.signal import Path, Signal

__all__ = ["dropped", "dropped_gradient", "met_together"]

MOST = 256  # states of all noises together; beyond it a law is taken as a Gaussian again
_ELEMENTS: frozenset[str] = frozenset()
_CHANNELS = frozenset({"positions", "neighbours"})  # one mask covers all positions of a feature
_FIXED = frozenset({"examples", "masks"})


def met_together(shape: tuple[int, ...], *, fixed: bool = False) -> frozenset[str]:
    """Return the kinds of pairs that a tensor of this shape gives the same number: it repeats where its size is one."""
    axes = labels.default(shape)
    sizes = {c: math.prod(n for n, a in zip(shape, axes, strict=True) if a == c) for c in "bfp"}
    # A batch of one is a batch still, if there is a dimension for it.
    kinds = {kind for c, kind in labels.KIND.items() if (sizes[c] == 1 if c != "b" else "b" not in axes)}
    kinds |= {"neighbours"} if sizes["p"] == 1 else set()
    return frozenset(kinds | _FIXED if fixed else kinds)


def dropped(x: Signal, keep: float, shared: frozenset[str] = _ELEMENTS) -> Signal:
    """Multiply by a Bernoulli mask over its keep rate: what every dropout does."""
    if keep >= 1:
        return x
    path = replace(x.path, keep=x.path.keep * keep)
    if (x.law is None and x.total is not None) or math.prod(len(a.nodes) for a in x.field.noises) * 2 > MOST:
        return x.related(_masked_pairs(x, keep, shared), second=x.second / keep, path=path)
    field = x.field
    axis = bernoulli(keep, shared)
    with torch.enable_grad():
        values = field.values.unsqueeze(-2) * (axis.nodes / keep).unsqueeze(-1)
    law = Field(values, (*field.noises, axis), field.large)
    mean, second = x.mean, x.second / keep
    correlation = x.related(_masked_pairs(x, keep, shared), mean=mean, second=second).correlation
    return x.but(mean=mean, second=second, law=law, correlation=correlation, path=path, origin=None)


def _masked_pairs(x: Signal, keep: float, shared: frozenset[str]) -> dict[str, float]:
    """Return E x_1 x_2 under a mask: one of its own for each element leaves what two of them share."""
    return {k: x.pair(k) / (keep if k in shared else 1.0) for k in x.correlations._fields}


def dropped_gradient(g: Signal, keep: float, shared: frozenset[str] = _ELEMENTS) -> Signal:
    """Multiply a gradient by the mask."""
    if keep >= 1 or keep <= 0:
        return g if keep >= 1 else g.like(second=0.0)
    return g.related(_masked_pairs(g, keep, shared), second=g.second / keep)


def _word(kind: str) -> Any:
    def word(x: Any, p: float, train: Any = True, *_: Any) -> str:
        return f"{kind}dropout {p:g}" if train is not False and 0 < p < 1 else ""

    return word


def _dropout(shared: frozenset[str]) -> tuple[Any, Any]:
    def forward(x: Signal, p: float, train: Any = True, *_: Any) -> tuple[Signal, Signal]:
        if train is False or p == 0:
            return x, Signal(1.0, 1.0, x.shape)
        if p >= 1:
            return _level(x.shape, 0.0), Signal(0.0, 0.0, x.shape)
        return dropped(x, 1 - float(p), shared), Signal(1 - p, 1 - p, x.shape)

    def gradient(g: Signal, x: Signal, p: float, train: Any = True, *_: Any) -> tuple[Signal]:
        return (g if train is False else dropped_gradient(g, 1 - float(p), shared),)

    return forward, gradient


def _undropped(x: Signal, *_: Any) -> tuple[Signal, Signal]:
    return x, Signal(1.0, 1.0, x.shape)


for _names, _shared, _kind in (
    (("dropout", "native_dropout", "_fused_dropout"), _ELEMENTS, ""),
    (("feature_dropout",), _CHANNELS, "feature "),
):
    _forward, _gradient = _dropout(_shared)
    builtin(*_names, word=_word(_kind), carries=True, quiet=_undropped, gradient=_gradient)(_forward)


def _alpha_slope(x: Signal, p: float, train: bool) -> float:
    keep = 1.0 - p if train else 1.0
    return 1 / (1 + 1.7580993408473766**2 * (1 - keep)) if keep > 0 else 0.0


@builtin(
    "alpha_dropout", "feature_alpha_dropout", word=_word("alpha "), carries=True, quiet=lambda x, *_: x,
    backward=_alpha_slope,
)  # fmt: skip
def alpha_dropout(x: Signal, p: float, train: bool) -> Signal:
    """Set dropped elements to SELU's negative limit; a and b restore mean 0 and variance 1 of such a signal."""
    if not train or p == 0:
        return x
    if p == 1:
        return _level(x.shape, 0.0)
    keep, limit = 1.0 - p, -1.7580993408473766
    a = (keep + limit**2 * keep * (1 - keep)) ** -0.5
    b = -a * limit * (1 - keep)

    def after(pair: float, both: float) -> float:
        """Return a pair moment, where both elements are kept with this probability."""
        one = keep - both
        square: float = both * pair + 2 * one * x.mean * limit + (1 - both - 2 * one) * limit**2
        return float(a**2 * square + 2 * a * b * (keep * x.mean + (1 - keep) * limit) + b**2)

    mean = a * (keep * x.mean + (1 - keep) * limit) + b
    pairs = {k: after(x.pair(k), keep**2) for k in x.correlations._fields}
    return x.related(pairs, mean=mean, second=after(x.second, keep))


def _level(shape: tuple[int, ...], number: float) -> Signal:
    return Signal(number, number**2, shape, law=constant(number), path=Path(depth=-1))


def _numbers(call: Call) -> list[float]:
    return [float(a) for a in call.raw if isinstance(a, (int, float)) and not isinstance(a, bool)]


def _noise(call: Call, axis: Axis) -> Signal:
    field = Field(axis.nodes.unsqueeze(-1), (axis,), None)
    mean, second = field.moments()
    made = Signal(mean, second, call.shapes[0], law=field, path=Path(depth=-1))
    return made.but(correlation=field.correlation(mean, second))


def _keep(call: Call) -> float:
    numbers = _numbers(call)
    keep = numbers[0] if numbers else float(call.args[0].mean) if isinstance(call.args[0], Signal) else 0.5
    return min(1.0, max(0.0, keep))


@builtin("bernoulli", call=True, word="", quiet=lambda call: _level(call.shapes[0], _keep(call)))
def bernoulli_(call: Call) -> Signal:
    return _noise(call, bernoulli(_keep(call), met_together(call.shapes[0])))


@builtin("rand", "rand_like", "uniform", call=True, word="")
def uniform_(call: Call) -> Signal:
    numbers = _numbers(call)
    low, high = numbers[:2] if call.name == "aten.uniform" and len(numbers) > 1 else (0.0, 1.0)
    return _noise(call, uniform(low, high, met_together(call.shapes[0])))


@builtin("randn", "randn_like", "normal", "normal_functional", call=True, word="")
def normal_(call: Call) -> Signal:
    numbers = _numbers(call)
    mean, std = numbers[:2] if call.name == "aten.normal" and len(numbers) > 1 else (0.0, 1.0)
    return Signal(mean, mean**2 + std**2, call.shapes[0], path=Path(depth=-1))


_LEVELS = {"zeros_like": 0.0, "new_zeros": 0.0, "zero": 0.0, "new_empty": 0.0, "empty_like": 0.0,
           "new_empty_strided": 0.0, "ones_like": 1.0, "new_ones": 1.0}  # fmt: skip
_FILLS = {"full_like": 1, "new_full": 2, "fill": 1}  # name → where the number is


@builtin(*_LEVELS, *_FILLS, call=True, word="")
def fill(call: Call) -> Signal | None:
    base = call.name.removeprefix("aten.")
    number = call.args[_FILLS[base]] if base in _FILLS else _LEVELS[base]
    level = number.mean if isinstance(number, Signal) else float(number)
    return _level(call.shapes[0], level) if math.isfinite(level) else None
