"""Sums, products and other maps that are affine in each tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unitvar.expectation.ops.linear import combined
from unitvar.expectation.ops.table import register
from unitvar.expectation.uncertain import Atom, Common, Source, Uncertain, mean_of, var_of, wide

__all__ = ["mul", "number", "product", "scaled"]


def scaled(x: Uncertain, mean: Tensor, scale: Any, move: Callable[[Tensor], Tensor]) -> Uncertain:
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


def number(x: Any) -> Any:
    """Return a factor or a term in the dtype of variances."""
    return wide(x) if isinstance(x, Tensor) else x


@register("mul", "multiply", affine=True, keeps=True)
def mul(op: Any, x: Any, y: Any) -> Uncertain:
    """Multiply: exact by a certain tensor or by an independent one."""
    if isinstance(x, Uncertain) and isinstance(y, Uncertain):
        return product(x, y)
    if isinstance(y, Uncertain):
        x, y = y, x
    return scaled(x, x.mean * y, number(y), lambda t: t * number(y))


def product(x: Uncertain, y: Uncertain) -> Uncertain:
    """Multiply two tensors: exact if they are independent, or if all that they share is a common noise."""
    a, b = wide(x.mean), wide(y.mean)
    mean, var = x.mean * y.mean, x.var * (b.square() + y.var) + a.square() * y.var
    if x.mean.shape != y.mean.shape:
        return Uncertain(mean, var)
    p, q = x.common, y.common
    if p is not None and q is not None and p.key == q.key and p.block == q.block:
        together = p.size * q.size
        var = (var + together * (2 * a * b + together)).clamp_min(0)
        common = _bounded(Common(p.size * b + q.size * a, p.block, p.key), var)
        return Uncertain((a * b + together).to(mean.dtype), var, common)
    return Uncertain(mean, var, _newest([c._replace(size=c.size * f) for c, f in ((p, b), (q, a)) if c is not None]))


def _bounded(common: Common, var: Tensor) -> Common:
    """Let what is common be no more than all there is."""
    size = common.size
    return common._replace(size=torch.where(size.square() > var, size.sign() * var.sqrt(), size))


def _newest(commons: list[Common]) -> Common | None:
    """Of several noises the newest is kept as common; the others stay in the variance."""
    return max(commons, key=lambda c: c.key, default=None)


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
        return scaled(x, x.mean / y, 1 / number(y) if isinstance(y, Tensor) else 1 / y, lambda t: t / number(y))
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
    return scaled(u, mean, sign, lambda t: sign * t + other * number(shift))


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
        parts, shared = _united(x, y, first, second, keys)
        # Only sources that reach both terms make them covary; most sums, as in a residual stream, have none.
        return Uncertain(mean, combined(parts) if shared else var, sources=parts)
    a, b = x.common, y.common
    if a is not None and b is not None and a.key == b.key and a.block == b.block:
        var = (var + 2 * first * second * a.size * b.size).clamp_min(0)
        return Uncertain(mean, var, Common(first * a.size + second * b.size, a.block, a.key))
    scaled = [c._replace(size=s * c.size) for c, s in ((a, first), (b, second)) if c is not None]
    return Uncertain(mean, var, _newest(scaled))


def _united(
    x: Uncertain, y: Uncertain, first: float, second: float, keys: tuple[int | None, ...]
) -> tuple[tuple[Source, ...], bool]:
    """Return the sources of a sum, and whether one of them reaches both terms."""
    found: dict[int, Source] = {}
    shared = False
    for u, sign, own in ((x, first, keys[0]), (y, second, keys[1])):
        for s in u.sources or (Source(own or 0, u.var, None),):
            matrix = s.matrix
            if sign != 1:
                matrix = sign * (_eye(s) if matrix is None else matrix)
            if s.key in found:
                shared = True
                other = found[s.key].matrix
                matrix = (_eye(s) if matrix is None else matrix) + (_eye(s) if other is None else other)
            found[s.key] = Source(s.key, s.var, matrix)
    return tuple(found.values()), shared


def _eye(s: Source) -> Tensor:
    return torch.eye(s.var.shape[-1], dtype=s.var.dtype, device=s.var.device)


@register("neg", "negative", affine=True, keeps=True)
def neg(op: Any, x: Uncertain) -> Uncertain:
    """Change the sign."""
    return scaled(x, -x.mean, -1.0, lambda t: -t)


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
    w = number(weight)
    mean = op(mean_of(start), mean_of(end), weight)
    return Uncertain(mean, var_of(start) * (1 - w) * (1 - w) + var_of(end) * w * w)


def _free_sum(x: Any, y: Any, first: float, second: float) -> Uncertain:
    return Uncertain(first * mean_of(x) + second * mean_of(y), first**2 * var_of(x) + second**2 * var_of(y))
