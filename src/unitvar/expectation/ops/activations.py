"""Elementwise functions that are not affine: activations, and the larger of two tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unitvar.expectation import gaussian
from unitvar.expectation.blocks import in_blocks
from unitvar.expectation.gaussian import Moments
from unitvar.expectation.ops.affine import number, product, scaled
from unitvar.expectation.ops.table import register
from unitvar.expectation.reuse import arithmetic
from unitvar.expectation.uncertain import Uncertain, mean_of, var_of, wide

__all__ = ["activation", "region", "relu", "smooth"]


def activation(
    x: Uncertain,
    moments: Callable[[Tensor, Tensor], Moments],
    value: Callable[[Tensor], Tensor],
    *,
    uniform: bool = True,
) -> Uncertain:
    """Apply an elementwise function whose Gaussian moments are known.

    Dropped elements, where dropout stands just before the function, count with the value that they have.

    Args:
        x: the argument.
        moments: the moments of the function for a mean and a variance.
        value: the function itself.
        uniform: whether it is the same function for all elements.
    """

    def at(mean: Tensor, var: Tensor) -> Moments:
        return in_blocks(moments, mean, var, slope=x.common is not None) if uniform else moments(mean, var)

    atom = x.atom
    if atom is None:
        found = at(x.mean, x.var)
    else:
        kept, dropped = at(atom.mean, atom.var), value(atom.value).to(x.var.dtype)
        gap, lost = kept.mean - dropped, 1 - atom.keep
        mean = dropped + atom.keep * gap
        found = Moments(mean, atom.keep * (kept.var + lost * gap.square()), kept.slope)
    common = x.common
    if common is not None:
        size = common.size * found.slope
        # First order: what is common cannot be more than all there is.
        size = torch.where(size.square() > found.var, size.sign() * found.var.sqrt(), size)
        common = common._replace(size=size)
    return Uncertain(found.mean.to(x.mean.dtype), found.var, common)


def region(f: Callable[..., Tensor], x: Uncertain, *others: Any) -> Uncertain:
    """Apply any elementwise function of one uncertain tensor by quadrature."""

    def at(t: Tensor) -> Tensor:
        return f(t.to(x.mean.dtype), *others)

    slope = x.common is not None

    def moments(mean: Tensor, var: Tensor) -> Moments:
        return gaussian.quadrature(at, mean, var, nodes=gaussian.MANY, slope=slope)

    found = activation(x, moments, at, uniform=False)
    like = f(x.mean, *others)
    return found._replace(mean=found.mean.to(like.dtype)) if like.is_floating_point() else found


@register("relu", method="closed form")
def relu(op: Any, x: Uncertain) -> Uncertain:
    """Rectify."""
    return activation(x, gaussian.relu, torch.relu)


@register(
    "leaky_relu", "prelu", "_prelu_kernel", method="closed form", takes=lambda x, s=0.01: not isinstance(s, Uncertain)
)
def leaky_relu(op: Any, x: Uncertain, slope: Any = 0.01) -> Uncertain:
    """Rectify with a slope on the left."""
    if isinstance(slope, Tensor) and slope.dim() == 1 and x.mean.dim() > 1 and slope.numel() > 1:
        slope = slope.reshape(1, -1, *(1 for _ in x.mean.shape[2:]))
    a = number(slope)

    def moments(mean: Tensor, var: Tensor) -> Moments:
        m = gaussian.relu(mean, var)
        b = 1 - a
        spread = a * a * var + b * b * m.var + 2 * a * b * var * m.slope
        return Moments(a * mean + b * m.mean, spread.clamp_min(0), a + b * m.slope)

    return activation(x, moments, lambda t: torch.where(t > 0, t, a * t), uniform=not isinstance(a, Tensor))


def _clamped(x: Uncertain, low: float | None, high: float | None) -> Uncertain:
    def moments(mean: Tensor, var: Tensor) -> Moments:
        if low is None:  # -max(-x, -high)
            m = gaussian.relu((high or 0.0) - mean, var)
            return Moments((high or 0.0) - m.mean, m.var, m.slope)
        a = gaussian.relu(mean - low, var)
        if high is None:
            return Moments(low + a.mean, a.var, a.slope)
        b = gaussian.relu(mean - high, var)
        width = high - low
        # max(x - low, 0) = max(x - high, 0) + width wherever the latter is not zero
        together = b.var + b.mean * (b.mean + width - a.mean)
        spread = (a.var + b.var - 2 * together).clamp(0, width**2 / 4)
        return Moments(low + a.mean - b.mean, spread, a.slope - b.slope)

    return activation(x, moments, lambda t: t.clamp(low, high))


@register("relu6", method="closed form")
def relu6(op: Any, x: Uncertain) -> Uncertain:
    """Clamp to (0, 6)."""
    return _clamped(x, 0.0, 6.0)


@register("hardtanh", method="closed form")
def hardtanh(op: Any, x: Uncertain, low: float = -1.0, high: float = 1.0) -> Uncertain:
    """Clamp to an interval."""
    return _clamped(x, float(low), float(high))


@register(
    "clamp", "clip", "clamp_min", "clamp_max", method="closed form",
    takes=lambda x, *bounds: not any(isinstance(b, (Tensor, Uncertain)) for b in bounds),
)  # fmt: skip
def clamp(op: Any, x: Uncertain, *bounds: float | None) -> Uncertain:
    """Clamp to an interval that may be open."""
    low, high = (bounds[0], None) if len(bounds) == 1 else bounds[:2]
    if "clamp_max" in str(op):
        low, high = None, low
    return _clamped(x, None if low is None else float(low), None if high is None else float(high))


@register("hardsigmoid", method="closed form")
def hardsigmoid(op: Any, x: Uncertain) -> Uncertain:
    """Clamp x / 6 + 1 / 2 to (0, 1)."""
    return _clamped(scaled(x, x.mean / 6 + 0.5, 1 / 6, lambda t: t / 6 + 0.5), 0.0, 1.0)


def _exponential(x: Uncertain, alpha: float, scale: float, rate: float) -> Uncertain:
    """Apply scale · x right of zero and scale · alpha · (e^(rate x) - 1) left of it."""

    def below(mean: Tensor, var: Tensor, k: float) -> Tensor:
        """E[e^(kx); x < 0]; by erfcx where a factor would overflow and a probability underflow."""
        std = var.sqrt().clamp_min(torch.finfo(var.dtype).tiny ** 0.5)
        at = (mean + k * var) / std
        far = torch.exp(-0.5 * (mean / std).square()) * 0.5 * torch.special.erfcx(at.clamp_min(0) * math.sqrt(0.5))
        near = torch.exp((k * mean + k * k * var / 2).clamp_max(0)) * torch.special.ndtr(-at)
        return torch.where(at > 0, far, near)

    def moments(mean: Tensor, var: Tensor) -> Moments:
        mean = wide(mean)
        m = gaussian.relu(mean, var)
        once, twice, none = below(mean, var, rate), below(mean, var, 2 * rate), below(mean, var, 0.0)
        left = alpha * (once - none)
        square = alpha**2 * (twice - 2 * once + none)
        # The two sides are never both there, so their covariance is minus the product of their means.
        spread = m.var + (square - left.square()).clamp_min(0) - 2 * m.mean * left
        return Moments(scale * (m.mean + left), scale**2 * spread.clamp_min(0), scale * (m.slope + alpha * rate * once))

    def value(t: Tensor) -> Tensor:
        return scale * torch.where(t > 0, t, alpha * torch.expm1(rate * t.clamp_max(0)))

    return activation(x, moments, value)


@register("elu", method="closed form")
def elu(op: Any, x: Uncertain, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Uncertain:
    """Apply an exponential linear unit."""
    return _exponential(x, float(alpha), float(scale), float(input_scale))


@register("celu", method="closed form")
def celu(op: Any, x: Uncertain, alpha: float = 1.0) -> Uncertain:
    """Apply a continuously differentiable exponential linear unit."""
    return _exponential(x, float(alpha), 1.0, 1 / float(alpha))


@register("selu", method="closed form")
def selu(op: Any, x: Uncertain) -> Uncertain:
    """Apply a scaled exponential linear unit."""
    return _exponential(x, 1.6732632423543772, 1.0507009873554805, 1.0)


@register("abs", method="closed form")
def absolute(op: Any, x: Uncertain) -> Uncertain:
    """Take the absolute value: x + 2 max(-x, 0)."""
    return leaky_relu(op, x, -1.0)


@register("square", method="closed form")
def square(op: Any, x: Uncertain) -> Uncertain:
    """Square: E x² = m² + v, Var x² = 2 v² + 4 m² v for a Gaussian."""

    def moments(mean: Tensor, var: Tensor) -> Moments:
        both = wide(mean).square()
        return Moments(both + var, 2 * var.square() + 4 * both * var, 2 * wide(mean))

    return activation(x, moments, torch.square)


@register("exp", method="closed form")
def exp(op: Any, x: Uncertain) -> Uncertain:
    """Exponentiate: log-normal moments."""

    def moments(mean: Tensor, var: Tensor) -> Moments:
        top = torch.finfo(var.dtype).max ** 0.25
        level = torch.exp(wide(mean) + var / 2).clamp_max(top)
        return Moments(level, (level.square() * torch.expm1(var)).clamp_max(top**3), level)

    return activation(x, moments, torch.exp)


@register("gelu", method="closed form and quadrature")
def gelu(op: Any, x: Uncertain, approximate: str = "none") -> Uncertain:
    """Apply GELU: x Φ(x) has the mean m Φ(r m) + v r φ(r m) with r = 1 / √(1 + v); its variance is by quadrature."""

    def moments(mean: Tensor, var: Tensor) -> Moments:
        found = gaussian.quadrature(value, mean, var, slope=x.common is not None)
        if approximate != "none":
            return found
        o = arithmetic(mean, var)
        wider = 1 + var
        r = torch.rsqrt(wider)
        a = wide(mean) * r
        density = o.mul(o.exp(o.mul(a * a, -0.5)), 1 / math.sqrt(2 * math.pi))
        # m Φ(r m) is gelu(r m) / r, and torch's kernel for it is several times faster than erf.
        level = o.mul(o.mul(torch.nn.functional.gelu(a), r), wider)
        return found._replace(mean=o.addcmul(level, o.mul(density, r), var))

    def value(t: Tensor) -> Tensor:
        return torch.nn.functional.gelu(t, approximate=approximate)

    return activation(x, moments, value)


@register(
    "silu", "tanh", "sigmoid", "softplus", "mish", "hardswish", "log_sigmoid", "erf", "sin", "cos", method="quadrature"
)
def smooth(op: Any, x: Uncertain, *rest: Any, **named: Any) -> Uncertain:
    """Apply a smooth activation."""

    def value(t: Tensor) -> Tensor:
        out: Tensor = op(t, *rest, **named)
        return out

    nodes = gaussian.MANY if "hardswish" in str(op) else gaussian.FEW  # which has kinks

    def moments(mean: Tensor, var: Tensor) -> Moments:
        return gaussian.quadrature(value, mean, var, nodes=nodes, slope=x.common is not None)

    return activation(x, moments, value)


@register("glu", method="quadrature")
def glu(op: Any, x: Uncertain, dim: int = -1) -> Uncertain:
    """Multiply one half by the sigmoid of the other, as if they were independent."""
    halves = zip(x.mean.chunk(2, dim), x.var.chunk(2, dim), strict=True)
    value, gate = (Uncertain(mean, var) for mean, var in halves)
    return product(value, smooth(torch.sigmoid, gate))


@register("maximum", "minimum", method="closed form")
def maximum(op: Any, x: Any, y: Any) -> Uncertain:
    """Take the larger or the smaller of two independent tensors."""
    sign = -1.0 if "minimum" in str(op) else 1.0
    a, b = ((sign * wide(mean_of(t)), var_of(t), None) for t in (x, y))
    mean, var, _ = gaussian.greater(a, b)
    return Uncertain((sign * mean).to(mean_of(x).dtype), var)
