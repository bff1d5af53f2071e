"""Softmax and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from unitvar.rules.moments import Moments
from unitvar.rules.registry import builtin

__all__: list[str] = []


def _concentration(var: float, count: float) -> float:
    """Return E Σ a² of a softmax over Gaussian scores: e^var / count for many of them, and never above one."""
    if count > 1024:
        return min(1.0, 1.0 / (1.0 + (count - 1.0) * math.exp(-min(var, 50.0))))
    return _softened(float(f"{min(var, 1e4):.2g}"), max(1, round(count)))


@lru_cache(maxsize=4096)
def _softened(var: float, count: int) -> float:
    """Draw it: there is no closed form for few scores."""
    scores = torch.randn(256, count, generator=torch.Generator().manual_seed(0), device="cpu") * math.sqrt(var)
    return float(scores.softmax(1).square().sum(1).mean())


def _over_rows(var: float, counts: Sequence[float]) -> float:
    """Average it over rows of different length: 1 / E Σ a² is nearly linear in it, so that a few lengths tell all."""
    few = np.unique(np.geomspace(min(counts), max(counts), 32).round())
    return float((1 / np.interp(counts, few, [1 / _concentration(var, n) for n in few])).mean())


def _tilt(spread: float, squares: float, shape: tuple[int, ...]) -> float:
    """Return what attention gains because keys and values are made of the same tokens.

    Scores s_j = u x_j, softmax weights a_j: by Stein's lemma E Σ a_j x_j = u (1 - E Σ a_j²) for standard normal x_j.
    With |u|² = var s that is var s (1 - E Σ a_j²)² / D for each of the D features, those of all heads together.
    """
    if len(shape) < 4:  # heads were merged into the batch, so that D is not known
        return 0.0
    return spread * (1.0 - squares) ** 2 / (shape[-3] * shape[-1])


@builtin("softmax", "_softmax", "special_softmax", word="softmax")
def softmax(x: Moments, dim: int, *_: Any) -> Moments:
    size = x.shape[dim % len(x.shape)] if x.shape else 1
    square = _over_rows(x.var, [max(1.0, size * share) for share in x.seen]) / size
    sums = dim % max(1, len(x.shape)) == len(x.shape) - 1
    return Moments(1.0 / size, max(square, size**-2), x.shape, sums=sums)


@builtin("log_softmax", "_log_softmax", "special_log_softmax", word="logsoftmax")
def log_softmax(x: Moments, dim: int, *_: Any) -> Moments:
    size = x.shape[dim % len(x.shape)] if x.shape else 1
    level, var = _logarithm(float(f"{x.var:.3g}"), size)
    # By Stein's lemma an element and the logarithm of the sum have the covariance var / size.
    return x.like(mean=-level, second=level**2 + var + x.var * (1 - 2 / size), cross=None)


@builtin("logsumexp", word="logsumexp")
def logsumexp(x: Moments, dim: Any, keepdim: bool = False) -> Moments:
    n = len(x.shape)
    dims = {d % n for d in ([dim] if isinstance(dim, int) else dim)}
    count = math.prod(x.shape[d] for d in dims)
    above, var = _logarithm(float(f"{x.var:.3g}"), count)
    shape = tuple(1 if i in dims else s for i, s in enumerate(x.shape) if keepdim or i not in dims)
    level = x.mean + above
    return Moments(level, level**2 + var, shape)


@lru_cache(maxsize=4096)
def _logarithm(var: float, count: int) -> tuple[float, float]:
    """Return mean and variance of log Σ e^z over Gaussian scores around zero: drawn, too."""
    drawn = max(1, min(count, 1 << 16))  # sums of more than so many are sums of sums
    normal = torch.randn(max(16, (1 << 18) // drawn), drawn, generator=torch.Generator().manual_seed(0), device="cpu")
    sums = (normal * math.sqrt(var)).logsumexp(1).double()
    return float(sums.mean()) + math.log(count / drawn), float(sums.var()) * drawn / count


@builtin(
    "scaled_dot_product_attention", word="attention", backward=lambda q, k, v, *_: (1.0, 1.0, 1.0 / max(1, k.shape[-2]))
)
def attention(
    query: Moments, key: Moments, value: Moments, mask: Any = None, dropout: float = 0.0, causal: bool = False,
    scale: float | None = None, *_: Any,
) -> Moments:  # fmt: skip
    width, tokens = query.shape[-1], key.shape[-2]
    scale = 1 / math.sqrt(width) if scale is None else scale
    scores = Moments.product(query, key, width, ())
    # What all keys have in common moves all scores of a query alike, and a softmax does not see it.
    shared = max(0.0, key.pair - key.mean**2) / key.second if key.second > 0 else 0.0
    spread = scores.var * scale**2 * (1 - shared)
    rows = query.shape[-2]
    if causal:
        seen = [float(min(tokens, i + 1)) for i in range(rows)]
    else:
        seen = [max(1.0, tokens * share) for share in (mask.seen if isinstance(mask, Moments) else (1.0,))]
    attended = _over_rows(spread, seen)
    evenly = sum(1 / n for n in seen) / len(seen)
    squares = attended / (1.0 - dropout)
    common, own = value.pair, value.second - value.pair
    tilt = _tilt(spread, attended, query.shape)
    second = common * (1 + squares * dropout) + own * (squares + tilt)
    # Two queries attend to the same tokens in so far as they are alike, and at least as much as if evenly.
    alike = max(0.0, query.pair - query.mean**2) / query.var if query.var > 0 else 0.0
    both = common + own * (min(squares, evenly * math.exp(min(50.0, alike * spread))) + alike * tilt)
    return value.like(second=second, cross=both, shape=(*query.shape[:-1], value.shape[-1]))
