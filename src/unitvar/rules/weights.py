"""Linear maps: what a weight makes of a signal. A weight is Moments, too: zero mean, second moment s² / fan-in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from unitvar.rules.moments import Moments
from unitvar.rules.registry import builtin
from unitvar.rules.windows import Windows, tallied, windows

__all__: list[str] = []


def _plus(out: Moments, bias: Moments | None) -> Moments:
    if bias is None or not isinstance(bias, Moments):
        return out
    mean = out.mean + bias.mean
    # A bias is the same at all positions.
    more = mean**2 - out.mean**2 + bias.var
    cross = out.pair + more if out.has_positions else None
    near = None if out.near is None else out.near + more
    return out.like(mean=mean, second=mean**2 + out.var + bias.var, cross=cross, near=near)


def contract(
    x: Moments, weight: Moments, terms: float, shape: tuple[int, ...], features: int | None = None,
    common: float | None = None, beside: float | None = None,
) -> Moments:  # fmt: skip
    """Sum over the fan-in. What two positions share passes through those terms whose weight they have in common."""
    out = Moments.product(x, weight, terms, shape)
    if not x.has_positions:
        return out.like(features=features)
    cross = (terms if common is None else common) * weight.var * x.pair + out.mean**2
    near = None
    if x.near is not None or beside is not None:
        near = (terms if beside is None else beside) * weight.var * x.beside + out.mean**2
    return out.like(cross=cross, near=near, features=features)


def _linear_backward(x: Moments, weight: Moments, *_: Any) -> float:
    return weight.shape[0] * weight.second


@builtin("linear", weights=(1,), backward=_linear_backward)
def linear(x: Moments, weight: Moments, bias: Moments | None = None) -> Moments:
    shape = (*x.shape[:-1], *weight.shape[:-1])
    return _plus(contract(x.along(-1), weight, weight.shape[-1], shape, len(shape) - 1), bias)


class _Taps(NamedTuple):
    """What an output of a convolution sees of its input.

    Attributes:
        sizes: of the output.
        seen: the taps that an output sees on average; padding gives nothing.
        common: those that two outputs at different positions have in common.
        beside: those that neighbours have in common.
        profile: of the output.
    """

    sizes: tuple[int, ...]
    seen: float
    common: float
    beside: float
    profile: tuple[Any, ...]


def _taps(sides: Sequence[Windows]) -> _Taps:
    sizes, seen = tuple(w.outputs for w in sides), math.prod(w.seen for w in sides)
    n, own = math.prod(sizes), math.prod(w.own for w in sides)
    both = math.prod(w.common for w in sides)  # drawn with replacement: one pair in n is an output and itself
    common = (n * both - own) / (n - 1) if n > 1 else own
    beside = sum(seen / w.seen * w.beside for w in sides if w.seen > 0) / len(sides)  # along each dimension
    return _Taps(sizes, seen, max(0.0, common), beside, tuple(w.profile for w in sides))


def _profiles(x: Moments, n: int) -> Sequence[Any]:
    return x.profile if x.profile is not None and len(x.profile) == n else (None,) * n


def _conv_taps(x: Moments, weight: Moments, stride: Sequence[int], padding: Any, dilation: Sequence[int]) -> _Taps:
    kernel = weight.shape[2:]
    profiles = _profiles(x, len(kernel))
    sides = []
    for i, (size, k) in enumerate(zip(x.shape[-len(kernel) :], kernel, strict=True)):
        s, d = stride[i % len(stride)], dilation[i % len(dilation)]
        if isinstance(padding, str):
            both = d * (k - 1) if padding == "same" else 0  # an uneven sum pads more on the right
            before = profiles[i]
            flat = np.ones(size) if before is None or len(before) != size else before
            odd = np.concatenate([flat, np.zeros(both % 2)])
            sides.append(windows(len(odd), k, s, both // 2, d, False, odd))
        else:
            sides.append(windows(size, k, s, padding[i % len(padding)], d, False, profiles[i]))
    return _taps(sides)


def _conv_backward(
    x: Moments, weight: Moments, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> float:
    taps = _conv_taps(x, weight, stride, padding, dilation)
    reached = weight.shape[0] / groups * taps.seen * math.prod(taps.sizes) / math.prod(x.shape[-len(taps.sizes) :])
    return reached * weight.second


@builtin("conv1d", "conv2d", "conv3d", weights=(1,), backward=_conv_backward)
def conv(
    x: Moments,
    weight: Moments,
    bias: Any = None,
    stride: Any = (1,),
    padding: Any = (0,),
    dilation: Any = (1,),
    groups: int = 1,
) -> Moments:
    taps = _conv_taps(x, weight, stride, padding, dilation)
    return _plus(_convolved(x, weight, weight.shape[1], weight.shape[0], taps), bias)


def _convolved(x: Moments, weight: Moments, fan_in: float, channels: int, taps: _Taps) -> Moments:
    n = len(taps.sizes)
    shape = (*x.shape[: -n - 1], channels, *taps.sizes)
    at = len(shape) - n - 1
    out = contract(x.along(at), weight, fan_in * taps.seen, shape, at, fan_in * taps.common, fan_in * taps.beside)
    return out.like(profile=taps.profile)


def _transposed_taps(x: Moments, weight: Moments, stride: Any, padding: Any, extra: Any, dilation: Any) -> _Taps:
    kernel = weight.shape[2:]
    profiles = _profiles(x, len(kernel))
    sides = []
    for i, (size, k) in enumerate(zip(x.shape[-len(kernel) :], kernel, strict=True)):
        s, p, e, d = (v[i % len(v)] for v in (stride, padding, extra, dilation))
        full = (size - 1) * s + d * (k - 1) + 1
        profile = profiles[i] if profiles[i] is not None and len(profiles[i]) == size else np.ones(size)
        seen = np.zeros((k, full + e))
        for tap in range(k):
            seen[tap, tap * d : tap * d + (size - 1) * s + 1 : s] = profile
        sides.append(tallied(seen[:, p : full + e - p], profile))
    return _taps(sides)


def _transposed_backward(
    x: Moments, weight: Moments, bias: Any, stride: Any, padding: Any, extra: Any, groups: int, dilation: Any
) -> float:
    taps = _transposed_taps(x, weight, stride, padding, extra, dilation)
    ratio = math.prod(taps.sizes) / math.prod(x.shape[-len(taps.sizes) :])
    return weight.shape[1] * taps.seen * ratio * weight.second


@builtin("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", weights=(1,), backward=_transposed_backward)
def conv_transpose(
    x: Moments,
    weight: Moments,
    bias: Any = None,
    stride: Any = (1,),
    padding: Any = (0,),
    extra: Any = (0,),
    groups: int = 1,
    dilation: Any = (1,),
) -> Moments:
    taps = _transposed_taps(x, weight, stride, padding, extra, dilation)
    return _plus(_convolved(x, weight, weight.shape[0] / groups, weight.shape[1] * groups, taps), bias)


@builtin("convolution", "_convolution", weights=(1,))
def convolution(
    x: Moments,
    weight: Moments,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    extra: Any,
    groups: int,
    *_: Any,
) -> Moments:
    if transposed:
        return conv_transpose(x, weight, bias, stride, padding, extra, groups, dilation)
    return conv(x, weight, bias, stride, padding, dilation, groups)


def _matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if len(a) == 1:
        return (*b[:-2], *b[-1:]) if len(b) > 1 else ()
    if len(b) == 1:
        return a[:-1]
    batch = a[:-2] if len(a) >= len(b) else b[:-2]
    return (*batch, a[-2], b[-1])


def _matmul_backward(a: Moments, b: Moments) -> tuple[float, float]:
    products = math.prod(_matmul_shape(a.shape, b.shape)) * a.shape[-1]  # shared evenly by the elements of each
    return products / math.prod(a.shape) * b.second, products / math.prod(b.shape) * a.second


@builtin("matmul", "mm", "bmm", "mv", "dot", weights=(0, 1), word="matmul", backward=_matmul_backward)
def matmul(a: Moments, b: Moments) -> Moments:
    out = contract(a, b, a.shape[-1], _matmul_shape(a.shape, b.shape))
    if a.sums:  # rows of a softmax sum to one: what all positions of b share, they keep
        within = b.var - max(0.0, b.pair - b.mean**2)
        second = b.pair + a.second * a.shape[-1] * within
        out = out.like(mean=b.mean, second=second, cross=b.pair + within / a.shape[-1])
    features = len(out.shape) - 1 if b.features in (None, len(b.shape) - 1) else None
    return out.like(features=features)


@builtin(
    "addmm", "baddbmm", "addmv", weights=(1, 2), word="matmul",
    backward=lambda c, a, b, *_: (1.0, *_matmul_backward(a, b)),
)  # fmt: skip
def addmm(bias: Moments, a: Moments, b: Moments, beta: float = 1, alpha: float = 1) -> Moments:
    return _plus(matmul(a, b).scaled(alpha), bias.scaled(beta))


@builtin("addbmm", weights=(1, 2), word="matmul", backward=lambda c, a, b, *_: (1.0, *_matmul_backward(a, b)))
def addbmm(bias: Moments, a: Moments, b: Moments, beta: float = 1, alpha: float = 1) -> Moments:
    out = contract(a, b, a.shape[0] * a.shape[-1], (a.shape[1], b.shape[-1]))  # matrices are summed over, too
    return _plus(out.scaled(alpha), bias.scaled(beta))


def summed(equation: str, shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], float, dict[str, int]]:
    """Return the shape of an einsum, the number of terms in a sum, and the size of each letter."""
    equation = equation.replace(" ", "")
    left, _, right = equation.partition("->")
    terms = left.split(",")
    sizes: dict[str, int] = {}
    dots: tuple[int, ...] = ()
    for letters, shape in zip(terms, shapes, strict=True):
        before, _, after = letters.partition("...")
        for letter, size in zip(before, shape, strict=False):
            sizes[letter] = max(size, sizes.get(letter, 1))
        for letter, size in zip(reversed(after), reversed(shape), strict=False):
            sizes[letter] = max(size, sizes.get(letter, 1))
        if "..." in letters:
            inner = shape[len(before) : len(shape) - len(after)]
            dots = inner if len(inner) > len(dots) else dots
    if "->" not in equation:
        letters = left.replace(",", "").replace(".", "")
        right = ("..." if "..." in left else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    count = math.prod(size for letter, size in sizes.items() if letter not in right)
    before, _, after = right.partition("...")
    shape = (*(sizes[c] for c in before), *(dots if "..." in right else ()), *(sizes[c] for c in after))
    return shape, float(count), sizes


@builtin("einsum", weights=(1,), word="einsum")
def einsum(equation: str, tensors: Sequence[Moments], *_: Any) -> Moments:
    shape, terms = summed(equation, [t.shape for t in tensors])[:2]
    if len(tensors) == 1:
        (x,) = tensors
        return x.like(mean=terms * x.mean, second=terms * x.var + (terms * x.mean) ** 2, shape=shape)
    out = tensors[0]
    for i, other in enumerate(tensors[1:]):
        out = contract(out, other, terms if i == len(tensors) - 2 else 1.0, shape)
    return out


@builtin("bilinear", weights=(2,))
def bilinear(a: Moments, b: Moments, weight: Moments, bias: Any = None) -> Moments:
    both = Moments(a.mean * b.mean, a.second * b.second, a.shape)
    return _plus(contract(both, weight, weight.shape[1] * weight.shape[2], (*a.shape[:-1], weight.shape[0])), bias)


@builtin("embedding", word="embedding")
def embedding(weight: Moments, indices: Moments, *_: Any) -> Moments:
    return Moments(weight.mean, weight.second, (*indices.shape, weight.shape[-1]), cross=weight.mean**2)


@builtin("embedding_bag", "_embedding_bag", word="embedding")
def embedding_bag(weight: Moments, indices: Moments, offsets: Any, *rest: Any) -> tuple[Moments, ...]:
    bags = offsets.shape[0] if isinstance(offsets, Moments) else indices.shape[0]
    count = max(1.0, math.prod(indices.shape) / max(1, bags))
    mode = ("sum", "mean", "max")[rest[1] if len(rest) > 1 else 0]
    out = weight.maximum(count) if mode == "max" else weight.like(cross=None).averaged(count)
    out = out.scaled(count if mode == "sum" else 1.0, shape=(bags, weight.shape[-1]), features=1, cross=None)
    return out, indices, indices, indices
