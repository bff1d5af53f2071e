"""Norms: whatever comes in, the scale and shift of the layer come out."""

from __future__ import annotations

import math
from typing import Any

from unitvar.rules.moments import Moments
from unitvar.rules.registry import builtin

__all__: list[str] = []


def _affine(x: Moments, weight: Moments | None, bias: Moments | None, eps: float, var: float, pair: float) -> Moments:
    """Scale a normalised signal: its variance is var / (var + eps), its cross moment pair."""
    shrink = var / (var + eps) if var > 0 else 0.0
    scale = weight.second if weight is not None else 1.0
    shift, shift2 = (bias.mean, bias.second) if bias is not None else (0.0, 0.0)
    cross = max(-1.0, min(1.0, pair)) * shrink * scale + shift2
    return x.like(mean=shift, second=shrink * scale + shift2, cross=cross if x.has_positions else None)


def _correlation(x: Moments) -> float:
    return max(0.0, (x.pair - x.mean**2) / x.var) if x.var > 0 else 0.0


def _slope(x: Moments, weight: Moments | None) -> float:
    return (weight.second if weight is not None else 1.0) / max(x.var, 1e-30)


@builtin(
    "batch_norm", word="batchnorm", resets=True, backward=lambda x, w, *_: _slope(x, w),
)  # fmt: skip
def batch_norm(
    x: Moments, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: Any, eps: float, *_: Any
) -> Moments:
    if not training and mean is not None and var is not None:  # running statistics: an affine map
        scale = (weight.second if weight is not None else 1.0) / (var.mean + eps)
        shift, shift2 = (bias.mean, bias.second) if bias is not None else (0.0, 0.0)
        centred = x.second - 2 * x.mean * mean.mean + mean.second
        return x.like(mean=shift, second=scale * centred + shift2, cross=scale * (x.pair - x.mean**2) + shift2)
    # Independent inputs share what a channel has in common with all examples, and that is what is taken away.
    return _affine(x, weight, bias, eps, x.var, 0.0)


@builtin("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", word="batchnorm", resets=True,
         backward=lambda x, w, *_: _slope(x, w))  # fmt: skip
def native_batch_norm(
    x: Moments, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: Any, eps: float
) -> tuple[Moments, ...]:
    out = batch_norm(x, weight, bias, mean, var, training, momentum, eps)
    return out, Moments(x.mean, x.second), Moments(1.0, 1.0)


@builtin("layer_norm", word="layernorm", resets=True, backward=lambda x, shape, w, *_: _slope(x, w))
def layer_norm(x: Moments, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Moments:
    x = x.along(-1) if len(x.shape) < 4 else x
    return _affine(x, weight, bias, eps, x.var, _correlation(x)).like(profile=None)


@builtin("native_layer_norm", word="layernorm", resets=True, backward=lambda x, shape, w, *_: _slope(x, w))
def native_layer_norm(x: Moments, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Moments, Moments, Moments]:
    return layer_norm(x, shape, weight, bias, eps), Moments(x.mean, x.second), Moments(1.0, 1.0)


@builtin("group_norm", word="groupnorm", resets=True, backward=lambda x, groups, w, *_: _slope(x, w))
def group_norm(x: Moments, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Moments:
    # With one channel a group this is an instance norm, which also takes away what positions share.
    inside = x.shape[1] // groups if len(x.shape) > 1 else 1
    rho = _correlation(x)
    left = 1.0 - rho / max(1, inside)
    return _affine(x, weight, bias, eps, x.var * left, rho * (1 - 1 / max(1, inside)) / max(left, 1e-12))


@builtin("instance_norm", word="instancenorm", resets=True, backward=lambda x, w, *_: _slope(x, w))
def instance_norm(
    x: Moments, weight: Any, bias: Any, mean: Any, var: Any, use: bool, momentum: Any, eps: float, *_: Any
) -> Moments:
    return _affine(x, weight, bias, eps, x.var * (1 - _correlation(x)), 0.0)


@builtin("rms_norm", word="rmsnorm", resets=True,
         backward=lambda x, shape, w=None, *_: (w.second if w is not None else 1.0) / max(x.second, 1e-30))  # fmt: skip
def rms_norm(x: Moments, shape: Any, weight: Any = None, eps: Any = None) -> Moments:
    factor = 1 / math.sqrt(x.second + (eps or 1e-7)) if x.second > 0 else 0.0
    scale = math.sqrt(weight.second) if weight is not None else 1.0
    return x.scaled(factor * scale)
