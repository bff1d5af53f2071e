"""Matrix products: what a weight makes of a signal, and a signal of another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from unitvar.moments.axes import features_in
from unitvar.moments.combine import added, contracted, matmul_shape, stacked
from unitvar.moments.correlation import CONSTANT
from unitvar.moments.rule import Connection, builtin
from unitvar.moments.signal import Signal, least_seen

__all__ = ["matmul", "matmul_gradient", "plus"]


def plus(out: Signal, bias: Any) -> Signal:
    """Add a bias, which is the same at all positions and in all examples."""
    if not isinstance(bias, Signal):
        return out
    correlation = bias.correlation or CONSTANT
    return added(out, bias.like(correlation=correlation), out.shape, axes=out.axes).like(profile=out.profile)


def _linear_backward(x: Signal, weight: Signal, *_: Any) -> float:
    return weight.shape[0] * weight.second


def _named(x: Signal, *_: Any) -> str:
    """Return the name of the dimension that a linear layer mixes; "b" if features were taken for positions."""
    wrong = x.path.depth is None and x.axes[-1:] == "p" and "f" in x.axes and not x.path.words
    return "b" if wrong else x.axes[-1:]


@builtin("linear", weights=(1,), bias=2, backward=_linear_backward, mixes=_named)
def linear(x: Signal, weight: Signal, bias: Signal | None = None) -> Signal:
    shape = (*x.shape[:-1], *weight.shape[:-1])
    mixed = x.axes[-1:] == "p"  # a layer across tokens: new positions, each with weights of its own
    axes = x.axes[:-1] + ("p" if mixed else "f") * (len(weight.shape) - 1)
    out = contracted(x, weight, [(len(x.shape) - 1, len(weight.shape) - 1)], shape, axes)
    if mixed:
        out = out.related({"positions": out.mean**2, "neighbours": out.mean**2})
    return plus(out, bias)


def _matmul_connection(args: Sequence[Any], position: int, operand: Any) -> Connection | None:
    """Connect as a factor of a product: the first is summed over its last dimension, the second over the one before."""
    n = len(operand.shape)
    second = operand is args[-1] if len(args) == 2 else operand is args[2]
    return Connection.of(operand.shape, (n - 2 if second else n - 1,), tuple(range(n - 2)))


def _matmul_backward(a: Signal, b: Signal) -> tuple[float, float]:
    products = math.prod(matmul_shape(a.shape, b.shape)) * a.shape[-1]  # shared evenly by the elements of each
    return products / math.prod(a.shape) * b.second, products / math.prod(b.shape) * a.second


def matmul_gradient(g: Signal, a: Signal, b: Signal) -> tuple[Signal, Signal]:
    """Return the gradients of both factors: g bᵀ and aᵀ g."""
    if len(a.shape) < 2 or len(b.shape) < 2:
        of_a, of_b = _matmul_backward(a, b)
        same = {"shape": a.shape, "axes": a.axes}, {"shape": b.shape, "axes": b.axes}
        return g.like(second=g.second * of_a, **same[0]), g.like(second=g.second * of_b, **same[1])
    last = len(g.shape) - 1
    to_a = contracted(g, b, [(last, len(b.shape) - 1)], a.shape, a.axes, len(b.shape) - 2)
    rows, queries, keys = len(a.shape) - 2, a.shape[-2], a.shape[-1]
    more = max(1.0, math.prod(g.shape[:-2]) / max(1, math.prod(b.shape[:-2])))  # b is used for so many matrices
    second = more * (queries * a.second * g.second + queries * (queries - 1) * a.along(rows) * g.along(rows))
    to_b = g.like(second=second, shape=b.shape, axes=b.axes)
    if a.total is not None and keys > 1 and second > 0:  # attention: each value gets a share of every query's gradient
        apart = (a.total**2 - keys * a.along(rows)) / (keys * (keys - 1))
        pair = queries * a.pair("features") * g.second + queries * (queries - 1) * apart * g.along(rows)
        to_b = to_b.related({"positions": pair, "neighbours": pair})
    return to_a, to_b


@builtin(
    "matmul", "mm", "bmm", "mv", "dot", weights=(0, 1), connect=_matmul_connection,
    units=lambda p: -2 if p == 0 else -1, product=True, word="matmul", backward=_matmul_backward,
    gradient=matmul_gradient,
)  # fmt: skip
def matmul(a: Signal, b: Signal) -> Signal:
    """Multiply matrices."""
    shape = matmul_shape(a.shape, b.shape)
    a = _with_rows(a, b)
    over = [(len(a.shape) - 1, max(0, len(b.shape) - 2))]
    rows = a.axes[:-1] if len(a.shape) >= len(b.shape) else b.axes[:-2] + a.axes[-2:-1]
    if len(b.shape) == 1 or not shape:
        return contracted(a, b, over, shape, rows[: len(shape)])
    free = len(b.shape) - 1
    both = "p" in rows and b.axes[free] == "p"  # scores: rows are positions, and so are columns
    label = "f" if both or b.axes[free] == "b" else b.axes[free]
    axes = (rows + label)[-len(shape) :]
    out = contracted(a, b, over, shape, axes, free if label == "f" else None)
    if b.profile is not None and len(a.shape) == 2 and len(b.shape) == 3 and label == "p":
        out = out.like(profile=b.profile)  # a weight times the columns of an image
    return out.like(width=_width(b), terms=a.shape[-1]) if both else out


def _with_rows(a: Signal, b: Signal) -> Signal:
    """Call the rows of a positions if the product sums over positions.

    The queries in softmax(W xᵀ) v and the features of keys in φ(k)ᵀ v (linear attention) are such rows: each of them
    averages v over positions, so they share what all positions of v have in common.
    """
    if a.axes[-2:] != "fp" or "p" in a.axes[:-2] or b.axes[-2:] != "pf":
        return a
    return _turned(a, (len(a.shape) - 2,), len(a.shape) - 1)


def _turned(a: Signal, rows: Sequence[int], column: int) -> Signal:
    """Name some features positions, and the positions of a column features."""
    names = ["p" if d in rows else "f" if d == column else c for d, c in enumerate(a.axes)]
    correlation = a.correlations._replace(features=a.correlations.positions).with_positions(a.correlations.features)
    return a.like(axes="".join(names), correlation=correlation, total=a.total, tilt=a.tilt)


def _width(keys: Signal) -> float:
    """Count the features of a token that keys were made of, those of all heads together."""
    return keys.mixed or float(features_in(keys.inside))


def _addmm_backward(c: Signal, a: Signal, b: Signal, *_: Any) -> tuple[float, ...]:
    return (1.0, *_matmul_backward(a, b))


@builtin(
    "addmm", "baddbmm", "addmv", weights=(1, 2), connect=_matmul_connection,
    units=lambda p: -2 if p == 1 else -1, product=True, bias=0, word="matmul", backward=_addmm_backward,
)  # fmt: skip
def addmm(bias: Signal, a: Signal, b: Signal, beta: float = 1, alpha: float = 1) -> Signal:
    product = matmul(a, b).scaled(alpha)
    seen = least_seen(product.seen, bias.seen)  # what is added may be a mask on scores
    return plus(product, bias.scaled(beta)).like(width=product.width, terms=product.terms, seen=seen)


@builtin("addbmm", weights=(1, 2), connect=_matmul_connection, bias=0, word="matmul", backward=_addmm_backward)
def addbmm(bias: Signal, a: Signal, b: Signal, beta: float = 1, alpha: float = 1) -> Signal:
    # Matrices are summed over, too.
    out = contracted(a, b, [(0, 0), (2, 1)], (a.shape[1], b.shape[-1]), a.axes[1] + "f")
    return plus(out.scaled(alpha), bias.scaled(beta))


def _letters(equation: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], str]:
    """Write an einsum out: the letters of each operand and of the result, dots spelt with letters of their own."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        plain = left.replace(",", "").replace(".", "")
        right = ("..." if "..." in left else "") + "".join(sorted(c for c in set(plain) if plain.count(c) == 1))
    spare = [c for c in map(chr, range(0x3B1, 0x3CA)) if c not in equation]
    longest = max((len(s) - len(t) + 3 for s, t in zip(shapes, terms, strict=True) if "..." in t), default=0)
    dots = "".join(spare[:longest])
    spelt = [
        t.replace("...", dots[longest - (len(s) - len(t) + 3) :]) if "..." in t else t
        for s, t in zip(shapes, terms, strict=True)
    ]
    return spelt, right.replace("...", dots)


def _einsum_connection(args: Sequence[Any], position: int, operand: Any) -> Connection | None:
    terms, right = _letters(args[0], [v.shape for v in args[1]])
    at = next(i for i, v in enumerate(args[1]) if v is operand)
    others = "".join(t for i, t in enumerate(terms) if i != at)
    columns = tuple(i for i, c in enumerate(terms[at]) if c not in right)
    batch = tuple(i for i, c in enumerate(terms[at]) if c in right and c in others)
    return Connection.of(operand.shape, columns, batch)


def _einsum_gradient(g: Signal, equation: str, tensors: Sequence[Signal], *_: Any) -> tuple[Signal | None, ...]:
    """Return the gradient of each operand: an einsum of the gradient and the others."""
    terms, right = _letters(equation, [t.shape for t in tensors])
    found: list[Signal | None] = []
    for i, x in enumerate(tensors):
        others = [t for j, t in enumerate(tensors) if j != i]
        letters = [t for j, t in enumerate(terms) if j != i]
        alone = {c for c in terms[i] if c not in right and not any(c in t for t in letters)}
        kept = "".join(c for c in terms[i] if c not in alone)
        made = einsum(",".join([right, *letters]) + "->" + kept, [g, *others]) if others else g
        # What was summed away comes back as copies.
        along = {"correlation": made.correlations.with_positions(1.0)} if any(
            x.axes[d] == "p" for d, c in enumerate(terms[i]) if c in alone
        ) else {}  # fmt: skip
        found.append(made.like(shape=x.shape, axes=x.axes, **along))
    return tuple(found)


@builtin("einsum", weights=(1,), product=True, connect=_einsum_connection, word="einsum", gradient=_einsum_gradient)
def einsum(equation: str, tensors: Sequence[Signal], *_: Any) -> Signal:
    terms, right = _letters(equation, [t.shape for t in tensors])
    out, letters = tensors[0], terms[0]
    for i, other in enumerate(tensors[1:], 1):
        later = right + "".join(terms[i + 1 :])
        out, letters = _product(out, letters, other, terms[i], later)
    over = [d for d, c in enumerate(letters) if c not in right]
    if over == [out.joined] and out.parts and len(out.parts) == out.shape[out.joined] and out.axes[out.joined] != "p":
        shape = tuple(n for d, n in enumerate(out.shape) if d not in over)
        names = "".join(c for d, c in enumerate(out.axes) if d not in over)
        out, letters = stacked(out.parts, shape, names), "".join(c for d, c in enumerate(letters) if d not in over)
    elif over:
        out = out.summed(_by_name(out, over), shape=tuple(n for d, n in enumerate(out.shape) if d not in over),
                         axes="".join(c for d, c in enumerate(out.axes) if d not in over))  # fmt: skip
        letters = "".join(c for d, c in enumerate(letters) if d not in over)
    order = [letters.index(c) for c in right]
    return out.like(shape=tuple(out.shape[d] for d in order), axes="".join(out.axes[d] for d in order))


def _by_name(x: Signal, dims: Sequence[int]) -> dict[str, float]:
    ordered = sorted(dims, key=lambda d: x.axes[d])
    return {c: math.prod(x.shape[d] for d in ds) for c, ds in itertools.groupby(ordered, lambda d: x.axes[d])}


def _product(a: Signal, first: str, b: Signal, second: str, later: str) -> tuple[Signal, str]:
    """Multiply two operands of an einsum and sum over what nobody needs any more."""
    over = [(first.index(c), second.index(c)) for c in first if c in second and c not in later]
    left = [c for c in first if c not in second or c in later]
    free = [c for c in second if c not in first]
    letters = "".join(left + free)
    size = dict(zip(second, b.shape, strict=True)) | dict(zip(first, a.shape, strict=True))
    shape = tuple(size[c] for c in letters)
    own = [first.index(c) for c in left if c not in second and a.axes[first.index(c)] == "f"]
    positions = len(over) == 1 and a.axes[over[0][0]] == b.axes[over[0][1]] == "p"
    if positions and own and free and all(a.axes[first.index(c)] != "p" for c in left):
        a = _turned(a, own, over[0][0])  # as in a product of matrices
    rows = "".join(a.axes[first.index(c)] for c in left)
    at = second.index(free[-1]) if free else None
    label = "" if at is None else b.axes[at]
    both = "p" in rows and label == "p"
    columns = "".join("f" if both or b.axes[second.index(c)] == "b" else b.axes[second.index(c)] for c in free)
    if not over:
        return contracted(_flat(a), b, [], shape, rows + columns), letters
    out = contracted(a, b, over, shape, rows + columns, at if columns[-1:] == "f" else None)
    terms = math.prod(a.shape[i] for i, _ in over)
    return (out.like(width=_width(b), terms=terms) if both else out), letters


def _flat(x: Signal) -> Signal:
    return x.like(tilt=None)


def _bilinear_connection(args: Sequence[Any], position: int, operand: Any) -> Connection | None:
    return Connection.of(operand.shape, (1, 2))


@builtin("bilinear", weights=(2,), connect=_bilinear_connection, bias=3)
def bilinear(a: Signal, b: Signal, weight: Signal, bias: Any = None) -> Signal:
    wide = (*a.shape[:-1], weight.shape[1] * weight.shape[2])
    both = a.like(mean=a.mean * b.mean, second=a.second * b.second, shape=wide)
    flat = weight.like(shape=(weight.shape[0], wide[-1]), axes="ff")
    return linear(both, flat, bias)


@builtin("_trilinear", weights=(1,))
def trilinear(*_: Any) -> None:
    """Stand for what autograd makes of ``bilinear``; a trace shows that instead."""
