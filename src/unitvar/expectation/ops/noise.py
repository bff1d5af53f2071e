"""Dropouts, and masks that a model draws and multiplies itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from unitvar.expectation.ops.table import register
from unitvar.expectation.reuse import arithmetic
from unitvar.expectation.uncertain import (
    LARGEST,
    Atom,
    Common,
    Source,
    Uncertain,
    example_size,
    mean_of,
    var_of,
    wide,
)  # fmt: skip

__all__ = ["drawn", "masked"]

_SELU_LIMIT = -1.7580993408473766  # the value that alpha dropout gives to what it drops


def _active(x: Any, p: float, train: Any = True, *rest: Any) -> bool:
    return train is not False and p > 0


@register("dropout", "native_dropout", "_fused_dropout", keeps=True, keyed=True, noise=_active, mixture=True)
def dropout(
    op: Any, x: Any, p: float, *rest: Any, keys: tuple[int | None, ...] = (), key: int = 0, mixture: bool = False
) -> Any:
    """Drop single elements: exact.

    Each element gains the variance (mean² + variance) · p / (1 - p), which no other element shares.
    """
    mean = mean_of(x)
    if p >= 1:
        out = Uncertain(torch.zeros_like(mean), torch.zeros_like(wide(mean)))
    else:
        out = _dropped(x, p, key)
        if mixture:
            out = out._replace(atom=_kept_or_zero(x, p))
    if "native" in str(op):  # it hands its mask back, too
        return out, torch.ones_like(mean, dtype=torch.bool)
    return out


def _kept_or_zero(x: Any, p: float) -> Atom:
    kept = wide(mean_of(x)) / (1 - p)
    return Atom(1 - p, kept, var_of(x) / (1 - p) ** 2, torch.zeros_like(kept))


def _dropped(x: Any, p: float, key: int) -> Uncertain:
    rate, level = p / (1 - p), wide(mean_of(x))
    if not isinstance(x, Uncertain):
        o = arithmetic(x)
        return Uncertain(x, o.clamp(o.mul(level * level, rate), max=LARGEST))
    o = arithmetic(x.mean, x.var)
    if not x.sources and x.weights is None:
        total = o.addcmul(x.var * (1 + rate), level, level, value=rate)
        return Uncertain(x.mean, o.clamp(total, max=LARGEST), x.common)
    gained = o.clamp(o.mul(torch.addcmul(x.var, level, level), rate), max=LARGEST)
    sources = (*x.sources, Source(key, gained, None)) if x.sources else ()
    weights = None if x.weights is None else x.weights._replace(extra=gained)
    return Uncertain(x.mean, x.var + gained, x.common, sources, weights=weights)


@register("feature_dropout", keyed=True, noise=_active, mixture=True)
def feature_dropout(
    op: Any, x: Any, p: float, *rest: Any, keys: tuple[int | None, ...] = (), key: int = 0, mixture: bool = False
) -> Uncertain:
    """Drop whole channels: exact, and the elements of a channel stay correlated."""
    mean, var = mean_of(x), var_of(x)
    if p >= 1:
        return Uncertain(torch.zeros_like(mean), torch.zeros_like(var))
    out = masked(x, (*mean.shape[:2], *(1 for _ in mean.shape[2:])), 1.0, p / (1 - p), key=key)
    return out._replace(atom=_kept_or_zero(x, p)) if mixture else out


def masked(x: Any, drawn: tuple[int, ...], level: float, spread: float, *, key: int = 0) -> Uncertain:
    """Multiply by independent random numbers of this mean and variance, drawn in a shape that broadcasts: exact."""
    mean, var = mean_of(x), var_of(x)
    shape = torch.broadcast_shapes(mean.shape, drawn)  # type: ignore[no-untyped-call]
    mean, var = mean.expand(shape), var.expand(shape)
    drawn = (1,) * (len(shape) - len(drawn)) + tuple(drawn)
    total = (var * (level**2 + spread) + wide(mean).square() * spread).clamp_max(LARGEST)
    common = None
    if _trailing(drawn, shape):
        # The mask multiplies the mean of all elements of a block; what varies in them varies independently.
        block = math.prod([n for n, m in zip(shape[1:], drawn[1:], strict=True) if m == 1])
        size = wide(mean) * math.sqrt(spread)
        old = x.common if isinstance(x, Uncertain) and x.mean.shape == shape else None
        if old is not None and old.block == block:
            # Both noises are common to the block; one stands for the two, as if they were proportional.
            both = size.square() + old.size.square() * (level**2 + spread)
            size = torch.where(size < 0, -1.0, 1.0) * both.sqrt()
        common = Common(size, block, key)
    elif isinstance(x, Uncertain) and x.common is not None and tuple(drawn) == tuple(shape) == tuple(x.mean.shape):
        common = x.common._replace(size=x.common.size * level)
    return Uncertain(mean if level == 1 else mean * level, total, common)


def _trailing(drawn: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return True if the mask is repeated over the last dimensions, and only over those; examples have their own."""
    repeated = [m == 1 and n > 1 for n, m in zip(shape, drawn, strict=True)]
    sizes = [i for i, n in enumerate(shape) if n > 1 and i > 0]
    if not any(repeated) or repeated[0] or len(shape) < 2:
        return False
    own = [i for i in sizes if not repeated[i]]
    first = min([i for i in sizes if repeated[i]], default=0)
    return not own or max(own) < first


def drawn(shape: tuple[int, ...], level: float, spread: float, like: Tensor) -> Uncertain:
    """Return independent random numbers of this mean and variance."""
    wider = wide(torch.empty(0, dtype=like.dtype, device=like.device)).dtype
    mean = torch.full(shape, level, dtype=like.dtype, device=like.device)
    return Uncertain(mean, torch.full(shape, spread, dtype=wider, device=like.device))


@register("alpha_dropout", noise=_active)
def alpha_dropout(op: Any, x: Any, p: float, train: bool = True) -> Uncertain:
    """Set single elements to SELU's negative limit, then scale and shift: exact."""
    mean, var = mean_of(x), var_of(x)
    if p >= 1:
        return Uncertain(torch.zeros_like(mean), torch.zeros_like(var))
    scale, shift = _alpha(p)
    keep = 1 - p
    away = (wide(mean) - _SELU_LIMIT).square()
    out = scale * (keep * mean + p * _SELU_LIMIT) + shift
    return Uncertain(out, scale**2 * (keep * var + keep * p * away))


@register("feature_alpha_dropout", keyed=True, noise=_active)
def feature_alpha_dropout(
    op: Any, x: Any, p: float, train: bool = True, *, keys: tuple[int | None, ...] = (), key: int = 0
) -> Uncertain:
    """Set whole channels to SELU's negative limit, then scale and shift: exact."""
    out = alpha_dropout(op, x, p, train)
    mean = mean_of(x)
    block = math.prod(mean.shape[2:])
    if p >= 1 or block == 1 or example_size(mean) == 0:
        return out
    size = _alpha(p)[0] * math.sqrt(p * (1 - p)) * (wide(mean) - _SELU_LIMIT)
    return out._replace(common=Common(size, block, key))


def _alpha(p: float) -> tuple[float, float]:
    scale = ((1 - p) * (1 + p * _SELU_LIMIT**2)) ** -0.5
    return scale, -scale * _SELU_LIMIT * p
