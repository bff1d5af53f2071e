"""Ops that move elements about, or join tensors: mean and variance move alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unitvar.expectation.ops.table import Rule, register
from unitvar.expectation.uncertain import Common, Source, Uncertain, ensured, example_size, wide

__all__ = ["COMPARISONS", "MOVED", "moved", "overwritten", "with_dtype"]


def _part(arg: Any, which: str) -> Any:
    """Replace uncertain tensors by their means or variances; the variance of a certain number is zero."""
    if isinstance(arg, Uncertain):
        return getattr(arg, which)
    if isinstance(arg, (list, tuple)):
        return [_part(a, which) for a in arg]
    if which == "var" and isinstance(arg, Tensor) and arg.is_floating_point():
        return torch.zeros_like(wide(arg))
    return arg


def moved(op: Any, *args: Any, **named: Any) -> Any:
    """Apply an op that only moves elements to mean and variance."""
    means = op(*_part(args, "mean"), **named)
    variances = op(*_part(args, "var"), **named)
    if isinstance(means, Tensor):
        return Uncertain(means, variances)
    return tuple(Uncertain(m, v) for m, v in zip(means, variances, strict=True))


register(
    "cat", "concat", "stack", "expand", "expand_as", "repeat", "repeat_interleave", "tile", "flip", "roll", "rot90",
    "index_select", "gather", "index", "take_along_dim", "masked_select", "tril", "triu", "diagonal", "unfold",
    "im2col", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "split", "split_with_sizes", "chunk", "unbind",
    "tensor_split", "hstack", "vstack", "slice_scatter", "select_scatter", "index_put", "index_copy", "scatter",
    "copy", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
    "replication_pad3d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "unsafe_split", "hsplit",
    "vsplit", "block_diag", "broadcast_to", "broadcast_tensors", "column_stack", "dstack", "swapdims", "swapaxes",
    "narrow_copy", "embedding", "_pack_padded_sequence",
)(moved)  # fmt: skip


MOVED = Rule(moved)


# Views that say what becomes of common noise and of sources.
_SAME_ORDER = (
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view", "view_as", "reshape_as", "alias",
    "clone", "contiguous", "detach", "lift_fresh",
)  # fmt: skip


@register(*_SAME_ORDER, affine=False, keeps=True)
def reshaped(op: Any, x: Uncertain, *rest: Any, **named: Any) -> Uncertain:
    """Give the elements another shape, in the same order."""
    rest = tuple(r.mean if isinstance(r, Uncertain) else r for r in rest)
    made: Uncertain = moved(op, x, *rest, **named)
    common, sources = x.common, x.sources
    if common is not None:
        whole = made.mean.dim() > 0 and example_size(made.mean) % common.block == 0  # no block lies in two examples
        common = common._replace(size=common.size.reshape(made.mean.shape)) if whole else None
    if sources and x.mean.shape[-1:] == made.mean.shape[-1:]:
        lead = made.mean.shape[:-1]
        sources = tuple(Source(s.key, s.var.reshape(*lead, s.var.shape[-1]), s.matrix) for s in sources)
    else:
        sources = ()
    atom = x.atom
    if atom is not None:
        atom = atom._replace(**{k: op(getattr(atom, k), *rest, **named) for k in ("mean", "var", "value")})
    weights = x.weights
    if weights is not None:
        shape = made.mean.shape
        weights = weights._replace(
            spread=weights.spread.reshape(shape), extra=None if weights.extra is None else weights.extra.reshape(shape)
        )
    return Uncertain(made.mean, made.var, common, sources, atom, weights)


@register("permute", "transpose", "t", "numpy_T", "movedim", "moveaxis", "slice", "select", "narrow", "mT", "adjoint")
def turned(op: Any, x: Uncertain, *rest: Any) -> Uncertain:
    """Permute dimensions, or take a part: noise that whole examples share is still shared."""
    made: Uncertain = moved(op, x, *rest)
    common = x.common
    if common is None or common.block != example_size(x.mean) or not _examples_stay(op, x, made, rest):
        return made
    return made._replace(common=Common(op(common.size, *rest), example_size(made.mean), common.key))


def _examples_stay(op: Any, x: Uncertain, made: Uncertain, rest: tuple[Any, ...]) -> bool:
    name, dims = str(op).split(".")[1], x.mean.dim()
    if not made.mean.dim() or x.mean.shape[0] != made.mean.shape[0]:
        return False
    if name == "permute":
        return bool(rest[0][0] % dims == 0)
    if name in ("transpose", "slice", "select", "narrow"):
        touched = rest[:2] if name == "transpose" else rest[:1]
        return all(int(d) % dims != 0 for d in touched)
    return False


@register("to", "_to_copy", "type_as", "float", "half", "bfloat16", "double", affine=True, keeps=True)
def cast(op: Any, x: Uncertain, *rest: Any, **named: Any) -> Uncertain:
    """Cast the mean; variances keep a wide dtype."""
    rest = tuple(r.mean if isinstance(r, Uncertain) else r for r in rest)
    mean = op(x.mean, *rest, **named)
    dtype = wide(mean[:0] if mean.dim() else mean).dtype
    return x._replace(mean=mean, var=x.var.to(dtype=dtype, device=mean.device))


COMPARISONS = {f"aten.{name}" for name in ("lt", "le", "gt", "ge", "eq", "ne")}


def with_dtype(x: Any, dtype: torch.dtype) -> Any:
    """Cast what an op in place would have cast: certain or not."""
    return cast(Tensor.to, x, dtype) if isinstance(x, Uncertain) else x.to(dtype)


@register("masked_fill", affine=True, takes=lambda x, mask, value: isinstance(x, Uncertain))
def masked_fill(op: Any, x: Uncertain, mask: Tensor, value: Any) -> Uncertain:
    """Write a certain number into some elements."""
    inside = value.mean if isinstance(value, Uncertain) else value
    return Uncertain(op(x.mean, mask, inside), x.var.masked_fill(mask, 0.0))


@register("where", affine=True, takes=lambda condition, *_: not isinstance(condition, Uncertain))
def where(op: Any, condition: Tensor, x: Any, y: Any) -> Uncertain:
    """Choose by a certain condition."""
    x, y = (torch.as_tensor(t, device="cpu") if not isinstance(t, (Tensor, Uncertain)) else t for t in (x, y))
    like = next(t for t in (x, y) if isinstance(t, Uncertain))

    def at(t: Any, which: str) -> Any:
        return _part(t, which).to(getattr(like, which)) if isinstance(t, Tensor) else _part(t, which)

    return Uncertain(
        torch.where(condition, at(x, "mean"), at(y, "mean")), torch.where(condition, at(x, "var"), at(y, "var"))
    )


@register("constant_pad_nd", "pad")
def padded(op: Any, x: Uncertain, pads: Any, *rest: Any) -> Uncertain:
    """Pad; a constant has no variance."""
    mean = op(x.mean, pads, *rest)
    if rest and isinstance(rest[0], str) and rest[0] != "constant":
        return Uncertain(mean, op(x.var, pads, rest[0]))
    return Uncertain(mean, torch.nn.functional.pad(x.var, list(pads)))


def overwritten(old: Any, new: Any, box: Sequence[tuple[int, int]]) -> Any:
    """Return a tensor with a box of it replaced."""
    if isinstance(old, Uncertain) or isinstance(new, Uncertain):
        old, new = ensured(old), ensured(new)
        return Uncertain(overwritten(old.mean, new.mean, box), overwritten(old.var, new.var, box))
    made = old.clone()
    made[tuple(slice(start, end) for start, end in box)] = new
    return made
