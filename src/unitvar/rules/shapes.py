"""Ops that only move elements about: which keep every element in its place, and which pick or mix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from unitvar.rules.moments import Moments, least_seen
from unitvar.rules.registry import builtin

__all__ = ["PICK", "SAME", "features_after"]

# The same elements, elsewhere: an element-by-element relation to other tensors of the same origin survives.
_SAME = (
    "view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "flatten", "unflatten", "expand",
    "expand_as", "contiguous", "clone", "detach", "alias", "to", "_to_copy", "type_as", "movedim", "moveaxis",
    "swapaxes", "swapdims", "view_as", "reshape_as", "broadcast_to", "_unsafe_view", "_reshape_alias", "mT",
    "numpy_T", "matrix_H", "adjoint", "ravel", "lift_fresh", "lift", "lift_fresh_copy", "positive",
    "resolve_conj", "resolve_neg", "_conj", "as_strided", "atleast_1d", "atleast_2d", "atleast_3d",
    "pin_memory", "broadcast_tensors",
)  # fmt: skip
# A part of the elements or another order: still the same law, but of other elements.
_PICK = (
    "slice", "select", "narrow", "chunk", "split", "split_with_sizes", "unbind", "unsafe_chunk", "unsafe_split",
    "unsafe_split_with_sizes", "tensor_split", "hsplit", "vsplit", "dsplit", "index", "index_select", "gather",
    "roll", "flip", "fliplr", "flipud", "rot90", "diagonal", "unfold", "repeat", "repeat_interleave", "tile",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "take", "take_along_dim",
    "masked_select", "sort", "im2col", "_pack_padded_sequence",
)  # fmt: skip
SAME = frozenset(f"aten.{name}" for name in _SAME)
PICK = frozenset(f"aten.{name}" for name in _PICK)


def features_after(
    name: str, args: Sequence[Any], shape: tuple[int, ...], features: int, out: tuple[int, ...]
) -> int | None:
    """Follow the dimension that counts features through an op of SAME or PICK."""
    n = len(shape)
    base = name.removeprefix("aten.")
    if base in ("transpose", "swapaxes", "swapdims"):
        a, b = int(args[1]) % n, int(args[2]) % n
        return b if features == a else a if features == b else features
    if base in ("t", "mT", "adjoint", "matrix_H") and n >= 2:
        return {n - 1: n - 2, n - 2: n - 1}.get(features, features)
    if base == "permute":
        return [d % n for d in args[1]].index(features)
    if base == "unsqueeze":
        return features + (int(args[1]) % (n + 1) <= features)
    if base == "select":
        return features - (int(args[1]) % n < features)
    if features < len(out) and n <= len(out) and out[features] == shape[features]:
        return features
    # A view: from the side on which the sizes still agree.
    if math.prod(out[features + 1 :]) == math.prod(shape[features + 1 :]) and features < len(out):
        return features
    behind = n - features
    if behind <= len(out) and out[-behind:] == shape[-behind:]:
        return len(out) - behind
    return len(out) - 1 if features == n - 1 else min(features, len(out) - 1)


def _share(x: Moments, share: float, shape: tuple[int, ...], value: float = 0.0) -> Moments:
    """Keep a share of the elements, the rest being one value."""
    mean = share * x.mean + (1 - share) * value
    second = share * x.second + (1 - share) * value**2
    cross = share**2 * x.pair + 2 * share * (1 - share) * x.mean * value + (1 - share) ** 2 * value**2
    return x.like(mean=mean, second=second, shape=shape, cross=cross)


@builtin("pad", "constant_pad_nd", word="pad", backward=lambda x, *_: 1.0)
def pad(x: Moments, amounts: Sequence[int], mode: Any = "constant", value: Any = 0.0) -> Moments:
    sizes = list(x.shape)
    for i in range(len(amounts) // 2):
        sizes[-1 - i] += amounts[2 * i] + amounts[2 * i + 1]
    if isinstance(mode, str) and mode != "constant":
        return x.like(shape=tuple(sizes))
    filled = mode if not isinstance(mode, str) else value
    return _share(x, math.prod(x.shape) / max(1, math.prod(sizes)), tuple(sizes), float(filled or 0.0))


@builtin("view_as_real", word="", backward=lambda x: 2.0)
def view_as_real(x: Moments) -> Moments:
    """Share a complex number's E |x|² between its parts."""
    return x.scaled(math.sqrt(0.5), shape=(*x.shape, 2))


@builtin("view_as_complex", word="", backward=lambda x: 0.5)
def view_as_complex(x: Moments) -> Moments:
    return x.scaled(math.sqrt(2.0), shape=x.shape[:-1])


def _below(x: Moments, diagonal: int = 0) -> float:
    """Return the share of a matrix on a diagonal and below it."""
    rows, columns = x.shape[-2:]
    return sum(min(columns, max(0, i + diagonal + 1)) for i in range(rows)) / max(1, rows * columns)


def _above(x: Moments, diagonal: int = 0) -> float:
    return 1 - _below(x, diagonal - 1)


@builtin("tril", word="", backward=_below)
def tril(x: Moments, diagonal: int = 0) -> Moments:
    return _share(x, _below(x, diagonal), x.shape)


@builtin("triu", word="", backward=_above)
def triu(x: Moments, diagonal: int = 0) -> Moments:
    return _share(x, _above(x, diagonal), x.shape)


def _mixture(parts: Sequence[Moments], shares: Sequence[float], shape: tuple[int, ...]) -> Moments:
    total = sum(shares) or 1.0
    weights = [share / total for share in shares]
    first = parts[0]
    return first.like(
        mean=sum(w * p.mean for w, p in zip(weights, parts, strict=True)),
        second=sum(w * p.second for w, p in zip(weights, parts, strict=True)),
        cross=sum(w * p.pair for w, p in zip(weights, parts, strict=True)),
        near=sum(w * p.beside for w, p in zip(weights, parts, strict=True)),
        shape=shape,
        seen=least_seen(*(p.seen for p in parts)),
    )


@builtin("cat", "concat", "concatenate", word="cat")
def cat(tensors: Sequence[Moments], dim: int = 0) -> Moments:
    full = [t for t in tensors if math.prod(t.shape)] or list(tensors)
    shape = list(full[0].shape)
    shape[dim] = sum(t.shape[dim] for t in full)
    return _mixture(full, [math.prod(t.shape) for t in full], tuple(shape))


@builtin("stack", "hstack", "vstack", "dstack", "column_stack", word="stack")
def stack(tensors: Sequence[Moments], dim: int = 0) -> Moments:
    return _mixture(tensors, [math.prod(t.shape) for t in tensors], tensors[0].shape)


def merge(x: Moments, written: Sequence[Moments], shares: Sequence[float]) -> Moments:
    """Read a tensor after parts of it were written through other views."""
    return _mixture([x, *written], [1 - sum(shares), *shares], x.shape).like(features=x.features)
