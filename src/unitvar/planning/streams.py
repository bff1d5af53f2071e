"""Residual streams: chains of sums ``x = x + b(x)``, and the weights of their branches.

After n branches of unit variance a stream has E x² = n + 1, and little of it is the network's input. So branches are
scaled by what n is; planning/branches.py says how.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from unitvar.graph import Graph, Node, Value
from unitvar.moments import Propagation, Rule
from unitvar.moments.forward import rule_of
from unitvar.moments.ops.arithmetic import is_sum_or_difference
from unitvar.moments.uses import operands, use_of

__all__ = ["Branch", "Stream", "residual_streams"]


@dataclass(frozen=True, eq=False, slots=True)
class Branch:
    """What one branch adds to its stream.

    Attributes:
        value: the tensor that is added.
        weights: the parameters that it ends in: one, mostly; several after a concatenation or a stream of its own.
        normed: those with a norm between them and the sum: their scale has no effect on what is added.
        inner: the other parameters of the branch, but for those before a norm, and those of a stream inside it.
    """

    value: Value
    weights: tuple[str, ...]
    normed: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class Stream:
    """A chain of sums.

    Attributes:
        start: the tensor that the first branch is added to.
        branches: in execution order.
        joined: what each sum adds a branch to: the sum before, or what a norm, a dropout or an activation made of it.
        sums: the results of the sums.
    """

    start: Value
    branches: list[Branch] = field(default_factory=list)
    joined: list[Value] = field(default_factory=list)
    sums: list[Value] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the innermost module that holds the last weights of all branches; "" if that is the model itself."""
        parts = [name.split(".")[:-1] for b in self.branches for name in b.weights or b.normed]
        common = []
        for names in zip(*parts, strict=False):
            if len(set(names)) > 1:
                break
            common.append(names[0])
        return ".".join(common)


def residual_streams(graph: Graph, found: Propagation, overrides: Mapping[str, Rule]) -> list[Stream]:
    """Find the streams of a graph.

    A sum belongs to a stream if one operand goes back to the stream through views, dropouts, norms, scalings and
    activations alone, and the other depends on the stream through a weight.
    """
    finder = _Finder(graph, found, overrides)
    for node in graph.nodes:
        finder.step(node)
    return finder.streams


class _Finder:
    def __init__(self, graph: Graph, found: Propagation, overrides: Mapping[str, Rule]) -> None:
        self.found, self.overrides = found, overrides
        self.order = {id(v): i for i, node in enumerate(graph.nodes) for v in node.outputs if v is not None}
        self.roots: dict[int, Value] = {}  # what a value goes back to without a weight or a sum between
        self.by_value: dict[int, Stream] = {}
        self.streams: list[Stream] = []
        self.claimed: set[str] = set()  # weights that belong to a branch: a stream inside another comes first

    def step(self, node: Node) -> None:
        """Note where an op's outputs go back to; open or continue a stream if the op adds a branch."""
        outputs = [o for o in node.outputs if o is not None]
        operands = self.full(node, self.signals(node))
        if (
            is_sum_or_difference(node.name)
            and len(operands) == 2
            and self.root(operands[0]) is not self.root(operands[1])
        ):
            for x, branch in (operands, reversed(operands)):
                if self.joins(node, x, branch):
                    break
            return
        carried = self.carried(node, operands)
        if carried is not None:
            self.roots.update((id(o), self.root(carried)) for o in outputs)

    def joins(self, node: Node, x: Value, branch: Value) -> bool:
        """Add a branch to the stream that x is on, if it is a branch of it."""
        root = self.root(x)
        stream = self.by_value.get(id(root)) or Stream(root)
        if not self.depends(branch, stream):
            return False
        ends = list(self.ends(branch, stream))
        if not any(end.weights or end.normed for end in ends):
            return False
        if not stream.branches:
            self.streams.append(stream)
            self.by_value[id(root)] = stream
        stream.branches += ends
        stream.joined.append(x)
        for output in (o for o in node.outputs if o is not None):
            stream.sums.append(output)
            self.by_value[id(output)] = stream
        return True

    def root(self, value: Value) -> Value:
        return self.roots.get(id(value), value)

    def signals(self, node: Node) -> list[Value]:
        """List the operands that carry a signal: neither parameters nor constants nor noise."""
        found = {id(v): v for v in node.inputs if v.kind in ("input", "activation") and v.dtype.is_floating_point}
        return [v for v in found.values() if self.found.signal(v).path.depth != -1]

    def full(self, node: Node, signals: list[Value]) -> list[Value]:
        """Leave out operands that are broadcast, such as means, gates and time embeddings."""
        size = max((math.prod(o.shape) for o in node.outputs if o is not None), default=0)
        return [v for v in signals if math.prod(v.shape) >= size] if node.op.pointwise else signals

    def carried(self, node: Node, signals: Sequence[Value]) -> Value | None:
        """Return the operand that an op hands on, moved, masked, rescaled or through an activation."""
        rule = rule_of(node, self.overrides)
        if rule is None or not signals or _is_weight(node, rule):
            return None
        if rule.carries:
            return signals[0]
        return signals[0] if node.op.pointwise and len({id(self.root(v)) for v in signals}) == 1 else None

    def depends(self, value: Value, stream: Stream) -> bool:
        """Return True if a value is computed from a stream."""
        floor = self.order.get(id(stream.start), -1)
        own = {id(stream.start), *map(id, stream.sums)}
        pending, met = [value], {id(value)}
        while pending:
            v = pending.pop()
            if id(v) in own:
                return True
            for before in v.node.inputs if v.node is not None else ():
                if id(before) not in met and (self.order.get(id(before), -1) >= floor):
                    met.add(id(before))
                    pending.append(before)
        return False

    def ends(self, value: Value, stream: Stream) -> Iterator[Branch]:
        """Find the last weights of a branch; what is added to another branch first is a branch of its own."""
        for part in self.terms(value):
            found: dict[bool, list[str]] = {False: [], True: []}  # whether a norm comes after it → weights
            pending, met = [(part, False)], {id(part)}
            while pending:
                v, normed = pending.pop()
                other = self.by_value.get(id(v))
                if self.is_on(v, stream):
                    continue
                if other is not None and v is not other.start:  # a stream inside the branch
                    found[normed] += [name for b in other.branches for name in b.weights]
                    more = [other.start]
                elif v.node is None or (rule := rule_of(v.node, self.overrides)) is None:
                    continue
                else:
                    found[normed] += _weights(v.node, rule)
                    normed |= rule.resets
                    more = [] if _is_weight(v.node, rule) else self.leading(v.node)
                for before in more:
                    if id(before) not in met:
                        met.add(id(before))
                        pending.append((before, normed))
            weights, behind = (tuple(dict.fromkeys(found[normed])) for normed in (False, True))
            inner = self.inner(part, stream, weights) if weights else ()
            self.claimed.update((*weights, *inner))
            yield Branch(part, weights, () if weights else behind, inner)

    def is_on(self, value: Value, stream: Stream) -> bool:
        """Return True if a value is the stream at some depth, or goes back to it without a weight."""
        root = self.root(value)
        return root is stream.start or stream in (self.by_value.get(id(value)), self.by_value.get(id(root)))

    def inner(self, value: Value, stream: Stream, ends: Sequence[str]) -> tuple[str, ...]:
        """Find the weights of a branch before its ends that no norm and no other branch comes after."""
        found: dict[str, None] = {}
        pending, met = [value], {id(value)}
        while pending:
            v = pending.pop()
            rule = None if v.node is None else rule_of(v.node, self.overrides)
            if v.node is None or rule is None or self.is_on(v, stream):
                continue
            found.update(dict.fromkeys(_weights(v.node, rule)))
            for before in () if rule.resets else self.signals(v.node):
                if id(before) not in met:
                    met.add(id(before))
                    pending.append(before)
        return tuple(name for name in found if name not in ends and name not in self.claimed)

    def terms(self, value: Value) -> Iterator[Value]:
        """Take a sum of several branches apart, as of attention and MLP side by side."""
        pending = [value]
        while pending:
            term = v = pending.pop()
            while (node := v.node) is not None and id(v) not in self.by_value:
                signals = self.full(node, self.signals(node))
                rule = rule_of(node, self.overrides)
                if is_sum_or_difference(node.name) and len(signals) == 2:
                    pending += reversed(signals)
                    break
                carried = self.carried(node, signals) if len(signals) == 1 else None
                if carried is None or (rule is not None and rule.resets):
                    yield term
                    break
                v = carried
            else:
                yield term

    def leading(self, node: Node) -> list[Value]:
        """List the operands that decide an op's scale: all that are joined or added, else the values it weighs."""
        signals = self.full(node, self.signals(node))
        rule = rule_of(node, self.overrides)
        if rule is not None and rule.carries:
            return signals[:1]
        if is_sum_or_difference(node.name) or any(
            isinstance(a, (list, tuple)) and signals and signals[0] in a for a in node.args
        ):
            return signals
        if node.op.pointwise:  # of a product, the operand that is linear in a weight
            linear = [v for v in signals if self.root(v).node is not None and _is_weight_output(self, self.root(v))]
            return (linear or signals)[:1]
        return signals[-1:]  # of attention, the values


def _is_weight_output(finder: _Finder, value: Value) -> bool:
    rule = None if value.node is None else rule_of(value.node, finder.overrides)
    return rule is not None and value.node is not None and _is_weight(value.node, rule)


def _is_weight(node: Node, rule: Rule) -> bool:
    return bool(rule.weights) and any(v.kind in ("parameter", "derived") for v in node.inputs)


def _weights(node: Node, rule: Rule) -> list[str]:
    """Name the weights of an op whose scale its output is proportional to."""
    if rule.recurrent is not None or not rule.weights:
        return []
    uses = [use_of(node, rule, i, v) for i, v in operands(node.args, rule) if isinstance(v, Value)]
    return [use.parameter.name for use in uses if use is not None and use.parameter.kind == "parameter"]
