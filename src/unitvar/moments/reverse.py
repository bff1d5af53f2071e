"""Gradients through a graph whose signals are known, in reverse.

A gradient is a signal, too: it has a second moment, and at different positions it may be alike, as after an average
over them. Where a value is used twice gradients add, as those through different weights are independent. A value inside
a region of pointwise ops hands E (dv/dz)² of its gradient to the Gaussian z of the region.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence

import torch

from unitvar.graph import Graph, Node, Value
from unitvar.moments.correlation import KINDS
from unitvar.moments.forward import rule_of
from unitvar.moments.law import Field
from unitvar.moments.propagation import Propagation
from unitvar.moments.rule import Rule
from unitvar.moments.sample import drawn_gradients, pointwise_slopes
from unitvar.moments.signal import Signal

__all__ = ["Reverse", "gradients"]


def gradients(
    graph: Graph, found: Propagation, outputs: Sequence[float], *, overrides: Mapping[str, Rule] | None = None
) -> dict[int, Signal]:
    """Follow the gradients from the outputs to the inputs.

    Args:
        graph: a run.
        found: its signals.
        outputs: E g² of the loss's gradient at each output of the graph.
        overrides: rules of this call.

    Returns:
        ``id(value)`` → its gradient, for every value that a gradient reaches.

    Example:
        >>> from unitvar.graph import trace
        >>> from unitvar.moments import propagate
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Dropout(0.5), torch.nn.ReLU())
        >>> graph = trace(net, torch.zeros(1, 4))
        >>> found = propagate(graph, [Signal(0.0, 1.0)], lambda weighing: None)
        >>> round(gradients(graph, found, [1.0])[id(graph.nodes[0].outputs[0])].second, 6)  # E relu'² / keep
        1.0
    """
    with torch.inference_mode(False), torch.enable_grad():
        walk = Reverse(found, overrides or {})
        walk.seed(graph, outputs)
        for node in reversed(graph.nodes):
            walk.step(node)
        return walk.gradients


def _is_signal(value: Value) -> bool:
    return value.kind in ("input", "activation") and (value.dtype.is_floating_point or value.dtype.is_complex)


def _count(shape: tuple[int, ...]) -> int:
    return max(1, math.prod(shape))


class Reverse:
    """Walk a graph backwards, op by op.

    Args:
        found: the graph's signals.
        overrides: rules of this call.
    """

    def __init__(self, found: Propagation, overrides: Mapping[str, Rule]) -> None:
        self.found, self.overrides = found, overrides
        self.gradients: dict[int, Signal] = {}
        self.values: dict[int, Value] = {}
        self.slopes: dict[int, tuple[float, list[float]]] = {}
        self.laws: list[Field] = []  # kept alive, so that an id stays theirs

    def seed(self, graph: Graph, outputs: Sequence[float]) -> None:
        """Start with the loss's gradient, whose elements are unrelated."""
        for value, second in zip(graph.outputs, outputs, strict=True):
            if second > 0 and _is_signal(value):
                signal = self.found.signal(value)
                self.add(value, Signal(0.0, second, value.shape, axes=signal.axes))

    def add(self, value: Value, g: Signal) -> None:
        """Add to a value's gradient."""
        if not g.second > 0 or not math.isfinite(g.second):
            return
        before = self.gradients.get(id(value))
        self.values[id(value)] = value
        if before is None:
            self.gradients[id(value)] = g
            return
        self.gradients[id(value)] = _sum(before, g)

    def step(self, node: Node) -> None:
        """Hand the gradients of an op's outputs to what goes in."""
        for value, g in self.back(node, self.gradients):
            self.add(value, g)

    def back(self, node: Node, reached: Mapping[int, Signal]) -> list[tuple[Value, Signal]]:
        """Return what an op hands to each value before it."""
        handed: list[tuple[Value, Signal]] = []
        left: list[Signal | None] = []
        for output in (o for o in node.outputs if o is not None):
            g = reached.get(id(output))
            left.append(g)
            signal = self.found.signals.get(id(output))
            source = None if signal is None else signal.source
            if g is not None and signal is not None and source is not None and source.home is not None:
                handed.append((source.home, self._jump(g, signal, source.home)))
                left[-1] = None
        if any(g is not None for g in left) and any(_is_signal(v) for v in node.inputs):
            handed += self._through(node, left, reached)
        return handed

    def _jump(self, g: Signal, signal: Signal, home: Value) -> Signal:
        """Pass a region of pointwise ops, down to its Gaussian."""
        law = signal.law
        assert law is not None
        if id(law) not in self.slopes:
            d = law.derivative()
            rho = law.large.correlation if law.large is not None else signal.correlations
            self.slopes[id(law)] = float(law.expected(d * d)), law.pairs(d, rho)
            self.laws.append(law)
        slope, pairs = self.slopes[id(law)]
        base = self.found.signal(home)
        ratio = _count(signal.shape) / _count(base.shape)
        if abs(g.winners) > 1:
            m = base.correlations.neighbours
            rivals = 1 + (abs(g.winners) - 1) * (1 - min(1.0, max(0.0, m)))  # those that are alike compete less
            slope = _winning(law, rivals, largest=g.winners > 0)
        related = {k: g.pair(k) * pairs[i] * ratio for i, k in enumerate(KINDS)}
        made = g.like(second=g.second * slope * ratio, shape=base.shape, axes=base.axes)
        return made.related(related) if made.second > 0 else made

    def _through(
        self, node: Node, outputs: list[Signal | None], reached: Mapping[int, Signal]
    ) -> list[tuple[Value, Signal]]:
        rule = rule_of(node, self.overrides)
        inputs = list(node.inputs)
        made: Sequence[Signal | None] | None = None
        first = next(g for g in outputs if g is not None)
        if rule is not None and rule.gradient is not None:
            call = self.found.call(node, self.found.weights)
            made = rule.gradient(outputs, call) if rule.call else rule.gradient(first, *call.args)
        elif rule is not None and rule.backward is not None:
            args = self.found.call(node, self.found.weights).args
            made = self._by_factors(inputs, rule.backward(*args), first)
        if made is None:
            return self._drawn(node, reached, first)
        return [(v, g) for v, g in zip(inputs, made, strict=False) if g is not None and _is_signal(v)]

    def _by_factors(self, inputs: list[Value], factors: object, g: Signal) -> list[Signal | None]:
        """Multiply by E[g_in²] / E[g_out²]; one number is that of the first signal."""
        if not isinstance(factors, tuple):
            at = next((i for i, v in enumerate(inputs) if _is_signal(v)), 0)
            factors = (*(0.0,) * at, factors)
        return [
            g.like(second=g.second * float(f), shape=v.shape, axes=self.found.signal(v).axes) if _is_signal(v) else None
            for v, f in zip(inputs, factors, strict=False)
        ]

    def _drawn(self, node: Node, reached: Mapping[int, Signal], g: Signal) -> list[tuple[Value, Signal]]:
        chosen = {id(o): reached[id(o)] for o in node.outputs if o is not None and id(o) in reached}
        try:
            if node.op.pointwise:
                slopes = pointwise_slopes(node, self.found, _is_signal)
                return [
                    (v, g.like(second=s * g.second * _count(g.shape) / _count(v.shape), shape=v.shape))
                    for v, s in slopes
                ]
            found = drawn_gradients(node, self.found, chosen, _is_signal)
        except Exception:  # whatever a foreign op raises on inputs that it did not expect
            first = next(v for v in node.inputs if _is_signal(v))
            second = g.second * _count(g.shape) / _count(first.shape)
            return [(first, g.like(second=second, shape=first.shape))]
        return [
            (v, g.like(second=second, shape=v.shape, axes=self.found.signal(v).axes))
            for v, second in found
            if second > 0
        ]

    def until(
        self, value: Value, g: Signal, order: Mapping[int, int], stop: Callable[[Value], bool]
    ) -> tuple[Value, float, float]:
        """Follow a gradient from one value back to the nearest one that stops it.

        Args:
            value: where it starts.
            g: the gradient.
            order: ``id(node)`` → when it ran.
            stop: whether a value ends the search.

        Returns:
            That value (or the last one reached), E g² that arrives there from this gradient, and from what has been
            added so far on the way.
        """
        own, there = _Reach(self), _Reach(self)
        own.put(value, g, order)
        target = own.run(order, stop) or value
        for key in own.met:
            if key in self.gradients:
                there.put(self.values[key], self.gradients[key], order)
        there.run(order, lambda v: v is target)
        arrived = (walk.gradients.get(id(target)) for walk in (own, there))
        mine, others = (0.0 if found is None else found.second for found in arrived)
        return target, mine, others


def _sum(a: Signal, b: Signal) -> Signal:
    """Add two gradients; where tensors were joined, part by part."""
    pairs = {kind: a.pair(kind) + b.pair(kind) for kind in KINDS}
    made = a.related(pairs, second=a.second + b.second)
    if not a.parts and not b.parts:
        return made
    n = max(len(a.parts), len(b.parts))
    if any(len(g.parts) not in (0, n) for g in (a, b)):
        return made
    rows = [g.parts or (g,) * n for g in (a, b)]
    shapes = [p.shape for p in (a.parts or b.parts)]
    parts = (x.like(second=x.second + y.second, shape=s) for x, y, s in zip(*rows, shapes, strict=True))
    return made.like(parts=tuple(parts))


class _Reach:
    """A walk back from one value, latest op first."""

    def __init__(self, walk: Reverse) -> None:
        self.walk = walk
        self.gradients: dict[int, Signal] = {}
        self.pending: list[tuple[int, int, Value]] = []
        self.met: list[int] = []

    def put(self, value: Value, g: Signal, order: Mapping[int, int]) -> None:
        before = self.gradients.get(id(value))
        if before is None:
            at = -1 if value.node is None else order.get(id(value.node), -1)
            heapq.heappush(self.pending, (-at, len(self.met), value))
            self.met.append(id(value))
            self.gradients[id(value)] = g
        else:
            self.gradients[id(value)] = before.like(second=before.second + g.second)

    def run(self, order: Mapping[int, int], stop: Callable[[Value], bool]) -> Value | None:
        """Walk until a value stops it; return that one, or the last one met."""
        value = None
        while self.pending:
            _, _, value = heapq.heappop(self.pending)
            if stop(value) or value.node is None:
                return value
            handed = self.walk.back(value.node, {id(value): self.gradients[id(value)]})
            for earlier, g in handed:
                if g.second > 0:
                    self.put(earlier, g, order)
        return value


def _winning(law: Field, count: float, *, largest: bool) -> float:
    """Return E (dv/dz)² of the largest of several independent v, which is v with probability d F(v)^count."""
    values = law.full.detach().reshape(-1)
    order, probability = law.sorted()
    if not largest:
        order, probability = order.flip(0), probability.flip(0)
    squares = law.derivative().square().reshape(-1)[order]
    # Equal values have equal chances: a pool picks any of them.
    _, groups = torch.unique_consecutive(values[order], return_inverse=True)
    empty = torch.zeros(int(groups[-1]) + 1, dtype=torch.float64, device="cpu")
    share = empty.index_add(0, groups, probability)
    slopes = empty.index_add(0, groups, probability * squares) / share.clamp(min=1e-300)
    chance = torch.diff(share.cumsum(0).clamp(max=1.0) ** count, prepend=share.new_zeros(1))
    return float(chance @ slopes)
