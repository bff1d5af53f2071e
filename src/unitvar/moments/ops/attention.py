"""Softmax and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from unitvar.moments.correlation import Tilt
from unitvar.moments.ops.linear import matmul, matmul_gradient
from unitvar.moments.ops.noise import dropped, dropped_gradient
from unitvar.moments.ops.simplex import SoftmaxMoments, softmax_moments
from unitvar.moments.rule import builtin
from unitvar.moments.signal import Signal, least_seen

__all__ = ["softmax"]


def _over_rows(var: float, counts: Sequence[float]) -> SoftmaxMoments:
    """Average over rows of different length: the inverses are nearly linear in it, so that a few lengths tell all."""
    few = np.unique(np.geomspace(min(counts), max(counts), 32).round())
    found = [softmax_moments(var, n) for n in few]
    squares = (1 / np.interp(counts, few, [1 / m.squares for m in found])).mean()
    return SoftmaxMoments(float(squares), float(np.interp(counts, few, [m.slopes for m in found]).mean()))


def _attended(x: Signal, dim: int) -> tuple[int, float, SoftmaxMoments, float]:
    """Return the size of a softmax, what scores differ by, its moments, and E Σ a² with equal scores."""
    size = x.shape[dim] if x.shape else 1
    spread = max(0.0, x.second - (x.along(dim) if x.shape else x.mean**2))  # what all scores share it does not see
    counts = [max(1.0, size * share) for share in x.seen]
    parts = [(w, _over_rows(spread * length, counts)) for w, length in _lengths(x.terms)]
    moments = SoftmaxMoments(*(sum(w * m[i] for w, m in parts) for i in (0, 1)))
    return size, spread, moments, sum(1 / n for n in counts) / len(counts)


@lru_cache(maxsize=256)
def _lengths(terms: int) -> tuple[tuple[float, float], ...]:
    """Return by how much the scores of a query differ, since queries differ in length: chi-squared, in a few nodes."""
    if not terms:
        return ((1.0, 1.0),)
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    cube = 2 / (9 * terms)  # the cube root of such a sum is nearly normal (Wilson and Hilferty)
    lengths = np.maximum(0.0, 1 - cube + nodes * math.sqrt(cube)) ** 3
    return tuple((float(w), float(n)) for w, n in zip(weights / weights.sum(), lengths, strict=True))


def _softmax_gradient(g: Signal, x: Signal, dim: int, *_: Any) -> tuple[Signal]:
    """Return a (g - Σ a g): what all elements of g share is lost."""
    dim %= max(1, len(x.shape))
    size, moments = _attended(x, dim)[::2]
    a = softmax(x, dim)
    second = max(0.0, g.second - g.along(dim)) * moments.slopes / size
    kept = g.correlations.positions * a.pair("positions") / max(a.second, 1e-300)
    made = g.like(second=second, shape=x.shape, axes=x.axes, correlation=g.correlations.with_positions(kept))
    kind = "features" if x.axes[dim] == "f" else "positions"
    return (made.related({kind: -second / (size - 1)}) if size > 1 else made,)


def _along(x: Signal, dim: int, *_: Any) -> str:
    return x.axes[dim] if x.shape else ""


@builtin(
    "softmax", "_softmax", "special_softmax", word="softmax", gradient=_softmax_gradient, mixes=_along,
)  # fmt: skip
def softmax(x: Signal, dim: int, *_: Any) -> Signal:
    """Rows sum to one, so that their elements repel each other."""
    dim %= max(1, len(x.shape))
    size, spread, moments, evenly = _attended(x, dim)
    squares = moments.squares
    second = max(squares / size, size**-2)
    along = x.axes[dim] if x.shape else "f"

    def both(rho: float) -> float:
        """Two rows attend to the same in so far as their scores are alike: from evenly to one row, geometrically."""
        return float(evenly * (max(squares, evenly) / evenly) ** max(0.0, rho) / size)

    correlation = x.correlations
    pairs = {
        kind: both(getattr(correlation, kind)) for kind in ("features", "positions", "neighbours", "examples", "masks")
    }
    kind = {"f": "features", "p": "positions", "b": "examples"}[along]
    pairs[kind] = (1 - squares) / (size * (size - 1)) if size > 1 else 1.0
    tilt = None
    if x.width and along == "f":
        # Scores are products of queries and keys: in other examples, and under other masks, both are others.
        alike = (max(0.0, rho) for rho in (correlation.examples, correlation.masks))
        tilt = Tilt(1.0, max(0.0, correlation.positions), *map(math.sqrt, alike))
        tilt = tilt.scaled(spread * (1 - squares) ** 2 / x.width)
    made = x.related(pairs, mean=1.0 / size, second=second, profile=None, seen=(1.0,), width=0, terms=0)
    last = dim == len(x.shape) - 1
    return made.like(total=1.0 if last else None, tilt=tilt)


@builtin("log_softmax", "_log_softmax", "special_log_softmax", word="logsoftmax")
def log_softmax(x: Signal, dim: int, *_: Any) -> Signal:
    size = x.shape[dim % len(x.shape)] if x.shape else 1
    spread = x.second - x.along(dim % len(x.shape)) if x.shape else 0.0
    level, var = _logarithm(float(f"{max(0.0, spread):.3g}"), size)
    # By Stein's lemma an element and the logarithm of the sum have the covariance var / size.
    return x.like(mean=-level, second=level**2 + var + spread * (1 - 2 / size))


@builtin("logsumexp", word="logsumexp")
def logsumexp(x: Signal, dim: Any, keepdim: bool = False) -> Signal:
    n = len(x.shape)
    dims = {d % n for d in ([dim] if isinstance(dim, int) else dim)}
    count = math.prod(x.shape[d] for d in dims)
    above, var = _logarithm(float(f"{x.var:.3g}"), count)
    shape = tuple(1 if i in dims else s for i, s in enumerate(x.shape) if keepdim or i not in dims)
    axes = "".join(c for i, c in enumerate(x.axes) if keepdim or i not in dims)
    level = x.mean + above
    return x.like(mean=level, second=level**2 + var, shape=shape, axes=axes)


@lru_cache(maxsize=1024)
def _logarithm(var: float, count: int) -> tuple[float, float]:
    """Return mean and variance of log Σ exp over Gaussian scores around zero: drawn, too."""
    drawn = max(1, min(count, 1 << 16))  # sums of more than so many are sums of sums
    normal = torch.randn(max(16, (1 << 18) // drawn), drawn, generator=torch.Generator().manual_seed(0), device="cpu")
    sums = (normal * math.sqrt(var)).logsumexp(1).double()
    return float(sums.mean()) + math.log(count / drawn), float(sums.var()) * drawn / count


def _parts(
    query: Signal, key: Signal, mask: Any, dropout: float, causal: bool, scale: float | None
) -> tuple[Signal, Signal, Signal, float]:
    """Compute keys on their side, scores and weights, as attention written out does."""
    tokens, width = key.shape[-2], query.shape[-1]
    scale = 1 / math.sqrt(width) if scale is None else scale
    # Whatever they are called: what attention mixes are positions.
    query, key = (t.but(axes=t.axes[:-2] + "pf", law=None) for t in (query, key))
    turned = key.but(shape=(*key.shape[:-2], width, tokens), axes=key.axes[:-2] + "fp")
    scores = matmul(query, turned).scaled(scale)
    if causal:
        rows = query.shape[-2]
        scores = scores.like(seen=tuple(min(tokens, i + 1) / tokens for i in range(rows)))
    elif isinstance(mask, Signal):
        scores = scores.like(seen=least_seen(scores.seen, mask.seen))
        if mask.var > 0 and mask.second != mask.mean:  # no boolean, but a bias, as of relative positions
            scores = scores.like(second=scores.second + mask.var)
    return turned, scores, softmax(scores, -1), scale


def _attention_gradient(
    g: Signal, query: Signal, key: Signal, value: Signal, mask: Any = None, dropout: float = 0.0, causal: bool = False,
    scale: float | None = None, *_: Any,
) -> tuple[Signal, ...]:  # fmt: skip
    turned, scores, weights, scale = _parts(query, key, mask, dropout, causal, scale)
    query = query.but(axes=query.axes[:-2] + "pf", law=None)
    value = value.but(axes=value.axes[:-2] + "pf", law=None)
    g = g.but(axes=g.axes[:-2] + "pf")
    to_weights, to_value = matmul_gradient(g, dropped(weights, 1 - dropout), value)
    (to_scores,) = _softmax_gradient(dropped_gradient(to_weights, 1 - dropout), scores, -1)
    to_query, to_key = matmul_gradient(to_scores.scaled(scale), query, turned)
    return to_query, to_key.like(shape=key.shape, axes=key.axes), to_value


@builtin(
    "scaled_dot_product_attention", word="attention", gradient=_attention_gradient, mixes=lambda q, k, *_: k.axes[-2]
)
def attention(
    query: Signal, key: Signal, value: Signal, mask: Any = None, dropout: float = 0.0, causal: bool = False,
    scale: float | None = None, *_: Any,
) -> Signal:  # fmt: skip
    weights = _parts(query, key, mask, dropout, causal, scale)[2]
    value = value.but(axes=value.axes[:-2] + "pf", law=None)
    out = matmul(dropped(weights, 1 - dropout), value)
    return out.like(path=value.path, shape=(*query.shape[:-1], value.shape[-1]))
