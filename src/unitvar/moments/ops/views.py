"""Ops that only move elements about: views, copies and parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unitvar.moments import axes as labels
from unitvar.moments.combine import broadcast
from unitvar.moments.law import Axis, Field
from unitvar.moments.ops.profiles import folded, window
from unitvar.moments.rule import RULES, Call, builtin, signals_in
from unitvar.moments.signal import Signal

__all__ = ["copies", "gathered", "keeps_elements", "picked", "repeated", "same"]

# The same elements, elsewhere: an element-by-element relation to other tensors of the same origin survives.
_SAME = (
    "view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "contiguous", "clone", "detach", "alias", "to",
    "_to_copy", "type_as", "view_as", "reshape_as", "_unsafe_view", "_reshape_alias", "ravel", "lift_fresh", "lift",
    "lift_fresh_copy", "positive", "resolve_conj", "resolve_neg", "_conj", "as_strided", "atleast_1d", "atleast_2d",
    "atleast_3d", "pin_memory",
)  # fmt: skip
_TURNED = (
    "permute", "transpose", "t", "movedim", "moveaxis", "swapaxes", "swapdims", "mT", "numpy_T", "matrix_H", "adjoint",
)  # fmt: skip
_REPEATED = ("expand", "expand_as", "broadcast_to", "broadcast_tensors")
# A part of the elements or another order: still the same law, but of other elements.
_PICK = (
    "slice", "select", "narrow", "chunk", "split", "split_with_sizes", "unbind", "unsafe_chunk", "unsafe_split",
    "unsafe_split_with_sizes", "tensor_split", "hsplit", "vsplit", "dsplit", "index", "index_select", "gather",
    "roll", "flip", "fliplr", "flipud", "rot90", "diagonal", "unfold", "repeat", "repeat_interleave", "tile",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "take", "take_along_dim",
    "masked_select", "_pack_padded_sequence",
)  # fmt: skip


_CUTS = ("chunk", "split", "split_with_sizes", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes")


def _first(call: Call) -> Signal:
    """Return the tensor that is moved; other arguments may be indices."""
    return signals_in(call.args)[0]


def _moved(x: Signal, shape: tuple[int, ...], axes: str, inside: labels.Inside) -> Signal:
    same = shape == x.shape
    last = len(shape) > 0 and len(x.shape) > 0 and shape[-1] == x.shape[-1] and axes[-1] == x.axes[-1]
    return x.but(
        shape=shape, axes=axes, inside=inside, profile=x.profile if same else None, parts=x.parts if same else (),
        sum_of=x.sum_of if same else (),
        total=x.total if last else None,
    )  # fmt: skip


def keeps_elements(name: str) -> bool:
    """Return True if an op gives the same elements in the same order, in another shape or type."""
    return name in RULES and RULES[name].forward is same


@builtin(*_SAME, call=True, carries=True, word="")
def same(call: Call) -> tuple[Signal, ...]:
    """Return the same elements in another shape."""
    x = _first(call)
    views = tuple(_unjoined(x, _moved(x, shape, *labels.viewed(x.inside, shape))) for shape in call.shapes)
    return tuple(v.but(profile=v.profile or folded(x, v.shape)) for v in views) if x.profile else views


def _unjoined(x: Signal, view: Signal) -> Signal:
    """Follow tensors that were joined through a view that takes them apart again."""
    at, n = x.joined, len(x.parts)
    wide = {p.shape[at] for p in x.parts if len(p.shape) == len(x.shape)}
    if n < 2 or len(wide) != 1 or view.shape != (*x.shape[:at], n, *wide, *x.shape[at + 1 :]):
        return view
    return view.but(parts=x.parts, joined=at)


def _order(name: str, args: Sequence[Any], n: int) -> list[int]:
    """Return where each dimension comes from."""
    dims = list(range(n))
    base = name.removeprefix("aten.")
    if base == "permute":
        return [d % n for d in args[1]]
    if base in ("movedim", "moveaxis"):
        source, target = ([a] if isinstance(a, int) else list(a) for a in args[1:3])
        places = dict(zip([d % n for d in target], [d % n for d in source], strict=True))
        rest = iter([d for d in dims if d not in places.values()])
        return [places[d] if d in places else next(rest) for d in dims]
    if base == "numpy_T":
        return dims[::-1]
    a, b = (int(args[1]) % n, int(args[2]) % n) if len(args) > 2 else (n - 2, n - 1)
    if n > 1:
        dims[a], dims[b] = dims[b], dims[a]
    return dims


@builtin(*_TURNED, call=True, carries=True, word="")
def turned(call: Call) -> Signal:
    x = _first(call)
    order = _order(call.name, call.args, len(x.shape))
    shape = tuple(x.shape[d] for d in order)
    made = _moved(x, shape, "".join(x.axes[d] for d in order), tuple(x.inside[d] for d in order))
    before = x.turn if len(x.turn) == len(order) else tuple(range(len(order)))
    turn = tuple(before[d] for d in order)
    kept = x.total if order and order[-1] == len(order) - 1 else None
    return made.but(total=kept, turn=() if turn == tuple(range(len(turn))) else turn)


@builtin(*_REPEATED, call=True, carries=True, word="")
def repeated(call: Call) -> tuple[Signal, ...]:
    """Repeat elements: copies of one are alike."""
    found = signals_in(call.args)
    # broadcast_tensors gives every one of its arguments back, the others only their first.
    operands = found if len(call.shapes) > 1 else found[:1]
    return tuple(copies(x, shape) for x, shape in zip(operands, call.shapes, strict=True))


def copies(x: Signal, shape: tuple[int, ...]) -> Signal:
    """Repeat a tensor to a shape."""
    front = len(shape) - len(x.shape)
    axes = ("b" + "c" * front if "b" not in x.axes else "c" * front)[:front] + x.axes
    made = broadcast(x, shape, axes)
    if made.law is None or made.law.large is None or made.correlation == x.correlation:
        return made.but(
            total=x.total if x.shape[-1:] == shape[-1:] else None, origin=None if shape != x.shape else x.origin
        )
    large = made.law.large
    twin = Axis(
        large.nodes,
        large.weights,
        large.shared,
        large.keep,
        made.correlations,
        large.origin,
        large.mean,
        large.std,
        large.key,
    )
    return made.but(law=Field(made.law.values, made.law.noises, twin))


def picked(x: Signal, shape: tuple[int, ...], axes: str) -> Signal:
    """Return other elements with the same law."""
    law = x.law
    if law is not None:
        large = None if law.large is None else _twin(law.large)
        law = Field(law.values, tuple(_twin(a) for a in law.noises), large)
    return x.but(shape=shape, axes=axes, profile=None, parts=(), law=law, origin=None, sum_of=())


def _twin(axis: Axis) -> Axis:
    return replace(axis, key=object())


def _axes_of_part(call: Call, x: Signal, shape: tuple[int, ...]) -> str:
    base, n = call.name.removeprefix("aten."), len(x.shape)
    if base in ("select", "unbind") and n:
        dim = int(call.args[1] if len(call.args) > 1 else 0) % n
        return x.axes[:dim] + x.axes[dim + 1 :]
    if base == "index" and len(shape) < n:  # positions picked one by one, as the last of each example
        return x.axes[:1] + x.axes[1 + n - len(shape) :]
    if base == "unfold":
        return x.axes + x.axes[int(call.args[1]) % n]
    if len(shape) == n:
        return x.axes
    return labels.default(shape) if math.prod(shape) != math.prod(x.shape) else labels.viewed(x.inside, shape)[0]


@builtin(*_PICK, call=True, again=True, carries=True, word="")
def pick(call: Call) -> tuple[Signal, ...]:
    x = _first(call)
    made = []
    for number, shape in enumerate(call.shapes):
        axes = _axes_of_part(call, x, shape)
        part = _segment(call, x, number)
        if part is not None:
            made.append(picked(part.but(path=x.path), shape, axes))
            continue
        whole = shape == x.shape and call.name in ("aten.slice", "aten.narrow")
        part = x if whole else _cropped(call, picked(x, shape, axes), x)
        made.append(part if shape[-1:] == x.shape[-1:] else part.but(total=None))
    return tuple(made)


def _cropped(call: Call, part: Signal, x: Signal) -> Signal:
    """Cut a slice out of an image whose borders differ from its middle."""
    n = len(x.shape) - 2
    if x.profile is None or len(x.profile) != n or call.name not in ("aten.slice", "aten.narrow"):
        return part
    dim = int(call.args[1]) % len(x.shape)
    start = int(call.args[2] or 0)
    start += x.shape[dim] if start < 0 else 0
    return window(part, x, dim, start) if dim >= 2 else part.but(profile=x.profile)


def _segment(call: Call, x: Signal, number: int) -> Signal | None:
    """Find the part of a joined tensor that is picked, if it is picked from one part only."""
    base, n = call.name.removeprefix("aten."), len(x.shape)
    if not x.parts or base not in ("select", "slice", "narrow", "unbind", *_CUTS):
        return None
    place = 2 if base in _CUTS else 1
    dim = int(call.args[place] if len(call.args) > place else 0) % n
    if dim != x.joined:
        return None
    size = x.shape[dim]
    first = number if base == "unbind" else int(call.args[2] or 0) if len(call.args) > 2 else 0
    first = sum(shape[dim] for shape in call.shapes[:number]) if base in _CUTS else first
    first = first + size if first < 0 else first
    last = first + (1 if base in ("select", "unbind") else call.shapes[number][dim])
    at = 0
    for part in x.parts:
        wide = part.shape[dim] if len(part.shape) == n else 1  # stacked ones have one each
        if at <= first and last <= at + wide:
            return part
        at += wide
    return None


def _pick_gradient(g: Any, call: Call) -> tuple[Signal]:
    """Hand energy back to where it came from: all other elements get none."""
    x = _first(call)
    energy = sum(part.second * math.prod(part.shape) for part in g if part is not None)
    model = next(part for part in g if part is not None)
    return (model.like(second=energy / max(1, math.prod(x.shape)), shape=x.shape, axes=x.axes),)


def _view_gradient(g: Any, call: Call) -> tuple[Signal]:
    x = _first(call)
    g = next(part for part in g if part is not None)
    return (g.like(shape=x.shape, axes=x.axes, parts=g.parts if g.shape == x.shape else ()),)


def _repeat_gradient(g: Any, call: Call) -> tuple[Signal | None, ...]:
    """Add up the gradients of all copies."""
    operands = signals_in(call.args)
    found: list[Signal | None] = [None] * len(operands)
    for i, (x, part) in enumerate(zip(operands, g, strict=False)):
        if part is not None:
            found[i] = gathered(part, x)
    return tuple(found)


def gathered(g: Signal, x: Signal) -> Signal:
    """Add the gradients of the copies that broadcasting has made of a tensor."""
    front = len(g.shape) - len(x.shape)
    terms: dict[str, float] = {}
    for d, n in enumerate(g.shape):
        if n > 1 and (d < front or x.shape[d - front] == 1):
            terms[g.axes[d]] = terms.get(g.axes[d], 1.0) * n
    return g.summed(terms, shape=x.shape, axes=x.axes) if terms else g.like(shape=x.shape, axes=x.axes, parts=g.parts)


for _names, _gradient in ((_SAME, _view_gradient), (_TURNED, _view_gradient), (_PICK, _pick_gradient),
                          (_REPEATED, _repeat_gradient)):  # fmt: skip
    for _name in _names:
        RULES[f"aten.{_name}"] = replace(RULES[f"aten.{_name}"], gradient=_gradient)


@builtin("view_as_real", word="", backward=lambda x: 2.0)
def view_as_real(x: Signal) -> Signal:
    """Share a complex number's E |x|² between its parts."""
    return x.scaled(math.sqrt(0.5), shape=(*x.shape, 2), axes=x.axes + "f")


@builtin("view_as_complex", word="", backward=lambda x: 0.5)
def view_as_complex(x: Signal) -> Signal:
    return x.scaled(math.sqrt(2.0), shape=x.shape[:-1], axes=x.axes[:-1])
