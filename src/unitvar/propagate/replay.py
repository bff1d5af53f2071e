"""A recorded pointwise op, called on grids instead of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unitvar.graph import Node, Value
from unitvar.propagate.pointwise import evaluate
from unitvar.propagate.state import State
from unitvar.propagate.uses import followed
from unitvar.propagate.walk import Walk

__all__ = ["replay", "replayed"]

# A grid is float64 on the CPU, whatever the model computes in and where.
_UNUSED = {"dtype", "layout", "device", "pin_memory", "memory_format"}
_LOGICAL = ("aten.bitwise", "aten.logical", "aten.__")
_MASKS = {"aten.where": 0, "aten.masked_fill": 1}  # name → which argument is a mask


def replay(walk: Walk, node: Node) -> bool:
    """Follow a signal through a pointwise op; say whether that was possible."""
    if node.name == "aten.add" and _bias(walk, node):
        return True
    states = walk.read(node.args)
    if any(isinstance(s, tuple) and any(isinstance(t, State) for t in s) for s in states):
        return False
    shape = next(o for o in node.outputs if o is not None).shape
    made = evaluate(node.name, lambda *values: replayed(node, values), states, shape)
    if made is None:
        return False
    if made.has_field:  # else it has said so itself
        made.words = (*made.words, "." + node.name.partition(".")[2].strip("_"))
    walk.put(node, [made])
    return True


def _bias(walk: Walk, node: Node) -> bool:
    """Take a vector added to the output of a weight op as its bias."""
    a, b = node.args[:2]
    for signal, other in ((a, b), (b, a)):
        if not (isinstance(signal, Value) and isinstance(other, Value) and id(signal) in walk.weighed):
            continue
        parameter = followed(other)
        if parameter is not None and sum(n > 1 for n in parameter.shape) <= 1 and walk.zeroed(parameter.name):
            walk.out.biases.setdefault(walk.weighed[id(signal)], []).append(parameter.name)
            x = walk.state(signal)
            walk.put(node, [x.moved(o.shape, x.features) for o in node.outputs if o is not None])
            return True
    return False


def replayed(node: Node, values: tuple[Any, ...]) -> Any:
    """Call an op on grids: arguments in schema order, masks as booleans."""
    name = node.name
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for value, argument in zip(values, node.op.func._schema.arguments, strict=False):
        if argument.is_out or argument.name in _UNUSED:
            continue
        if not argument.kwarg_only:
            positional.append(value)
        elif value is not None:
            keywords[argument.name] = value
    if name in ("aten.prelu", "aten._prelu_kernel"):  # which insist on channels
        x, slope = positional
        return torch.where(x > 0, x, slope * x)
    if name in _MASKS:
        positional[_MASKS[name]] = _boolean(positional[_MASKS[name]])
    elif name.startswith(_LOGICAL):
        positional = [_boolean(v) for v in positional]
    return node.op.functional(*positional, **keywords)


def _boolean(value: Any) -> Any:
    return value.bool() if isinstance(value, Tensor) else value
