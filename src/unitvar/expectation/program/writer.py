"""Between the recorded graph and the new one: what was written for each value, and how calls are copied."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from unitvar._torch import schema_of
from unitvar.expectation.ops.views import COMPARISONS, with_dtype
from unitvar.expectation.record import place, static
from unitvar.expectation.uncertain import ensured, mean_of
from unitvar.graph import Node, Value
from unitvar.graph.op import op_of
from unitvar.graph.record import MERGE

__all__ = ["Writer", "keyword_only", "recast", "target"]


class Writer:
    """The graph that is being written.

    Attributes:
        fx: its calls.
        root: the modules and constants that they refer to.
        at: what was written for each recorded value, by the value's id.
        uncertain: the ids of the values that are a mean and a variance.
        methods: how each kind of op was followed.
        sampled: ops that were sampled, and the module of the first.
    """

    def __init__(self) -> None:
        self.fx, self.root = fx.Graph(), nn.Module()
        self.at: dict[int, Any] = {}
        self.uncertain: set[int] = set()
        self.methods: dict[str, str] = {}
        self.sampled: dict[str, str] = {}
        self._numbers: dict[int, int] = {}

    def call(self, function: Any, *args: Any, **named: Any) -> Any:
        """Write a call."""
        return self.fx.call_function(function, args, named)

    def note(self, node: Node, method: str) -> None:
        """Remember how an op was followed."""
        self.methods.setdefault(node.name.partition(".")[2], method)

    def number(self, value: Value | None) -> int:
        """Return a number that identifies a value in the new graph."""
        return self._numbers.setdefault(id(value), len(self._numbers))

    def constant(self, value: Value) -> Any:
        """Write a tensor that the model made from nothing."""
        if value.tensor is None:
            raise ValueError("The model computes with a tensor that has no data. Move it off the meta device first.")
        name = f"constant_{id(value)}"
        with torch.inference_mode(False):  # tensors made under it cannot take part in autograd
            self.root.register_buffer(name, value.tensor.detach().clone())
        return self.fx.get_attr(name)

    def arguments(self, node: Node, places: dict[int, Any] | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, keyword-only ones by name.

        Args:
            node: the call as it was recorded.
            places: what stands for some of the values, instead of what was written for them.
        """
        where = self.at if places is None else {**self.at, **places}

        def put(arg: Any) -> Any:
            if isinstance(arg, Value):
                return where[id(arg)]
            return [put(a) for a in arg] if isinstance(arg, (tuple, list)) else arg

        args = [put(a) for a in static(node)]
        keyword = keyword_only(node, len(args))
        kwargs = {node.op.names[i]: arg for i, arg in enumerate(args) if keyword[i] and arg is not node.op.defaults[i]}
        kwargs.pop("generator", None)
        return tuple(arg for i, arg in enumerate(args) if not keyword[i]), kwargs

    def bind(self, node: Node, made: Any, *, uncertain: bool = False) -> None:
        """Say what was written for the results of an op."""
        outputs = node.outputs
        if recast(node) is not None:
            made = self.call(with_dtype, made, recast(node))
        several = node.name != MERGE and _several(node)
        for i, value in enumerate(outputs):
            if value is None:
                continue
            item = self.call(operator.getitem, made, i) if several else made
            floats = value.dtype.is_floating_point
            if uncertain and several:
                item = self.call(ensured if floats else mean_of, item)
            self.at[id(value)] = item
            if uncertain and (floats or not several):
                self.uncertain.add(id(value))

    def replayed(self, nodes: list[Node], ends: list[Value], begins: list[Value]) -> tuple[Any, list[Value]]:
        """Write ops as a module of their own.

        Args:
            nodes: the ops, in order.
            ends: the values that the module returns: one, or a tuple of several.
            begins: the values that it takes first.

        Returns:
            The module, and the other values that it takes after those.
        """
        inner = fx.Graph()
        places: dict[int, Any] = {id(v): inner.placeholder(f"x_{i}") for i, v in enumerate(begins)}
        inside = {id(o) for n in nodes for o in n.outputs}
        others: dict[int, Value] = {}
        for n in nodes:
            for v in n.inputs:
                if id(v) not in places and id(v) not in inside:
                    places[id(v)] = inner.placeholder(f"other_{len(others)}")
                    others[id(v)] = v
            args, kwargs = self.arguments(n, places)
            called = inner.call_function(target(n), args, kwargs)
            if recast(n) is not None:
                called = inner.call_method("to", (called, recast(n)))
            several = _several(n)
            for i, out in enumerate(n.outputs):
                if out is not None:
                    places[id(out)] = inner.call_function(operator.getitem, (called, i)) if several else called
        found = tuple(places[id(v)] for v in ends)
        inner.output(found[0] if len(found) == 1 else found)
        name = f"part_{self.number(ends[0])}"
        self.root.add_module(name, fx.GraphModule(nn.Module(), inner))
        return self.fx.get_attr(name), list(others.values())


def _several(node: Node) -> bool:
    """Return True if an op hands back a tuple or a list, even of one."""
    returns = schema_of(node.op.func).returns
    return len(returns) > 1 or len(node.outputs) != 1 or "[]" in str(returns[0].type)


def keyword_only(node: Node, count: int) -> list[bool]:
    """Say of the first arguments of an op which are given by name."""
    return [a.kwarg_only for a in schema_of(node.op.func).arguments][:count]


def target(node: Node) -> Any:
    """Return what computes the same without writing: an overload, which can be an argument of an fx call."""
    if not node.op.written:
        return node.op.func
    packet = node.op.functional
    found = getattr(packet, node.op.overload, None) or getattr(packet, "default", None)
    if found is None or op_of(found).written:
        raise ValueError(
            f"{node.name} in {place(node)!r} writes in place and has no version that does not. Replace it in the model."
        )
    return found


def recast(node: Node) -> torch.dtype | None:
    """Return the dtype that an op in place casts its result to, as ``x.lt_(0)`` does; None if that changes nothing."""
    out = node.outputs[0] if node.op.in_place else None
    if out is None or (node.name not in COMPARISONS and all(v.dtype == out.dtype for v in node.inputs)):
        return None
    return out.dtype
