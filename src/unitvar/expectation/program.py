"""Programs: a recorded run, rewritten so that each uncertain tensor is a mean and a variance.

A program is an ``fx.GraphModule``: generated Python that calls torch on tensors, and so can be differentiated, compiled
and exported like any module. What is certain runs as it was recorded.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from unitvar._torch import schema_of
from unitvar.expectation import sampling
from unitvar.expectation.laws import Law, law_of
from unitvar.expectation.needs import asked, living
from unitvar.expectation.ops import Rule, find
from unitvar.expectation.ops.draws import MASKS, SHAPES, VIEWS, draw
from unitvar.expectation.ops.noise import drawn, masked
from unitvar.expectation.ops.pointwise import region
from unitvar.expectation.ops.views import MOVED, overwritten
from unitvar.expectation.record import Recording, noisy, place, static
from unitvar.expectation.uncertain import Uncertain, ensured, forget, mean_of
from unitvar.graph import Node, Value
from unitvar.graph.op import op_of
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


@dataclass
class _Region:
    """Elementwise ops between one uncertain tensor and another.

    Attributes:
        root: the tensor that they begin at.
        nodes: the ops.
        affine: whether they are affine all together, so that a Gaussian stays one.
    """

    root: Value
    nodes: list[Node] = field(default_factory=list)
    affine: bool = True


def build(recording: Recording, *, samples: int, strict: bool) -> Program:
    """Rewrite a recorded run."""
    return _Builder(recording, samples, strict).build()


class _Builder:
    def __init__(self, recording: Recording, samples: int, strict: bool) -> None:
        self.recording, self.samples, self.strict = recording, samples, strict
        self.graph, self.fx, self.root = recording.graph, fx.Graph(), nn.Module()
        self.at: dict[int, Any] = {}  # Value → fx node
        self.uncertain: set[int] = set()
        self.laws: dict[int, Law] = {}
        self.regions: dict[int, _Region] = {}
        self.names: list[str] = []
        self.methods: dict[str, str] = {}
        self.sampled: dict[str, str] = {}
        self.numbers: dict[int, int] = {}
        self.live = living(self.graph)
        self.asked = asked(self.graph, self.live)

    def build(self) -> Program:
        names = sorted({v.name for v in self._leaves() if v.kind in ("parameter", "buffer")})
        self.names = names
        named = {name: self.fx.placeholder(f"weight_{i}") for i, name in enumerate(names)}
        inputs = [self.fx.placeholder(f"input_{i}") for i in range(len(self.graph.inputs))]
        for value, given in zip(self.graph.inputs, inputs, strict=True):
            self.at[id(value)] = given
        for value in self._leaves():
            if value.kind in ("parameter", "buffer"):
                self.at[id(value)] = named[value.name]
            elif id(value) not in self.at:
                self.at[id(value)] = self._constant(value)
        for node in self.live:
            self._step(node)
        self.fx.output(tuple(self._result(v) for v in self.graph.returned))
        self.fx.eliminate_dead_code()
        module = fx.GraphModule(self.root, self.fx)
        certain = not self.uncertain
        return Program(module, tuple(self.names), self.recording, certain, self.methods, self.sampled)

    def _leaves(self) -> list[Value]:
        found = {id(v): v for node in self.live for v in node.inputs if v.node is None}
        return [*found.values(), *(v for v in self.graph.returned if v.node is None and id(v) not in found)]

    def _constant(self, value: Value) -> Any:
        if value.tensor is None:
            raise ValueError("The model computes with a tensor that has no data. Move it off the meta device first.")
        name = f"constant_{id(value)}"
        with torch.inference_mode(False):  # tensors made under it cannot take part in autograd
            self.root.register_buffer(name, value.tensor.detach().clone())
        return self.fx.get_attr(name)

    def _result(self, value: Value) -> Any:
        if id(value) in self.laws:
            return self._settled(value)
        return self.at[id(value)]

    # One op after another.

    def _step(self, node: Node) -> None:
        if node.name == MERGE:
            self._merge(node)
            return
        if any(id(v) in self.laws for v in node.inputs) and self._stays_law(node):
            return
        if self._draws(node):
            return
        for value in node.inputs:  # numbers drawn that meet anything else count by mean and variance
            if id(value) in self.laws and not self._mask(node):
                self._settled(value)
        if self._mask(node):
            self._multiply(node)
            return
        if node.name in SHAPES:
            args, kwargs = self._called(node)
            self._bind(node, self.fx.call_function(sampling.at_mean, (_target(node), *args), kwargs))
            return
        random = noisy(node)
        if not random and not any(id(v) in self.uncertain for v in node.inputs):
            self._certain(node)
            return
        self._uncertain(node, random)

    def _certain(self, node: Node) -> None:
        rule = find(node.name, node.op.overload)
        tensors = list(node.inputs)
        if rule is not None and rule.mixture and rule.noise is not None and len(node.outputs) == 1:
            self._bind(node, self.at[id(tensors[0])])  # a dropout that drops nothing
            return
        args, kwargs = self._called(node)
        self._bind(node, self.fx.call_function(_target(node), args, kwargs))

    def _uncertain(self, node: Node, random: bool) -> None:
        rule = find(node.name, node.op.overload)
        if rule is not None and rule.takes is not None and not self._takes(rule, node):
            rule = rule.otherwise
        pointwise = (node.op.pointwise or (rule is not None and rule.affine)) and not random
        if pointwise and self._pointwise(node, rule):
            return
        if rule is None and node.op.views:
            rule = MOVED  # every view moves elements
        if rule is not None:
            self._apply(node, rule)
        else:
            self._sample(node)

    def _apply(self, node: Node, rule: Rule) -> None:
        args, kwargs = self._called(node)
        if rule.keyed:
            flat = [v for v in node.args if isinstance(v, Value)]
            kwargs["keys"] = tuple(self._number(v) if id(v) in self.uncertain else None for v in flat)
            kwargs["key"] = self._number(node.outputs[0])
        if rule.mixture and ("mixture", id(node.outputs[0])) in self.asked:
            kwargs["mixture"] = True
        made = self.fx.call_function(rule.function, (_target(node), *args), kwargs)
        self._note(node, rule.method)
        if rule.keeps and ("sources", id(node.outputs[0])) not in self.asked:
            made = self.fx.call_function(forget, (made,))
        self._bind(node, made, uncertain=True)

    def _note(self, node: Node, method: str) -> None:
        self.methods.setdefault(node.name.partition(".")[2], method)

    def _pointwise(self, node: Node, rule: Rule | None) -> bool:
        """Follow an elementwise op from the Gaussian that it goes back to; return False if it goes back to several."""
        operands = [v for v in node.inputs if id(v) in self.uncertain]
        distinct = {id(v): v for v in operands}
        regions = {k: self.regions.get(k) or _Region(v) for k, v in distinct.items()}
        roots = {id(r.root): r.root for r in regions.values()}
        if len(roots) > 1:
            return False
        nodes = {id(n): n for r in regions.values() for n in r.nodes}
        order = [n for n in self.live if id(n) in nodes] + [node]
        (root,) = roots.values()
        alone = len(operands) == 1
        affine = rule is not None and rule.affine and alone
        gaussian = alone and next(iter(regions.values())).affine
        out = node.outputs[0]
        if rule is not None and alone and (affine or gaussian):
            self._apply(node, rule)
        else:
            self._quadrature(node, root, order)
        if out is not None:
            still = affine and all(r.affine for r in regions.values())
            self.regions[id(out)] = _Region(root, order, still)
        return True

    def _quadrature(self, node: Node, root: Value, order: list[Node]) -> None:
        """Replay elementwise ops on a grid."""
        inner = fx.Graph()
        others: dict[int, Value] = {}
        places: dict[int, Any] = {id(root): inner.placeholder("x")}
        made = {id(o) for n in order for o in n.outputs}
        for n in order:
            for v in n.inputs:
                if id(v) not in places and id(v) not in made:
                    places[id(v)] = inner.placeholder(f"other_{len(others)}")
                    others[id(v)] = v
            args, kwargs = self._called(n, places)
            places[id(n.outputs[0])] = inner.call_function(_target(n), args, kwargs)
        inner.output(places[id(node.outputs[0])])
        name = f"region_{self._number(node.outputs[0])}"
        self.root.add_module(name, fx.GraphModule(nn.Module(), inner))
        args = (self.fx.get_attr(name), self.at[id(root)], *(self.at[id(v)] for v in others.values()))
        self._note(node, "quadrature")
        self._bind(node, self.fx.call_function(region, args), uncertain=True)

    def _sample(self, node: Node) -> None:
        where = place(node)
        if self.strict:
            raise ValueError(
                f"{node.name} in {where!r} has no rule for these arguments, and strict=True. Pass strict=False to have "
                "it sampled."
            )
        self.sampled.setdefault(node.name, where)
        args, kwargs = self._called(node)
        floating = [o is not None and o.dtype.is_floating_point for o in node.outputs]
        if not any(floating):  # an index or a comparison: taken at the mean
            made = self.fx.call_function(sampling.at_mean, (_target(node), *args), kwargs)
            self._note(node, "at the mean")
            self._bind(node, made)
            return
        self._note(node, "sampled")
        made = self.fx.call_function(sampling.sampled, (_target(node), self.samples, *args), kwargs)
        self._bind(node, made, uncertain=True)

    # Random numbers that the model draws itself.

    def _draws(self, node: Node) -> bool:
        if not node.op.random:
            return False
        found = draw(node.name, node.op.overload, static(node))
        out = node.outputs[0] if node.outputs else None
        if found is None or out is None:
            return False
        kind, parameters = found
        law = law_of(kind, parameters, out.shape, self._number(out))
        if law is None:
            return False
        self.laws[id(out)] = law
        return True

    def _stays_law(self, node: Node) -> bool:
        """Return True if an op makes only other random numbers of random numbers."""
        laws = {id(v): self.laws[id(v)] for v in node.inputs if id(v) in self.laws}
        rest = [v for v in node.inputs if id(v) not in laws]
        out = node.outputs[0]
        if out is None or len({law.source for law in laws.values()}) > 1:
            return False
        law = next(iter(laws.values()))
        if node.name in VIEWS:
            same = all(n in (1, m) for n, m in zip(law.drawn[::-1], out.shape[::-1], strict=False))
            expands = "expand" in node.name and same
            numel = torch.Size(out.shape).numel() == torch.Size(law.drawn).numel()
            if expands or numel:
                self.laws[id(out)] = law if expands else law.seen(out.shape)
            return expands or numel
        if not node.op.pointwise or any(v.tensor is None or v.tensor.numel() != 1 for v in rest):
            return False
        if any(v.kind != "constant" for v in rest):
            return False
        places = {key: value.numbers for key, value in laws.items()}
        places |= {id(v): v.tensor.reshape(()).double() for v in rest if v.tensor is not None}
        args, kwargs = self._called(node, places)
        numbers = _target(node)(*args, **kwargs)
        self.laws[id(out)] = law.through(numbers)
        return True

    def _mask(self, node: Node) -> bool:
        inputs = list(node.inputs)
        return node.name in MASKS and len(inputs) == 2 and sum(id(v) in self.laws for v in inputs) == 1

    def _multiply(self, node: Node) -> None:
        a, b = node.inputs
        mask, other = (a, b) if id(a) in self.laws else (b, a)
        law, out = self.laws[id(mask)], node.outputs[0]
        if law.var == 0 and law.mean == 1:
            self._bind(node, self.at[id(other)], uncertain=id(other) in self.uncertain)
            return
        args = (self.at[id(other)], law.drawn, law.mean, law.var)
        self._note(node, "exact")
        self._bind(node, self.fx.call_function(masked, args, {"key": self._number(out)}), uncertain=True)

    def _settled(self, value: Value) -> Any:
        """Turn numbers drawn into a mean and a variance."""
        if id(value) not in self.at:
            law = self.laws[id(value)]
            like = self.root
            name = f"like_{value.dtype}".replace(".", "_")
            device = next((v.tensor.device for v in self.graph.inputs if v.tensor is not None), torch.device("cpu"))
            if not hasattr(like, name):
                like.register_buffer(name, torch.empty(0, dtype=value.dtype, device=device))
            args = (tuple(value.shape), law.mean, law.var, self.fx.get_attr(name))
            self.at[id(value)] = self.fx.call_function(drawn, args)
            self.uncertain.add(id(value))
        return self.at[id(value)]

    def _merge(self, node: Node) -> None:
        old, written, shares, boxes = node.args
        if any(box is None and share for box, share in zip(boxes, shares, strict=True)):
            raise ValueError(
                f"{place(node)!r} writes in place to a part of a tensor that another view shows only in part, which "
                "cannot be followed. Write to a copy instead."
            )
        parts = [(v, box) for v, box in zip(written, boxes, strict=True) if box is not None]
        made = self.at[id(old)]
        sure = not any(id(v) in self.uncertain for v in (old, *(v for v, _ in parts)))
        for value, box in parts:
            made = self.fx.call_function(overwritten, (made, self.at[id(value)], box))
        self._bind(node, made, uncertain=not sure)

    # Between the recorded graph and the new one.

    def _called(self, node: Node, places: dict[int, Any] | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, keyword-only ones by name."""
        where = self.at if places is None else {**self.at, **places}

        def put(arg: Any) -> Any:
            if isinstance(arg, Value):
                return where[id(arg)]
            return [put(a) for a in arg] if isinstance(arg, (tuple, list)) else arg

        args = [put(a) for a in static(node)]
        keyword = [a.kwarg_only for a in schema_of(node.op.func).arguments][: len(args)]
        kwargs = {node.op.names[i]: arg for i, arg in enumerate(args) if keyword[i] and arg is not node.op.defaults[i]}
        kwargs.pop("generator", None)
        return tuple(arg for i, arg in enumerate(args) if not keyword[i]), kwargs

    def _bind(self, node: Node, made: Any, *, uncertain: bool = False) -> None:
        outputs = node.outputs
        several = len(schema_of(node.op.func).returns) > 1 or (
            len(outputs) != 1 or "[]" in str(schema_of(node.op.func).returns[0].type)
        ) if node.name != MERGE else False  # fmt: skip
        for i, value in enumerate(outputs):
            if value is None:
                continue
            item = self.fx.call_function(operator.getitem, (made, i)) if several else made
            floats = value.dtype.is_floating_point
            if uncertain and several:
                item = self.fx.call_function(ensured if floats else mean_of, (item,))
            self.at[id(value)] = item
            if uncertain and (floats or not several):
                self.uncertain.add(id(value))

    def _number(self, value: Value | None) -> int:
        return self.numbers.setdefault(id(value), len(self.numbers))

    def _takes(self, rule: Rule, node: Node) -> bool:
        """Ask a rule about arguments of which it sees the shapes."""

        def shown(arg: Any) -> Any:
            if isinstance(arg, Value):
                empty = torch.empty(arg.shape, dtype=arg.dtype, device="meta")
                return Uncertain(empty, empty) if id(arg) in self.uncertain else empty
            return [shown(a) for a in arg] if isinstance(arg, (tuple, list)) else arg

        args = [shown(a) for a in static(node)]
        keyword = [a.kwarg_only for a in schema_of(node.op.func).arguments][: len(args)]
        named = {node.op.names[i]: a for i, a in enumerate(args) if keyword[i]}
        assert rule.takes is not None
        return rule.takes(*(a for i, a in enumerate(args) if not keyword[i]), **named)


def _target(node: Node) -> Any:
    """Return what computes the same without writing: an overload, which can be an argument of an fx call."""
    if not node.op.written:
        return node.op.func
    packet = node.op.functional
    found = getattr(packet, node.op.overload, None) or getattr(packet, "default", None)
    if found is None or op_of(found).written:
        raise ValueError(
            f"{node.name} in {place(node)!r} writes in place, and nothing in torch computes the same without writing."
        )
    return found
