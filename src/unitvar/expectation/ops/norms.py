"""Norms."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from unitvar.expectation.ops.affine import scaled
from unitvar.expectation.ops.table import Rule, register
from unitvar.expectation.reuse import arithmetic
from unitvar.expectation.uncertain import Common, Uncertain, wide


def batch_statistics(
    op: Any, x: Uncertain, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float,
    *rest: Any,
) -> Uncertain:  # fmt: skip
    """Normalise each channel with the statistics of its batch, as a batch norm without running ones does."""
    turned = [t.transpose(0, 1) for t in (x.mean, x.var)]
    flat = _normalised(Uncertain(turned[0].flatten(1), turned[1].flatten(1)), 1, eps, True)
    shape = turned[0].shape
    made = Uncertain(flat.mean.reshape(shape).transpose(0, 1), flat.var.reshape(shape).transpose(0, 1))
    return _affine(made, *_by_channel(x, weight, bias), x.mean.dtype)


def _by_channel(x: Uncertain, weight: Any, bias: Any) -> tuple[Any, Any]:
    """Give scales and shifts of channels a shape that broadcasts."""
    each = (-1, *(1 for _ in x.mean.shape[2:]))
    return (None if weight is None else weight.reshape(each)), (None if bias is None else bias.reshape(each))


@register("batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training", affine=True, keeps=True,
          takes=lambda x, w, b, m, v, *rest: _running(x, m, rest),
          otherwise=Rule(batch_statistics, "first order"))  # fmt: skip
def batch_norm(op: Any, x: Uncertain, weight: Any, bias: Any, mean: Tensor, var: Tensor, *rest: Any) -> Any:
    """Normalise with running statistics: exact."""
    out = op(x.mean, weight, bias, mean, var, *rest)
    eps = rest[-1] if "no_training" in str(op) else rest[2]
    whole = not isinstance(out, Tensor)
    shape = (1, -1, *(1 for _ in x.mean.shape[2:]))
    scale = torch.rsqrt(wide(var) + eps)
    scale = scale if weight is None else scale * wide(weight)
    shift = -wide(mean) * scale
    shift = shift if bias is None else shift + wide(bias)
    scale, shift = (scale.reshape(shape), shift.reshape(shape)) if x.mean.dim() > 1 else (scale, shift)
    made = scaled(x, out[0] if whole else out, scale, lambda t: t * scale + shift)
    return (made, *out[1:]) if whole else made


def _running(x: Any, mean: Any, rest: tuple[Any, ...]) -> bool:
    """Return True if a batch norm uses running statistics."""
    return isinstance(x, Uncertain) and mean is not None and not (rest and rest[0] is True)


def _normalised(x: Uncertain, dims: int, eps: float, centred: bool) -> Uncertain:
    """Divide by the root of the mean square over the last dimensions, after subtracting the mean where ``centred``.

    The mean square includes the noise's; the variance is of first order. With y the normalised mean, an error e in the
    input moves the output by (e - mean(e) - y mean(y e)) / std.
    """
    over = tuple(range(-dims, 0))
    mean, own = wide(x.mean), x.rest
    count = math.prod(x.mean.shape[-dims:])
    o = arithmetic(mean, x.var)
    centre = mean - mean.mean(over, keepdim=True) if centred else mean
    noise = own.mean(over, keepdim=True)
    first = noise / count
    noise = noise * ((count - 1) / count if centred else 1.0)
    if x.common is not None:  # a common error is not independent of itself: its own mean is taken off exactly
        size = x.common.size
        same = size - size.mean(over, keepdim=True) if centred else size
        noise = noise + same.square().mean(over, keepdim=True)
    square = centre * centre
    scale = torch.rsqrt(square.mean(over, keepdim=True) + noise + eps)
    y = o.mul(centre, scale) if centred else centre * scale
    square = o.mul(square, scale.square())
    weighted = own * y
    second, third = (weighted.mean(over, keepdim=True) / count, (weighted * y).mean(over, keepdim=True) / count)
    # own (1 - 2 (1 + y²) / n) + first + 2 y second + y² third; the terms with "first" and 1 only where it is centred
    spread = o.mul(square * (-2 / count) + (1 - 2 / count if centred else 1.0), own)
    spread = o.addcmul(spread, square, third)
    if centred:
        spread = o.addcmul(o.add(spread, first), y, second, value=2)
    spread = o.mul(o.clamp(spread, 0), scale.square())
    if x.common is None:
        return Uncertain(y, spread)
    size = x.common.size
    error = (size - size.mean(over, keepdim=True)) if centred else size
    error = (error - y * (y * size).mean(over, keepdim=True)) * scale
    return Uncertain(y, spread + error.square(), Common(error, x.common.block, x.common.key))


def _affine(x: Uncertain, weight: Any, bias: Any, dtype: torch.dtype) -> Uncertain:
    if weight is not None:
        scale = wide(weight)
        common = x.common
        if common is not None:
            common = common._replace(size=common.size * scale)
        x = Uncertain(x.mean * scale, x.var * scale.square(), common)
    mean = x.mean if bias is None else x.mean + wide(bias)
    return x._replace(mean=mean.to(dtype))


def _by_row(x: Uncertain, dims: int, eps: float, centred: bool) -> Uncertain:
    """Normalise rows; where only parts of a row share their noise, as channels do, that share stays what it is."""
    common, features = x.common, math.prod(x.mean.shape[-dims:])
    if common is None or common.block % features == 0:
        return _normalised(x, dims, eps, centred)
    made = _normalised(Uncertain(x.mean, x.var), dims, eps, centred)
    ratio = (made.var / x.var.clamp_min(torch.finfo(x.var.dtype).tiny)).sqrt()
    return made._replace(common=common._replace(size=common.size * ratio))


@register("layer_norm", "native_layer_norm", method="first order")
def layer_norm(
    op: Any, x: Uncertain, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *rest: Any
) -> Any:
    """Normalise each row."""
    made = _by_row(x, len(shape), eps, True)
    made = _affine(made, weight, bias, x.mean.dtype)
    if "native" not in str(op):
        return made
    return (made, *op(x.mean, shape, weight, bias, eps)[1:])


@register("rms_norm", "_fused_rms_norm", method="first order")
def rms_norm(op: Any, x: Uncertain, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Divide each row by its root mean square."""
    eps = torch.finfo(x.mean.dtype).eps if eps is None else eps
    made = _affine(_by_row(x, len(shape), eps, False), weight, None, x.mean.dtype)
    return (made, *op(x.mean, shape, weight, eps)[1:]) if "fused" in str(op) else made


@register("group_norm", method="first order")
def group_norm(
    op: Any, x: Uncertain, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *rest: Any
) -> Uncertain:
    """Normalise each group of channels."""
    return _grouped(x, groups, weight, bias, eps)


@register(
    "instance_norm",
    method="first order",
    takes=lambda x, w, b, m, v, batch=True, *rest: isinstance(x, Uncertain) and batch,
)
def instance_norm(
    op: Any,
    x: Uncertain,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    batch: bool,
    momentum: float,
    eps: float,
    *rest: Any,
) -> Uncertain:
    """Normalise each channel."""
    return _grouped(x, x.mean.shape[1], weight, bias, eps)


def _grouped(x: Uncertain, groups: int, weight: Any, bias: Any, eps: float) -> Uncertain:
    shape = x.mean.shape
    rows = (shape[0], groups, -1)
    common = x.common if x.common is None else x.common._replace(size=x.common.size.reshape(rows))
    flat = _by_row(Uncertain(x.mean.reshape(rows), x.var.reshape(rows), common), 1, eps, True)
    if flat.common is not None:
        common = flat.common._replace(size=flat.common.size.reshape(shape))
    made = Uncertain(flat.mean.reshape(shape), flat.var.reshape(shape), common)
    return _affine(made, *_by_channel(x, weight, bias), x.mean.dtype)
