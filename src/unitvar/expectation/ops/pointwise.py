"""Elementwise ops: sums, products and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unitvar.expectation import gaussian
from unitvar.expectation.gaussian import Moments
from unitvar.expectation.ops.linear import combined
from unitvar.expectation.ops.table import register
from unitvar.expectation.uncertain import Atom, Common, Source, Uncertain, mean_of, var_of, wide

__all__ = ["activation", "region"]


# Affine maps of one uncertain tensor.


def _scaled(x: Uncertain, mean: Tensor, scale: Any, move: Callable[[Tensor], Tensor]) -> Uncertain:
    """Return scale · x + shift, where the mean is known already, and ``move`` does the same to any tensor."""
    square = scale * scale
    var = (x.var * square).expand(mean.shape)
    common, sources, atom = x.common, x.sources, x.atom
    if common is not None:
        size = common.size * scale
        common = common._replace(size=size) if size.shape == x.mean.shape else None
    if sources:
        sources = _scaled_sources(sources, scale, x.mean, mean)
    if atom is not None:
        atom = Atom(atom.keep, move(atom.mean), (atom.var * square).expand(mean.shape), move(atom.value))
    return Uncertain(mean, var, common, sources, atom)


def _scaled_sources(sources: tuple[Source, ...], scale: Any, old: Tensor, new: Tensor) -> tuple[Source, ...]:
    if old.shape != new.shape:
        return ()
    if isinstance(scale, Tensor) and scale.dim() > 0:
        if scale.numel() != 1 and (scale.shape[-1] != old.shape[-1] or scale.numel() != scale.shape[-1]):
            return ()  # examples have scales of their own
        column = scale.reshape(-1, 1) if scale.numel() > 1 else scale.reshape(())
    else:
        column = scale
    eye = torch.eye(old.shape[-1], dtype=sources[0].var.dtype, device=old.device)
    return tuple(s._replace(matrix=(eye if s.matrix is None else s.matrix) * column) for s in sources)


def _number(x: Any) -> Any:
    return wide(x) if isinstance(x, Tensor) else x


@register("mul", "multiply", affine=True, keeps=True)
def mul(op: Any, x: Any, y: Any) -> Uncertain:
    """Multiply: exact by a certain tensor or by an independent one."""
    if isinstance(x, Uncertain) and isinstance(y, Uncertain):
        return _product(x, y)
    if isinstance(y, Uncertain):
        x, y = y, x
    return _scaled(x, x.mean * y, _number(y), lambda t: t * _number(y))


def _product(x: Uncertain, y: Uncertain) -> Uncertain:
    a, b = wide(x.mean), wide(y.mean)
    return Uncertain(x.mean * y.mean, x.var * (b.square() + y.var) + a.square() * y.var)


@register(
    "div",
    "divide",
    "true_divide",
    affine=True,
    keeps=True,
    takes=lambda x, y, rounding_mode=None: rounding_mode is None,
)
def div(op: Any, x: Any, y: Any, rounding_mode: None = None) -> Uncertain:
    """Divide: exact by a certain tensor, of second order by an uncertain one."""
    if not isinstance(y, Uncertain):
        return _scaled(x, x.mean / y, 1 / _number(y) if isinstance(y, Tensor) else 1 / y, lambda t: t / _number(y))
    below, var = wide(y.mean), y.var
    share = (var / below.square()).clamp_max(1.0)  # beyond it the expansion says nothing
    ratio = wide(mean_of(x)) / below if isinstance(x, (Tensor, Uncertain)) else x / below
    own = x.var / below.square() if isinstance(x, Uncertain) else 0.0
    mean = ratio * (1 + share)
    return Uncertain(mean.to(y.mean.dtype), own + ratio.square() * share)


@register("add", "sub", "subtract", "rsub", affine=True, keeps=True, keyed=True)
def add(op: Any, x: Any, y: Any, alpha: float = 1, *, keys: tuple[int | None, ...] = (), key: int = 0) -> Uncertain:
    """Add or subtract: exact for independent tensors, for such as share dense sources and for common noise."""
    first, second = _signs(op, alpha)
    if isinstance(x, Uncertain) and isinstance(y, Uncertain):
        return _sum(x, y, first, second, keys)
    mean = op(mean_of(x), mean_of(y), alpha=alpha) if alpha != 1 else op(mean_of(x), mean_of(y))
    u, sign, other = (x, first, second) if isinstance(x, Uncertain) else (y, second, first)
    shift = y if u is x else x
    return _scaled(u, mean, sign, lambda t: sign * t + other * _number(shift))


def _signs(op: Any, alpha: float) -> tuple[float, float]:
    name = str(op)
    if "rsub" in name:
        return -alpha, 1.0
    return 1.0, -alpha if "sub" in name else alpha


def _sum(x: Uncertain, y: Uncertain, first: float, second: float, keys: tuple[int | None, ...]) -> Uncertain:
    mean = first * x.mean + second * y.mean
    var = first**2 * x.var + second**2 * y.var
    if x.mean.shape != y.mean.shape:
        return Uncertain(mean, var)
    if x.sources or y.sources:
        parts = _united(x, y, first, second, keys)
        return Uncertain(mean, combined(parts), sources=parts)
    a, b = x.common, y.common
    if a is not None and b is not None and a.key == b.key and a.block == b.block:
        var = (var + 2 * first * second * a.size * b.size).clamp_min(0)
        return Uncertain(mean, var, Common(first * a.size + second * b.size, a.block, a.key))
    # Of two noises the newer one is kept as common; the other stays in the variance.
    scaled = [c._replace(size=s * c.size) for c, s in ((a, first), (b, second)) if c is not None]
    newest = None
    for c in scaled:
        newest = c if newest is None or c.key > newest.key else newest
    return Uncertain(mean, var, newest)


def _united(
    x: Uncertain, y: Uncertain, first: float, second: float, keys: tuple[int | None, ...]
) -> tuple[Source, ...]:
    found: dict[int, Source] = {}
    for u, sign, own in ((x, first, keys[0]), (y, second, keys[1])):
        for s in u.sources or (Source(own or 0, u.var, None),):
            matrix = s.matrix
            if sign != 1:
                matrix = sign * (_eye(s) if matrix is None else matrix)
            if s.key in found:
                other = found[s.key].matrix
                matrix = (_eye(s) if matrix is None else matrix) + (_eye(s) if other is None else other)
            found[s.key] = Source(s.key, s.var, matrix)
    return tuple(found.values())


def _eye(s: Source) -> Tensor:
    return torch.eye(s.var.shape[-1], dtype=s.var.dtype, device=s.var.device)


@register("neg", "negative", affine=True, keeps=True)
def neg(op: Any, x: Uncertain) -> Uncertain:
    """Change the sign."""
    return _scaled(x, -x.mean, -1.0, lambda t: -t)


@register("lerp", "addcmul", method="independent")
def lerp(op: Any, *args: Any, value: float = 1) -> Uncertain:
    """Combine three tensors as if they were independent."""
    if "addcmul" in str(op):
        x, a, b = args
        term = mul(op, a, b) if isinstance(a, Uncertain) or isinstance(b, Uncertain) else a * b
        return _free_sum(x, term, 1.0, value)
    start, end, weight = args
    if isinstance(weight, Uncertain):
        gap = (
            _free_sum(end, start, 1.0, -1.0)
            if isinstance(end, Uncertain) or isinstance(start, Uncertain)
            else end - start
        )
        return _free_sum(start, mul(op, gap, weight), 1.0, 1.0)
    w = _number(weight)
    mean = op(mean_of(start), mean_of(end), weight)
    return Uncertain(mean, var_of(start) * (1 - w) * (1 - w) + var_of(end) * w * w)


def _free_sum(x: Any, y: Any, first: float, second: float) -> Uncertain:
    return Uncertain(first * mean_of(x) + second * mean_of(y), first**2 * var_of(x) + second**2 * var_of(y))


# Activations.


def activation(
    x: Uncertain, moments: Callable[[Tensor, Tensor], Moments], value: Callable[[Tensor], Tensor]
) -> Uncertain:
    """Apply an elementwise function whose Gaussian moments are known.

    Dropped elements, where dropout stands just before the function, count with the value that they have.
    """
    found = moments(x.mean, x.var) if x.atom is None else None
    if found is None:
        atom = x.atom
        assert atom is not None
        kept, dropped = moments(atom.mean, atom.var), value(atom.value).to(x.var.dtype)
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
    found = activation(x, lambda mean, var: gaussian.quadrature(at, mean, var, nodes=gaussian.MANY, slope=slope), at)
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
    a = _number(slope)

    def moments(mean: Tensor, var: Tensor) -> Moments:
        m = gaussian.relu(mean, var)
        b = 1 - a
        spread = a * a * var + b * b * m.var + 2 * a * b * var * m.slope
        return Moments(a * mean + b * m.mean, spread.clamp_min(0), a + b * m.slope)

    return activation(x, moments, lambda t: torch.where(t > 0, t, a * t))


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
    return _clamped(_scaled(x, x.mean / 6 + 0.5, 1 / 6, lambda t: t / 6 + 0.5), 0.0, 1.0)


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
        r = torch.rsqrt(1 + var)
        a = wide(mean) * r
        density = torch.exp(-0.5 * a.square()) / math.sqrt(2 * math.pi)
        return found._replace(mean=wide(mean) * 0.5 * (1 + torch.erf(a * math.sqrt(0.5))) + var * r * density)

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
    return _product(value, smooth(torch.sigmoid, gate))


@register("maximum", "minimum", method="closed form")
def maximum(op: Any, x: Any, y: Any) -> Uncertain:
    """Take the larger or the smaller of two independent tensors."""
    sign = -1.0 if "minimum" in str(op) else 1.0
    a, b = ((sign * wide(mean_of(t)), var_of(t), None) for t in (x, y))
    mean, var, _ = gaussian.greater(a, b)
    return Uncertain((sign * mean).to(mean_of(x).dtype), var)
