"""Moments of a softmax over Gaussian scores.

With e_j = exp(s_j) and S = Σ e_j, 1 / S^k = ∫ t^(k-1) e^(-tS) dt / (k-1)!, so that every moment of a_j = e_j / S is an
integral of powers of φ(t) = E e^(-t e) and ψ_k(t) = E e^k e^(-t e), whatever the number of scores.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

__all__ = ["SoftmaxMoments", "softmax_moments"]

_WIDEST = 900.0  # variance of scores beyond which one of them takes all
_REACH, _STEP = 9.0, 0.05  # of a score, in standard deviations


class SoftmaxMoments(NamedTuple):
    """Hold moments of the weights a_1 … a_n of a softmax.

    Attributes:
        squares: E Σ a².
        slopes: E Σ a_j² (1 - 2 a_j + Σ a²), the share of a gradient that passes: of a (g - Σ a g) for unrelated g.
    """

    squares: float
    slopes: float


def softmax_moments(var: float, count: float) -> SoftmaxMoments:
    """Return the moments for scores of this variance.

    Example:
        >>> round(softmax_moments(0.0, 4).squares, 6), round(softmax_moments(0.0, 4).slopes, 6)
        (0.25, 0.1875)
    """
    n = max(1, round(count))
    if n == 1:
        return SoftmaxMoments(1.0, 0.0)
    if var < 1e-8:
        return SoftmaxMoments(1.0 / n, (1 - 1 / n) / n)
    return _moments(float(f"{min(var, _WIDEST):.5g}"), n)


@lru_cache(maxsize=16384)
def _moments(var: float, n: int) -> SoftmaxMoments:
    u, log_phi, psi = _transforms(var)
    step = u[1] - u[0]
    rest = np.exp((n - 1) * log_phi)

    def integral(k: int, values: Any) -> float:
        """Return ∫ values dt / (t (k-1)!), along log t."""
        return float(values.sum() * step / math.factorial(k - 1))

    squares = n * integral(2, psi[2] * rest)
    cubes = n * integral(3, psi[3] * rest)
    fourth = n * integral(4, psi[4] * rest)
    pairs = n * (n - 1) * integral(4, psi[2] ** 2 * np.exp((n - 2) * log_phi)) if n > 1 else 0.0
    squares = min(1.0, max(1.0 / n, squares))
    return SoftmaxMoments(squares, max(0.0, squares - 2 * cubes + fourth + pairs))


@lru_cache(maxsize=1024)
def _transforms(var: float) -> tuple[Any, Any, dict[int, Any]]:
    """Return log t, log φ(t) and t^k ψ_k(t) on a grid."""
    std = math.sqrt(var)
    z = np.arange(-_REACH, _REACH + _STEP / 2, _STEP)
    weight = np.exp(-z * z / 2)
    weight /= weight.sum()
    s = std * z
    # From where no score counts any more to where the largest of very many is all.
    u = np.arange(-std * _REACH - 30.0, std * _REACH + 5.0, min(0.25, 0.1 + std / 60))
    x = np.minimum(u[:, None] + s, 50.0)
    grown = np.exp(x)
    phi = np.exp(-grown) @ weight
    with np.errstate(divide="ignore"):
        log_phi = np.log(phi)
    # ψ_k alone overflows; times t^k it stays of order one.
    psi = {k: np.exp(k * x - grown) @ weight for k in (2, 3, 4)}
    return u, log_phi, psi
