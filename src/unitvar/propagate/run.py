"""Moments through a graph, op by op, in the order of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from unitvar.graph import Graph, Node, Op, Value
from unitvar.propagate.apply import apply, unknown
from unitvar.propagate.replay import replay
from unitvar.propagate.special import SPECIAL, special
from unitvar.propagate.state import State
from unitvar.propagate.uses import Solver, followed
from unitvar.propagate.walk import Propagation, Walk
from unitvar.propagate.weigh import weigh
from unitvar.rules import Moments, Rule
from unitvar.rules.moments import default_features
from unitvar.rules.registry import find

__all__ = ["known", "propagate"]


def known(op: Op, overrides: Mapping[str, Rule]) -> bool:
    """Say whether an op is understood without taking it apart."""
    return (
        op.pointwise
        or op.name in SPECIAL
        or op.name.startswith("prim.")
        or find(op.name, op.overload, overrides) is not None
    )


def propagate(
    graph: Graph,
    inputs: Sequence[Moments],
    solve: Solver,
    *,
    zeroed: Callable[[str], bool] = lambda name: False,
    overrides: Mapping[str, Rule] | None = None,
    backward: bool = False,
) -> Propagation:
    """Follow the moments from the inputs to the end.

    Args:
        graph: a run.
        inputs: the moments of its inputs.
        solve: chooses the squared row norm of each use of a weight; None leaves the weight's actual values.
        zeroed: whether a bias of this name will be zero.
        overrides: rules of this call.
        backward: whether to follow gradients, too.

    Returns:
        The states of all values, and what was met on the way.
    """
    with torch.inference_mode(False), torch.enable_grad():
        walk = Walk(solve, zeroed, overrides or {}, backward)
        for value, moments in zip(graph.inputs, inputs, strict=True):
            if not _mask(value):  # which is read as it is, like one that is no input
                features = default_features(value.shape)
                walk.out.states[id(value)] = State(moments.like(shape=value.shape, features=features))
        for node in graph.nodes:
            _step(walk, node)
        return walk.out


def _mask(value: Value) -> bool:
    tensor = value.tensor
    if tensor is None or tensor.is_meta or not tensor.is_floating_point():
        return False
    return bool(tensor.isneginf().any())


def _step(walk: Walk, node: Node) -> None:
    kinds = {o.kind for o in node.outputs if o is not None}
    if kinds <= {"derived", "buffer"}:  # parameters' own arithmetic: read when it meets a signal
        if kinds and "embedding" in node.name:
            walk.note(node)
        elif kinds == {"derived"}:
            _look_for_constants(walk, node)
        return
    rule = find(node.name, node.op.overload, walk.overrides)
    if rule is None and special(walk, node):  # an op of that table has no rule but the user's
        return
    if rule is not None and rule.weights:
        weigh(walk, node, rule)
        return
    walk.note(node)
    if rule is not None:
        apply(walk, node, rule)
    elif not (node.op.pointwise and replay(walk, node)):
        unknown(walk, node)


def _look_for_constants(walk: Walk, node: Node) -> None:
    """Note the weights of an op whose signal is made of constants, as after a detour through numpy."""
    rule = find(node.name, node.op.overload, walk.overrides)
    if rule is None or not rule.weights:
        return
    weights = [p for v in node.inputs if len(v.shape) > 1 and (p := followed(v)) is not None]
    others = [v for v in node.inputs if v.dtype.is_floating_point and followed(v) is None]
    if weights and any(_constant(v) for v in others):
        walk.out.cut_off.update(p.name for p in weights)


def _constant(value: Value) -> bool:
    """Say whether a value goes back to a constant of more than one dimension."""
    if value.node is None:
        return value.kind == "constant" and len(value.shape) > 1
    return any(_constant(v) for v in value.node.inputs)
