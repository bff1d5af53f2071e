"""Softmax and attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from unitvar.expectation import gaussian
from unitvar.expectation.ops.linear import product
from unitvar.expectation.ops.noise import dropout
from unitvar.expectation.ops.table import register
from unitvar.expectation.uncertain import Uncertain, Weights, mean_of, var_of, wide


@register("softmax", "_softmax", method="first order")
def softmax(op: Any, x: Uncertain, dim: int, dtype: Any = None) -> Uncertain:
    """Normalise exponentials; see :func:`unitvar.expectation.gaussian.softmax`."""
    p, var, spread = gaussian.softmax(wide(x.mean), x.var, dim)
    like = dtype if isinstance(dtype, torch.dtype) else x.mean.dtype
    last = dim % x.mean.dim() == x.mean.dim() - 1
    return Uncertain(p.to(like), var, weights=Weights(spread, None) if last else None)


@register("log_softmax", "_log_softmax", method="first order")
def log_softmax(op: Any, x: Uncertain, dim: int, dtype: Any = None) -> Uncertain:
    """Subtract the logarithm of the sum of exponentials, to second order."""
    mean = wide(x.mean)
    p = torch.softmax(mean, dim)
    bend = (p * (1 - p) * x.var).sum(dim, keepdim=True) / 2
    var = x.var * (1 - 2 * p) + (p.square() * x.var).sum(dim, keepdim=True)
    like = dtype if isinstance(dtype, torch.dtype) else x.mean.dtype
    return Uncertain((torch.log_softmax(mean, dim) - bend).to(like), var.clamp_min(0))


def _drops(q: Any, k: Any, v: Any, mask: Any = None, p: float = 0.0, *rest: Any, **named: Any) -> bool:
    return p > 0


@register("scaled_dot_product_attention", method="first order", noise=_drops)
def attention(
    op: Any, q: Any, k: Any, v: Any, mask: Any = None, p: float = 0.0, causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Uncertain:  # fmt: skip
    """Average values with softmax weights of products of queries and keys."""
    if enable_gqa:
        times = q_heads(q) // q_heads(k)
        k, v = (_repeated(t, times) for t in (k, v))
    factor = 1 / math.sqrt(mean_of(q).shape[-1]) if scale is None else scale
    turned = Uncertain(k.mean.mT, k.var.mT) if isinstance(k, Uncertain) else k.mT
    if isinstance(q, Uncertain) or isinstance(k, Uncertain):
        scores = product(q, turned)
        weights = softmax(op, _biased(scores, factor, mask, causal), -1)
    else:
        sure = Uncertain(q @ turned, torch.zeros((), dtype=wide(q).dtype, device=q.device))
        certain = torch.softmax(_biased(sure, factor, mask, causal).mean, -1)
        weights = Uncertain(certain, torch.zeros_like(wide(certain)))
    if p > 0:
        weights = dropout(op, weights, p)
    return product(weights, v)


def q_heads(x: Any) -> int:
    """Count the heads."""
    return int(mean_of(x).shape[-3])


def _repeated(x: Any, times: int) -> Any:
    if isinstance(x, Uncertain):
        return Uncertain(x.mean.repeat_interleave(times, -3), x.var.repeat_interleave(times, -3))
    return x.repeat_interleave(times, -3)


def _biased(scores: Uncertain, factor: float, mask: Any, causal: bool) -> Uncertain:
    mean, var = scores.mean * factor, scores.var * factor**2
    if causal:
        allowed = torch.ones(mean.shape[-2:], dtype=torch.bool, device=mean.device).tril()
        mean = mean.masked_fill(~allowed, -math.inf)
    if mask is not None:
        level: Tensor = mean_of(mask)
        if level.dtype == torch.bool:
            mean = mean.masked_fill(~level, -math.inf)
        else:
            mean = mean + level
            var = var + var_of(mask) if isinstance(mask, Uncertain) else var
    return Uncertain(mean, var)
