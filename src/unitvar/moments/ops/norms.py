"""Norms: whatever comes in, the scale and shift of the layer come out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from unitvar.moments.correlation import CONSTANT, KINDS, Correlation
from unitvar.moments.joint import Joint, Operand
from unitvar.moments.rule import builtin
from unitvar.moments.signal import Signal

__all__: list[str] = []


def _affine(x: Signal, weight: Any, bias: Any, eps: float, gone: Signal, **changes: Any) -> Signal:
    """Normalise and scale.

    Args:
        x: the signal.
        weight: the layer's scale, or None.
        bias: its shift, or None.
        eps: what is added to the variance.
        gone: what the norm takes away.
        changes: what else is new.
    """
    var = max(0.0, x.second - gone.second)
    shrink = 1 / (var + eps) if var > 0 else 0.0
    scale, level = (weight.second, weight.mean**2) if isinstance(weight, Signal) else (1.0, 1.0)
    shift, shift2 = (bias.mean, bias.second) if isinstance(bias, Signal) else (0.0, 0.0)
    # Two features have scales and shifts of their own, all other pairs the same.
    pairs = {k: max(-var, x.pair(k) - gone.pair(k)) * shrink * scale + shift2 for k in KINDS if k != "features"}
    pairs["features"] = max(-var, x.pair("features") - gone.pair("features")) * shrink * level + shift**2
    made = x.related(pairs, mean=shift, second=max(var * shrink * scale + shift2, shift**2), total=None, **changes)
    return made.like(
        **_remembered(x, made, math.sqrt(shrink * level), shift2 == 0 and gone.second - x.mean**2 < 0.1 * x.second)
    )


def _remembered(x: Signal, made: Signal, factor: float, plain: bool) -> dict[str, Any]:
    """Keep what a signal is the sum of, where a norm only divides it: a stream may be added again."""
    kept: dict[str, Any] = {"profile": made.profile}
    if plain:
        kept["sum_of"] = tuple((factor * f, term) for f, term in x.sum_of or ((1.0, x),))
        x_mean = x.mean

        def function(values: Sequence[Tensor]) -> Tensor:
            return factor * (values[0] - x_mean) + made.mean

        correlation = x.correlations if x.law is None or x.law.large is None else x.law.large.correlation
        kept["joint"] = Joint.of(function, [Operand.of(x.field, correlation, x.shape, x.turn)], x.shape, linear=True)
    return kept


def _in_batch(x: Signal) -> float:
    """Return E x_1 x_2 of a channel in two places of a batch: other examples, and mostly other positions."""
    positions = any(c == "p" and n > 1 for d, atoms in enumerate(x.inside) if d != 1 for c, n in atoms)
    return min(x.pair("examples"), x.pair("positions")) if positions else x.pair("examples")


def _by_batch(mean: Any, var: Any, training: bool) -> bool:
    return training or mean is None or var is None


def _batch_slope(x: Signal, weight: Any, mean: Any, var: Any, training: bool, eps: float) -> float:
    """Return γ² / var, the variance over examples and positions of one channel: what they share is subtracted."""
    scale = weight.second if isinstance(weight, Signal) else 1.0
    held = max(0.0, x.second - _in_batch(x)) if _by_batch(mean, var, training) else float(var.mean)
    return float(scale / (held + eps))


def _batch_gradient(
    g: Signal,
    x: Signal,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: Any,
    eps: float,
    *_: Any,
) -> tuple[Signal]:
    """Channels that were joined have each their own variance."""
    if not x.parts or x.joined != 1:
        return (g.like(second=g.second * _batch_slope(x, weight, mean, var, training, eps)),)
    parts = tuple(
        g.like(second=g.second * _batch_slope(part, weight, mean, var, training, eps), shape=part.shape, axes=part.axes)
        for part in x.parts
    )
    sizes = [math.prod(part.shape) for part in x.parts]
    second = sum(n * p.second for n, p in zip(sizes, parts, strict=True)) / sum(sizes)
    return (g.like(second=second, parts=parts),)


def _batch_variance(x: Signal, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any) -> float | None:
    return max(0.0, x.second - _in_batch(x)) if _by_batch(mean, var, training) else None


@builtin(
    "batch_norm", word="batchnorm", resets=True, carries=True, normalises=True, variance=_batch_variance,
    gradient=_batch_gradient,
)  # fmt: skip
def batch_norm(
    x: Signal, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: Any, eps: float, *_: Any
) -> Signal:
    if not _by_batch(mean, var, training):  # running statistics: an affine map
        scale = (weight.second if isinstance(weight, Signal) else 1.0) / (var.mean + eps)
        shift, shift2 = (bias.mean, bias.second) if isinstance(bias, Signal) else (0.0, 0.0)
        moved = mean.second - 2 * x.mean * mean.mean
        level = math.sqrt(scale) * (x.mean - mean.mean) + shift
        pairs = {k: scale * (x.pair(k) + moved) + shift2 + 2 * shift * (level - shift) for k in KINDS}
        second = scale * (x.second + moved) + shift2 + 2 * shift * (level - shift)
        return x.related(pairs, mean=level, second=max(second, level**2), total=None)
    gone = _in_batch(x)
    # What a channel has in common with the whole batch is the same for any pair.
    shared = Correlation(0.0, 1.0, 1.0, 1.0, 1.0)
    return _affine(x, weight, bias, eps, Signal(x.mean, max(gone, x.mean**2), correlation=shared))


@builtin(
    "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm", word="batchnorm",
    resets=True, carries=True, normalises=True, variance=_batch_variance, gradient=_batch_gradient,
)  # fmt: skip
def native_batch_norm(
    x: Signal, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: Any, eps: float
) -> tuple[Signal, ...]:
    out = batch_norm(x, weight, bias, mean, var, training, momentum, eps)
    return out, Signal(x.mean, x.second, correlation=CONSTANT), Signal(1.0, 1.0, correlation=CONSTANT)


def _within(x: Signal, dims: Sequence[int]) -> Signal:
    """Return the mean of a group of elements."""
    terms: dict[str, float] = {}
    for d in dims:
        terms[x.axes[d]] = terms.get(x.axes[d], 1) * x.shape[d]
    made = x.summed(terms).scaled(1 / math.prod(terms.values()))
    return made.like(correlation=made.correlations._replace(features=1.0))  # all features lose the same


def _named(x: Signal, shape: Any, *_: Any) -> str:
    """Return "b" if features were taken for positions: a norm over the last dimension alone is one over features."""
    return "b" if len(shape) == 1 and x.path.depth is None and x.axes[-1] == "p" and "f" in x.axes else ""


def _layer_slope(x: Signal, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> float:
    gone = _within(x, range(len(x.shape) - len(shape), len(x.shape)))
    return (weight.second if isinstance(weight, Signal) else 1.0) / max(x.second - gone.second + eps, 1e-30)


@builtin("layer_norm", word="layernorm", resets=True, carries=True, backward=_layer_slope, mixes=_named)
def layer_norm(x: Signal, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Signal:
    gone = _within(x, range(len(x.shape) - len(shape), len(x.shape)))
    return _affine(x, weight, bias, eps, gone, profile=None)


@builtin("native_layer_norm", word="layernorm", resets=True, carries=True, backward=_layer_slope)
def native_layer_norm(x: Signal, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Signal, Signal, Signal]:
    return layer_norm(x, shape, weight, bias, eps), Signal(x.mean, x.second), Signal(1.0, 1.0)


def _grouped(x: Signal, groups: int) -> Signal:
    """Return the mean of a group of channels, all positions together."""
    inside, sides = x.shape[1] // groups if len(x.shape) > 1 else 1, math.prod(x.shape[2:])
    terms = {"f": float(max(1, inside)), "p": float(sides)}
    made = x.summed(terms).scaled(1 / math.prod(terms.values()))
    made = made.like(correlation=made.correlations._replace(features=1.0))
    # Two positions of an example lose the same mean.
    return made.like(correlation=made.correlations.with_positions(1.0)) if sides > 1 else made


def _group_slope(x: Signal, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> float:
    return (weight.second if isinstance(weight, Signal) else 1.0) / max(
        x.second - _grouped(x, groups).second + eps, 1e-30
    )


@builtin("group_norm", word="groupnorm", resets=True, carries=True, backward=_group_slope)
def group_norm(x: Signal, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Signal:
    # With one channel a group this is an instance norm, which also takes away what positions share.
    return _affine(x, weight, bias, eps, _grouped(x, groups))


def _instance_slope(
    x: Signal, weight: Any, bias: Any, mean: Any, var: Any, use: bool, momentum: Any, eps: float, *_: Any
) -> float:
    return _group_slope(x, x.shape[1], weight, bias, eps)


@builtin("instance_norm", word="instancenorm", resets=True, carries=True, backward=_instance_slope)
def instance_norm(
    x: Signal, weight: Any, bias: Any, mean: Any, var: Any, use: bool, momentum: Any, eps: float, *_: Any
) -> Signal:
    if not use and isinstance(var, Signal):  # running statistics
        return batch_norm(x, weight, bias, mean, var, False, momentum, eps)
    return group_norm(x, x.shape[1], weight, bias, eps)


def _rms_slope(x: Signal, shape: Any, weight: Any = None, eps: Any = None) -> float:
    return (weight.second if isinstance(weight, Signal) else 1.0) / max(x.second + (eps or 1e-7), 1e-30)


@builtin("rms_norm", word="rmsnorm", resets=True, carries=True, backward=_rms_slope)
def rms_norm(x: Signal, shape: Any, weight: Any = None, eps: Any = None) -> Signal:
    factor = 1 / math.sqrt(x.second + (eps or 1e-7)) if x.second > 0 else 0.0
    scale = math.sqrt(weight.second) if isinstance(weight, Signal) else 1.0
    made = x.scaled(factor * scale, total=None)
    return made.like(**_remembered(x, made, factor * scale, True))
