"""Rewriting a recorded run, one op after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from unitvar.expectation import sampling
from unitvar.expectation.needs import asked, living
from unitvar.expectation.ops import Rule, find
from unitvar.expectation.ops.draws import SHAPES
from unitvar.expectation.ops.views import MOVED, overwritten
from unitvar.expectation.program.complexes import Complexes
from unitvar.expectation.program.elementwise import Elementwise
from unitvar.expectation.program.masks import Masks
from unitvar.expectation.program.writer import Writer, keyword_only, target
from unitvar.expectation.record import Recording, noisy, place, static
from unitvar.expectation.uncertain import Uncertain, forget
from unitvar.graph import Node, Value
from unitvar.graph.record import MERGE

__all__ = ["Program", "build"]


@dataclass(frozen=True, eq=False)
class Program:
    """A rewritten run.

    Attributes:
        module: takes the named tensors and the inputs; returns an ``Uncertain`` or a tensor for each output.
        names: the parameters and buffers that it needs, by name.
        recording: how the result is put together.
        certain: whether nothing was random.
        methods: how each kind of op was followed.
        sampled: ops that were sampled, and the module of the first.
    """

    module: fx.GraphModule
    names: tuple[str, ...]
    recording: Recording
    certain: bool
    methods: dict[str, str]
    sampled: dict[str, str]


def build(recording: Recording, *, samples: int, strict: bool) -> Program:
    """Rewrite a recorded run."""
    return _Builder(recording, samples, strict).build()


class _Builder:
    def __init__(self, recording: Recording, samples: int, strict: bool) -> None:
        self.recording, self.samples, self.strict = recording, samples, strict
        self.graph, self.writer = recording.graph, Writer()
        self.live = living(self.graph)
        self.asked = asked(self.graph, self.live)
        device = next((v.tensor.device for v in self.graph.inputs if v.tensor is not None), torch.device("cpu"))
        self.masks = Masks(self.writer, device)
        self.complexes = Complexes(self.writer, samples, strict)
        self.elementwise = Elementwise(self.writer, self.live, self._apply)

    def build(self) -> Program:
        writer = self.writer
        leaves = self._leaves()
        names = sorted({v.name for v in leaves if v.kind in ("parameter", "buffer")})
        named = {name: writer.fx.placeholder(f"weight_{i}") for i, name in enumerate(names)}
        for i, value in enumerate(self.graph.inputs):
            writer.at[id(value)] = writer.fx.placeholder(f"input_{i}")
        for value in leaves:
            if value.kind in ("parameter", "buffer"):
                writer.at[id(value)] = named[value.name]
            elif id(value) not in writer.at:
                writer.at[id(value)] = writer.constant(value)
        for node in self.live:
            self._step(node)
        writer.fx.output(tuple(self._result(v) for v in self.graph.returned))
        writer.fx.eliminate_dead_code()
        module = fx.GraphModule(writer.root, writer.fx)
        certain = not writer.uncertain
        return Program(module, tuple(names), self.recording, certain, writer.methods, writer.sampled)

    def _leaves(self) -> list[Value]:
        found = {id(v): v for node in self.live for v in node.inputs if v.node is None}
        return [*found.values(), *(v for v in self.graph.returned if v.node is None and id(v) not in found)]

    def _result(self, value: Value) -> Any:
        self.complexes.check(value)
        return self.masks.settled(value) if id(value) in self.masks.laws else self.writer.at[id(value)]

    def _step(self, node: Node) -> None:
        writer = self.writer
        if node.name == MERGE:
            self._merge(node)
        elif self.masks.follow(node) or self.complexes.follow(node):
            return
        elif node.name in SHAPES:
            args, kwargs = writer.arguments(node)
            writer.bind(node, writer.call(sampling.at_mean, target(node), *args, **kwargs))
        elif noisy(node) or any(id(v) in writer.uncertain for v in node.inputs):
            self._uncertain(node)
        else:
            self._certain(node)

    def _certain(self, node: Node) -> None:
        writer = self.writer
        rule = find(node.name, node.op.overload)
        if rule is not None and rule.mixture and rule.noise is not None and len(node.outputs) == 1:
            writer.bind(node, writer.at[id(node.inputs[0])])  # a dropout that drops nothing
            return
        args, kwargs = writer.arguments(node)
        writer.bind(node, writer.call(target(node), *args, **kwargs))

    def _uncertain(self, node: Node) -> None:
        rule = find(node.name, node.op.overload)
        if rule is not None and rule.takes is not None and not self._takes(rule, node):
            rule = rule.otherwise
        pointwise = (node.op.pointwise or (rule is not None and rule.affine)) and not noisy(node)
        if pointwise and self.elementwise.follow(node, rule):
            return
        if rule is None and node.op.views:
            rule = MOVED  # every view moves elements
        if rule is not None:
            self._apply(node, rule)
        else:
            self._sample(node)

    def _takes(self, rule: Rule, node: Node) -> bool:
        """Ask a rule about arguments of which it sees the shapes."""

        def shown(arg: Any) -> Any:
            if isinstance(arg, Value):
                empty = torch.empty(arg.shape, dtype=arg.dtype, device="meta")
                return Uncertain(empty, empty) if id(arg) in self.writer.uncertain else empty
            return [shown(a) for a in arg] if isinstance(arg, (tuple, list)) else arg

        args = [shown(a) for a in static(node)]
        keyword = keyword_only(node, len(args))
        named = {node.op.names[i]: a for i, a in enumerate(args) if keyword[i]}
        assert rule.takes is not None
        return rule.takes(*(a for i, a in enumerate(args) if not keyword[i]), **named)

    def _apply(self, node: Node, rule: Rule) -> None:
        writer = self.writer
        args, kwargs = writer.arguments(node)
        if rule.keyed:
            flat = [v for v in node.args if isinstance(v, Value)]
            kwargs["keys"] = tuple(writer.number(v) if id(v) in writer.uncertain else None for v in flat)
            kwargs["key"] = writer.number(node.outputs[0])
        if rule.mixture and ("mixture", id(node.outputs[0])) in self.asked:
            kwargs["mixture"] = True
        made = writer.call(rule.function, target(node), *args, **kwargs)
        writer.note(node, rule.method)
        if rule.keeps and ("sources", id(node.outputs[0])) not in self.asked:
            made = writer.call(forget, made)
        writer.bind(node, made, uncertain=True)

    def _sample(self, node: Node) -> None:
        where = place(node)
        if self.strict:
            raise ValueError(
                f"{node.name} in {where!r} has no rule for these arguments, and strict=True. Pass strict=False to have "
                "it sampled."
            )
        writer = self.writer
        writer.sampled.setdefault(node.name, where)
        args, kwargs = writer.arguments(node)
        if not any(o is not None and o.dtype.is_floating_point for o in node.outputs):
            writer.note(node, "at the mean")  # an index or a comparison
            writer.bind(node, writer.call(sampling.at_mean, target(node), *args, **kwargs))
            return
        writer.note(node, "sampled")
        made = writer.call(sampling.sampled, target(node), self.samples, *args, **kwargs)
        writer.bind(node, made, uncertain=True)

    def _merge(self, node: Node) -> None:
        old, written, shares, boxes = node.args
        if any(box is None and share for box, share in zip(boxes, shares, strict=True)):
            raise ValueError(
                f"{place(node)!r} writes in place to a part of a tensor that another view shows only in part, which "
                "cannot be followed. Write to a copy instead."
            )
        for value in (old, *written):
            self.complexes.check(value)
        writer = self.writer
        parts = [(v, box) for v, box in zip(written, boxes, strict=True) if box is not None]
        made = writer.at[id(old)]
        sure = not any(id(v) in writer.uncertain for v in (old, *(v for v, _ in parts)))
        for value, box in parts:
            made = writer.call(overwritten, made, writer.at[id(value)], box)
        writer.bind(node, made, uncertain=not sure)
