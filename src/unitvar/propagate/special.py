"""Ops that need no rule: they move elements, drop some, draw, fill or mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from unitvar.graph import Node, Value
from unitvar.graph.record import MERGE
from unitvar.propagate.given import LOWEST
from unitvar.propagate.grid import Axis, Field, bernoulli, constant, uniform
from unitvar.propagate.pointwise import multiplied
from unitvar.propagate.state import State
from unitvar.propagate.walk import Walk
from unitvar.rules import Moments
from unitvar.rules.moments import default_features, least_seen
from unitvar.rules.noise import DROPOUTS, NOISE
from unitvar.rules.shapes import PICK, SAME, features_after, merge

__all__ = ["SPECIAL", "special"]

_LEVELS = {
    "aten.zeros_like": 0.0, "aten.new_zeros": 0.0, "aten.zero": 0.0, "aten.new_empty": 0.0, "aten.empty_like": 0.0,
    "aten.new_empty_strided": 0.0, "aten.ones_like": 1.0, "aten.new_ones": 1.0,
}  # fmt: skip
_FILLS = {"aten.full_like": 1, "aten.new_full": 2, "aten.fill": 1}  # name → where the number is


def special(walk: Walk, node: Node) -> bool:
    """Handle an op of this table; say whether that was possible."""
    handle = SPECIAL.get(node.name)
    return handle is not None and handle(walk, node)


def _merge(walk: Walk, node: Node) -> bool:
    """Read a tensor after parts of it were written through other views."""
    original, views, shares = node.args
    x, written = walk.state(original), [walk.state(v) for v in views]
    if shares[-1] == 1.0:
        walk.put(node, [written[-1].moved(original.shape, x.features)])
    else:
        moments = merge(x.moments, [w.moments for w in written], shares)
        walk.put(node, [State(moments, words=x.words or written[-1].words, depth=x.depth, last=x.last)])
    return True


def _move(walk: Walk, node: Node) -> bool:
    """Keep every element, in another place."""
    x = _moved_value(walk, node)
    walk.note(node)
    walk.put(node, [x.moved(o.shape, _features_after(node, x, o)) for o in node.outputs if o is not None])
    return True


def _pick(walk: Walk, node: Node) -> bool:
    """Take a part of the elements. The same part taken twice is the same part."""
    x = _moved_value(walk, node)
    walk.note(node)
    key = None if any(isinstance(a, Value) for a in node.args[1:]) else (id(node.args[0]), node.name, *node.args[1:])
    if key in walk.picks:
        walk.put(node, walk.picks[key])
        return True
    made = []
    for output in (o for o in node.outputs if o is not None):
        whole = output.shape == x.shape and node.name in ("aten.slice", "aten.narrow")
        make = x.moved if whole else x.picked
        made.append(make(output.shape, _features_after(node, x, output)))
    walk.put(node, made)
    if key is not None:
        walk.picks[key] = made
    return True


def _moved_value(walk: Walk, node: Node) -> State:
    first = node.args[0]
    if isinstance(first, tuple):
        first = next((v for v in node.inputs if v.kind != "constant"), first[0])
    return walk.state(first)


def _features_after(node: Node, x: State, output: Value) -> int | None:
    if not x.shape or not output.shape:
        return None
    features = x.features if x.features is not None else len(x.shape) - 1
    return features_after(node.name, node.args, x.shape, features, output.shape)


def _drop(walk: Walk, node: Node) -> bool:
    x, p = walk.state(node.args[0]), float(node.args[1])
    train = bool(node.args[2]) if len(node.args) > 2 else True
    if not train or p == 0:
        walk.put(node, [x, State(Moments(1.0, 1.0, x.shape))])
    elif p >= 1:
        walk.put(node, [State(field=constant(0.0), shape=x.shape), State(Moments(0.0, 0.0, x.shape))])
    else:
        shared = DROPOUTS[node.name]
        dropped = multiplied(x, 1 - p, shared=shared)
        dropped.words = (*x.words, f"{'feature ' if shared else ''}dropout {p:g}")
        walk.put(node, [dropped, State(Moments(1 - p, 1 - p, x.shape))])
    return True


def _draw(walk: Walk, node: Node) -> bool:
    law = NOISE[node.name]
    shape = next(o for o in node.outputs if o is not None).shape
    numbers = [a for a in node.args if isinstance(a, (int, float)) and not isinstance(a, bool)]
    # Noise with one value for many elements is the same at all positions.
    shared = len(shape) > 1 and math.prod(shape[2:]) == 1
    axis: Axis
    if law == "bernoulli":
        rates = node.args[0] if isinstance(node.args[0], Value) and not numbers else None
        keep = walk.level(rates) if rates is not None else float(numbers[0] if numbers else 0.5)
        axis = bernoulli(min(1.0, max(0.0, keep)), shared=shared)
    elif law == "uniform":
        low, high = numbers[:2] if node.name == "aten.uniform" and len(numbers) > 1 else (0.0, 1.0)
        axis = uniform(low, high, shared=shared)
    else:
        mean, std = numbers[:2] if node.name == "aten.normal" and len(numbers) > 1 else (0.0, 1.0)
        walk.put(node, [State(Moments(mean, mean**2 + std**2, shape), depth=-1)])
        return True
    walk.put(node, [State(field=Field(axis.nodes.unsqueeze(-1), (axis,), None), shape=shape, depth=-1)])
    return True


def _fill(walk: Walk, node: Node) -> bool:
    level = _LEVELS[node.name] if node.name in _LEVELS else walk.level(node.args[_FILLS[node.name]])
    if not math.isfinite(level):
        return False
    walk.put(node, [State(field=constant(level), shape=o.shape, depth=-1) for o in node.outputs if o is not None])
    return True


def _copy(walk: Walk, node: Node) -> bool:
    if not isinstance(node.args[1], Value):
        return False
    x = walk.state(node.args[1])
    made = []
    for output in (o for o in node.outputs if o is not None):
        same = x.features is not None and len(x.shape) == len(output.shape)
        made.append(x.moved(output.shape, x.features if same else default_features(output.shape)))
    walk.put(node, made)
    return True


def _masked_fill(walk: Walk, node: Node) -> bool:
    """Take scores out: what is left keeps its law, and a softmax learns how few they are."""
    scores, mask, filled = node.args[:3]
    if walk.level(filled) > LOWEST:
        return False
    return _masked(walk, node, walk.state(scores), tuple(1 - share for share in walk.true(mask)))


def _where(walk: Walk, node: Node) -> bool:
    if len(node.args) != 3:
        return False
    mask, a, b = node.args
    share = walk.true(mask)
    for kept, taken, seen in ((a, b, share), (b, a, tuple(1 - s for s in share))):
        gone = isinstance(taken, Value) and not any(walk.state(taken).seen)
        if isinstance(kept, Value) and (gone or walk.level(taken) <= LOWEST):
            return _masked(walk, node, walk.state(kept), seen)
    return False


def _masked(walk: Walk, node: Node, scores: State, seen: tuple[float, ...]) -> bool:
    made = scores.moved(scores.shape, scores.features)
    made.seen = least_seen(scores.seen, seen)
    walk.put(node, [made])
    return True


def _table() -> dict[str, Callable[[Walk, Node], bool]]:
    rows: list[tuple[Callable[[Walk, Node], bool], Any]] = [
        (_merge, (MERGE,)),
        (_move, SAME),
        (_pick, PICK),
        (_drop, DROPOUTS),
        (_draw, NOISE),
        (_fill, (*_LEVELS, *_FILLS)),
        (_copy, ("aten.copy",)),
        (_masked_fill, ("aten.masked_fill",)),
        (_where, ("aten.where",)),
    ]
    return {name: handle for handle, names in rows for name in names}


SPECIAL = _table()
