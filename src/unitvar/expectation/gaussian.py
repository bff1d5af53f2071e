"""Moments of functions of Gaussian tensors, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unitvar.expectation.reuse import Arithmetic, arithmetic
from unitvar.expectation.uncertain import wide

__all__ = ["FEW", "MANY", "Moments", "greater", "quadrature", "relu", "softmax"]

_ROOT_HALF, _ROOT_TWO_PI = math.sqrt(0.5), math.sqrt(2 * math.pi)
_PROBIT = math.pi / 8  # MacKay (1992): a logistic function is close to a Gaussian's distribution function
_FAR = {torch.float32: 7.0, torch.float64: 11.0}  # deviations past which a tail is below the dtype's resolution
_MOST = 50.0  # the largest variance in an exponent; e⁵⁰ is still a float32 when it is squared with its weight


class Moments(NamedTuple):
    """The mean and the variance of f(x), and E f'(x), by which f(x) covaries with whatever x covaries with (Stein)."""

    mean: Tensor
    var: Tensor
    slope: Tensor


def standardised(mean: Tensor, var: Tensor, o: Arithmetic) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return std, mean / std, and the standard normal's density and distribution function there.

    The quotient ends where the tails are below the dtype's resolution, and there the density is zero. Smaller numbers
    would become denormal once they are squared, and those take a processor a hundred times as long.
    """
    far = _FAR[var.dtype]
    inverse = o.rsqrt(var.clamp_min(torch.finfo(var.dtype).tiny))
    std = inverse * var
    a = o.clamp(o.mul(inverse, wide(mean)), -far, far)
    density = o.exp(o.mul(a * a, -0.5))
    density = o.mul(o.sub(density, math.exp(-0.5 * far**2)), 1 / _ROOT_TWO_PI)
    return std, a, density, o.mul(o.add(o.erf(a * _ROOT_HALF), 1), 0.5)


def relu(mean: Tensor, var: Tensor) -> Moments:
    """Return the moments of max(x, 0): exact.

    In units of the standard deviation, with a = mean / std, the mean is g = a Φ(a) + φ(a) and the variance
    Φ(a) + g (a - g).
    """
    o = arithmetic(mean, var)
    std, a, density, above = standardised(mean, var, o)
    g = o.addcmul(density, a, above)
    share = o.clamp(o.add(o.mul(o.sub(a, g), g), above), 0, 1)
    # Where the function is linear, the mean is at least the argument's: also far out.
    return Moments(torch.maximum(o.mul(std, g), wide(mean)), o.mul(share, var), above)


FEW, MANY = 7, 16  # nodes for smooth functions, and for any


def _rule(nodes: int) -> list[tuple[float, float]]:
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return list(zip(points.tolist(), (weights / weights.sum()).tolist(), strict=True))


_RULES = {n: _rule(n) for n in (FEW, MANY)}


def quadrature(
    f: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor, *, nodes: int = FEW, slope: bool = False
) -> Moments:
    """Return the moments of any elementwise function by Gauss-Hermite quadrature.

    Deviations are taken from f at the mean, so that nothing cancels and the variance is never negative. With many nodes
    f may be anything: where it is not finite, as a logarithm of a negative number is, f at the mean stands in.

    Args:
        f: the function.
        mean: of its argument.
        var: of its argument.
        nodes: FEW or MANY.
        slope: whether to return E f', too; else that is f at the mean, which nobody should ask for.
    """
    std, wider = var.sqrt(), wide(mean)
    centre = f(mean).to(std.dtype)
    o = arithmetic(mean, var, centre)
    first, second = torch.zeros_like(centre), torch.zeros_like(centre)
    rise = torch.zeros_like(centre) if slope else None
    for point, weight in _RULES[nodes]:
        if abs(point) < 1e-9:
            continue  # f at the mean itself does not deviate
        change = f(torch.add(wider, std, alpha=point).to(mean.dtype)).to(std.dtype) - centre
        if nodes == MANY:
            change = torch.where(change.isfinite(), change, 0.0)
        first = o.add(first, change, alpha=weight)
        second = o.addcmul(second, change, change, value=weight)
        if rise is not None:
            rise = o.add(rise, change, alpha=weight * point)
    spread = o.clamp(o.addcmul(second, first, first, value=-1), 0)
    tiny = torch.finfo(std.dtype).tiny ** 0.5
    mean = o.add(first, centre)
    return Moments(mean, spread, centre if rise is None else rise / std.clamp_min(tiny))


def greater(
    a: tuple[Tensor, Tensor, Tensor | None], b: tuple[Tensor, Tensor, Tensor | None]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return mean, variance and common noise of the larger of two Gaussians (Clark 1961).

    Each is given by its mean, its variance and the noise that both share, None if they share none.
    """
    (mean_a, var_a, common_a), (mean_b, var_b, common_b) = a, b
    o = arithmetic(mean_a, var_a, common_a, mean_b, var_b, common_b)
    together = common_a * common_b if common_a is not None and common_b is not None else None
    spread = var_a + var_b
    if together is not None:
        spread = o.clamp(o.sub(spread, together, alpha=2), 0)
    # max(a, b) = b + max(a - b, 0), and the two terms covary by Cov(b, a - b) Φ.
    gain = relu(mean_a - mean_b, spread)
    own = var_b if together is None else var_b - together
    var = o.clamp(o.addcmul(gain.var + var_b, gain.slope, own, value=-2), 0)
    common = None
    if common_a is not None and common_b is not None:
        common = torch.lerp(common_b, common_a, gain.slope)
    return o.add(gain.mean, mean_b), var, common


def softmax(mean: Tensor, var: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of a softmax of independent Gaussians, and p² times the variance of its logits.

    Each probability is the logistic function of a logit less the log-sum-exp of the others. That sum is taken as
    log-normal (Fenton 1960), and the logistic function's mean as MacKay's. With two classes this is MacKay's formula,
    and without variance the softmax. The variance is of first order, bounded by p (1 - p).
    """
    o = arithmetic(mean, var)
    tiny, least = torch.finfo(mean.dtype).tiny, torch.finfo(mean.dtype).eps ** 2
    calm = var.clamp_max(_MOST)
    raised = torch.add(mean, calm, alpha=0.5)
    top = raised.amax(dim, keepdim=True)
    top = torch.where(top.isfinite(), top, 0.0)
    weight = o.exp(o.sub(raised, top))
    noise = o.mul(o.mul(o.expm1(calm), weight), weight)
    others = o.clamp(weight.sum(dim, keepdim=True) - weight, least)
    ratio = o.div(o.div(noise.sum(dim, keepdim=True) - noise, others), others)
    spread = torch.log1p(o.clamp(ratio, 0))
    margin = o.sub(mean - top, torch.log(others))
    margin = o.add(margin, spread, alpha=0.5)
    width = o.rsqrt(o.add(o.mul(o.add(spread, var), _PROBIT), 1))
    p = torch.sigmoid(o.mul(margin, width))
    p = p / p.sum(dim, keepdim=True).clamp_min(tiny)
    full = torch.addcmul(p, p, p, value=-1)
    square = p * p
    weighted = o.mul(var / o.add(full * var, 1), square)
    first_order = torch.addcmul(weighted, weighted, p, value=-2)
    first_order = o.addcmul(first_order, square, weighted.sum(dim, keepdim=True))
    return p, torch.minimum(o.clamp(first_order, 0), full), weighted
