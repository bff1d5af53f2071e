r"""Closed forms: activations that are, piece by piece, sums of :math:`c\, x^k e^{\lambda x}`.

Such functions are closed under products and derivatives, and their Gaussian moments over an interval are those of a
truncated normal: completing the square, :math:`E[x^k e^{\lambda x} 1_{a<x<b}]` is
:math:`e^{\lambda\mu + \lambda^2\sigma^2/2}\, M_k`, where :math:`M_k` is the k-th moment of
:math:`N(\mu + \lambda\sigma^2, \sigma^2)` restricted to (a, b).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn

from unitvar._torch import has_hooks

__all__ = ["integrals", "pieces"]

Terms: TypeAlias = dict[tuple[int, float], float]
"""(k, λ) → c, the sum of c x^k e^(λx)."""
Piece: TypeAlias = tuple[float, float, Terms]
"""From, to, and what f is in between; f is 0 outside its pieces."""

INF = math.inf
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


def _line(slope: float, intercept: float = 0.0) -> Terms:
    return {(1, 0.0): slope, (0, 0.0): intercept}


def _leaky(slope: float) -> list[Piece]:
    return [(-INF, 0.0, _line(slope)), (0.0, INF, _line(1.0))]


def _exponential(alpha: float, rate: float, scale: float = 1.0) -> list[Piece]:
    return [(-INF, 0.0, {(0, rate): scale * alpha, (0, 0.0): -scale * alpha}), (0.0, INF, _line(scale))]


# Keyed by exact type: a subclass may compute something else.
_PIECES: dict[type, Callable[[Any], list[Piece]]] = {
    nn.Identity: lambda m: [(-INF, INF, _line(1.0))],
    nn.ReLU: lambda m: [(0.0, INF, _line(1.0))],
    nn.LeakyReLU: lambda m: _leaky(m.negative_slope),
    nn.PReLU: lambda m: _leaky(m.weight.item()),
    nn.ReLU6: lambda m: [(0.0, 6.0, _line(1.0)), (6.0, INF, _line(0.0, 6.0))],
    nn.Hardtanh: lambda m: [
        (-INF, m.min_val, _line(0.0, m.min_val)),
        (m.min_val, m.max_val, _line(1.0)),
        (m.max_val, INF, _line(0.0, m.max_val)),
    ],
    nn.Hardsigmoid: lambda m: [(-3.0, 3.0, _line(1 / 6, 0.5)), (3.0, INF, _line(0.0, 1.0))],
    nn.Hardswish: lambda m: [(-3.0, 3.0, {(2, 0.0): 1 / 6, (1, 0.0): 0.5}), (3.0, INF, _line(1.0))],
    nn.Hardshrink: lambda m: [(-INF, -m.lambd, _line(1.0)), (m.lambd, INF, _line(1.0))],
    nn.Softshrink: lambda m: [(-INF, -m.lambd, _line(1.0, m.lambd)), (m.lambd, INF, _line(1.0, -m.lambd))],
    nn.Threshold: lambda m: [(-INF, m.threshold, _line(0.0, m.value)), (m.threshold, INF, _line(1.0))],
    nn.ELU: lambda m: _exponential(m.alpha, 1.0),
    nn.CELU: lambda m: _exponential(m.alpha, 1.0 / m.alpha),
    nn.SELU: lambda m: _exponential(_SELU_ALPHA, 1.0, _SELU_SCALE),
}


def pieces(fn: object) -> list[Piece] | None:
    """Return the pieces of an activation whose closed form is known, else None."""
    if isinstance(fn, nn.PReLU) and (fn.num_parameters > 1 or fn.weight.is_meta):
        return None
    # A hooked module computes what its hooks make of it.
    if isinstance(fn, nn.Module) and has_hooks(fn):
        return None
    build = _PIECES.get(type(fn))
    return build(fn) if build else None


def integrals(pieces: list[Piece], mean: float, std: float) -> tuple[float, float, float, float]:
    """Return E f, E f², E f'² and E z f f' for z ~ N(mean, std²)."""
    first = second = slope = growth = 0.0
    for low, high, f in pieces:
        df = _derivative(f)
        growing = {(k + 1, rate): c for (k, rate), c in _product(f, df).items()}
        first += _expectation(f, low, high, mean, std)
        second += _expectation(_product(f, f), low, high, mean, std)
        slope += _expectation(_product(df, df), low, high, mean, std)
        growth += _expectation(growing, low, high, mean, std)
    return first, second, slope, growth


def _product(f: Terms, g: Terms) -> Terms:
    out: Terms = {}
    for (k, rate), c in f.items():
        for (j, other), d in g.items():
            key = (k + j, rate + other)
            out[key] = out.get(key, 0.0) + c * d
    return out


def _derivative(f: Terms) -> Terms:
    out: Terms = {}
    for (k, rate), c in f.items():
        for key, d in (((k - 1, rate), k * c), ((k, rate), rate * c)):
            if d:
                out[key] = out.get(key, 0.0) + d
    return out


def _expectation(f: Terms, low: float, high: float, mean: float, std: float) -> float:
    return sum((c * _truncated(k, rate, low, high, mean, std) for (k, rate), c in f.items() if c), 0.0)


def _truncated(k: int, rate: float, low: float, high: float, mean: float, std: float) -> float:
    """E[x^k e^(rate x)] over (low, high), by the moments' two-term recursion."""
    centre = mean + rate * std**2
    moments = [_mass(rate, low, high, mean, std)]
    for i in range(1, k + 1):
        edges = _edge(rate, low, i - 1, mean, std) - _edge(rate, high, i - 1, mean, std)
        before = (i - 1) * std**2 * moments[i - 2] if i > 1 else 0.0
        moments.append(centre * moments[i - 1] + before + std**2 * edges)
    return moments[k]


def _mass(rate: float, low: float, high: float, mean: float, std: float) -> float:
    # In logarithms: the factor overflows where the probability underflows (CELU with a small alpha).
    factor = rate * mean + (rate * std) ** 2 / 2
    a, b = ((edge - mean) / std - rate * std for edge in (low, high))
    if a > 0:  # two probabilities near 1 would cancel
        a, b = -b, -a
    log_a, log_b = torch.special.log_ndtr(torch.tensor([a, b], dtype=torch.float64, device="cpu")).tolist()
    return math.exp(factor + log_b) - math.exp(factor + log_a)


def _edge(rate: float, x: float, power: int, mean: float, std: float) -> float:
    """x^power e^(rate x) times the density of N(mean, std²) at x."""
    if math.isinf(x):
        return 0.0
    return x**power * math.exp(rate * x - ((x - mean) / std) ** 2 / 2) / (std * math.sqrt(2 * math.pi))
