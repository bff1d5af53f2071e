"""Scales for the gradient: each weight so that what it hands back makes E g² one at the weight before it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import torch

from unitvar.graph import Graph, Node, Value
from unitvar.moments import Propagation, Rule
from unitvar.moments.forward import rule_of
from unitvar.moments.ops.views import keeps_elements
from unitvar.moments.reverse import Reverse
from unitvar.moments.signal import Signal
from unitvar.moments.uses import Use, operands, use_of
from unitvar.planning.records import Record

__all__ = ["after_slopes", "backward_scales"]

_LEFT = 0.05  # of E g² = 1, what others must leave for a weight to have a say
_SKIPPED = "a skip connection carries the gradient past it: its scale controls only its own branch's share of E g²"
_RECURRENT = "a recurrence follows: the gradient that comes back through it is taken as E g² = 1"


class _Weights:
    """The weight ops of a graph, and the weight or input before each."""

    def __init__(self, graph: Graph, found: Propagation, overrides: Mapping[str, Rule], names: set[str]) -> None:
        self.order = {id(node): i for i, node in enumerate(graph.nodes)}
        self.found, self.overrides = found, overrides
        self.uses: dict[int, tuple[Node, Rule, Use, Value]] = {}
        for node in graph.nodes:
            rule = rule_of(node, overrides)
            if rule is None or not rule.weights or rule.recurrent is not None:
                continue
            for position, operand in operands(node.args, rule):
                use = use_of(node, rule, position, operand) if isinstance(operand, Value) else None
                signals = [v for v in node.inputs if v is not operand and v.kind in ("input", "activation")]
                if use is not None and use.parameter.name in names and len(signals) == 1:
                    self.uses[id(node)] = node, rule, use, signals[0]
        readers = _readers(graph)
        self.normalised = {key for key, (node, *_) in self.uses.items() if self._into_norms(node, readers)}
        self.recurrent = {key for key, (node, *_) in self.uses.items() if self._into_recurrences(node, readers)}

    def recurs(self, node: Node) -> bool:
        """Return True for a layer or a cell of a recurrent network."""
        rule = rule_of(node, self.overrides)
        return rule is not None and rule.recurrent is not None

    def _into_recurrences(self, node: Node, readers: Mapping[int, list[Node]]) -> bool:
        """Return True if what an op gives reaches a recurrence before it reaches another weight."""
        pending, met = [o for o in node.outputs if o is not None], set[int]()
        while pending:
            for reader in readers.get(id(pending.pop()), []):
                if self.recurs(reader):
                    return True
                if id(reader) not in self.uses and id(reader) not in met:
                    met.add(id(reader))
                    pending += [o for o in reader.outputs if o is not None]
        return False

    def _into_norms(self, node: Node, readers: Mapping[int, list[Node]]) -> bool:
        """Return True if all that an op gives goes into norms, which take its scale away."""
        pending = [o for o in node.outputs if o is not None and id(o) in readers]
        if not pending:
            return False
        while pending:
            for reader in readers.get(id(pending.pop()), []):
                rule = rule_of(reader, self.overrides)
                if rule is not None and rule.resets:
                    continue
                if rule is None or not keeps_elements(reader.name):
                    return False
                pending += [o for o in reader.outputs if o is not None]
        return True

    def stops(self, value: Value) -> bool:
        """Return True for the pre-activation of a weight."""
        return id(value) in self.found.weighed

    def handed(self, walk: Reverse, node: Node, square: float) -> Signal | None:
        """Return what a weight of this squared row norm hands to what reaches it; None without a gradient."""
        _, _, use, x = self.uses[id(node)]
        if not any(o is not None and id(o) in walk.gradients for o in node.outputs):
            return None
        before = self.found.weights.get(id(use.operand))
        second = square * use.part / use.fan_in
        self.found.weights[id(use.operand)] = Signal(0.0, second, use.operand.shape, axes="f" * len(use.operand.shape))
        try:
            made = [g for v, g in walk.back(node, walk.gradients) if v is x]
        finally:
            if before is not None:
                self.found.weights[id(use.operand)] = before
        return made[0] if made else None


def _readers(graph: Graph) -> dict[int, list[Node]]:
    """Return, for each value, the ops that read it."""
    found: dict[int, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for value in node.inputs:
            found[id(value)].append(node)
    return found


def backward_scales(
    graph: Graph, found: Propagation, overrides: Mapping[str, Rule], records: Mapping[str, Record]
) -> tuple[dict[str, float], dict[str, str]]:
    """Walk back from the outputs, where E g² is one, and choose each weight's scale when it is met.

    Several weights that read the same signal share what its gradient is to be. Where a skip alone carries it, no scale
    can change that: a weight then hands back as much as it would without the skip.

    Little gradient comes back through the gates of a recurrence, and a weight before it that made up for this would
    saturate them. So a recurrence hands back E g² = 1: before it the gradient is constant, but not one.

    Returns:
        Parameter → s², and parameter → what its scale could not do.
    """
    with torch.inference_mode(False), torch.enable_grad():
        weights = _Weights(graph, found, overrides, set(records))
        walk = Reverse(found, overrides)
        walk.seed(graph, [1.0 if v.dtype.is_floating_point else 0.0 for v in graph.outputs])
        rivals = _rivals(graph, weights)
        wanted: dict[str, list[float]] = defaultdict(list)
        notes: dict[str, str] = {}
        for node in reversed(graph.nodes):
            if id(node) in weights.uses:
                _, _, use, x = weights.uses[id(node)]
                name = use.parameter.name
                unit = weights.handed(walk, node, 1.0)
                if id(node) in weights.normalised:
                    # The norm takes its scale away: what it hands back does not depend on it, its own gradient does.
                    own = [
                        walk.gradients[id(o)].second for o in node.outputs if o is not None and id(o) in walk.gradients
                    ]
                    before = found.weights.get(id(use.operand))
                    if own and before is not None:
                        wanted[name].append(own[0] * before.second * use.fan_in / use.part)
                    walk.step(node)
                    continue
                if id(node) in weights.recurrent:
                    notes[name] = _RECURRENT
                if unit is not None and unit.second > 0:
                    target, mine, others = walk.until(x, unit, weights.order, weights.stops)
                    if mine > 0:
                        left = 1 - others
                        if left < _LEFT:
                            notes[name] = _SKIPPED
                            left = 1.0
                        wanted[name].append(left / max(1, rivals.get(id(target), 1)) / mine)
                        rivals[id(target)] -= 1
                if wanted[name]:
                    square = len(wanted[name]) / sum(1 / s for s in wanted[name])
                    _fix(found, use, square)
            for value, g in walk.back(node, walk.gradients):
                walk.add(value, g.like(second=1.0) if weights.recurs(node) and g.second > 0 else g)
        squares = {name: len(each) / sum(1 / s for s in each) for name, each in wanted.items() if each}
        return squares, {name: note for name, note in notes.items() if name in squares}


def _fix(found: Propagation, use: Use, square: float) -> None:
    shape = use.operand.shape
    second = square * use.part / use.fan_in
    found.weights[id(use.operand)] = Signal(0.0, second, shape, axes="f" * len(shape))


def _rivals(graph: Graph, weights: _Weights) -> Counter[int]:
    """Count the weights that hand their gradient to the same pre-activation or input."""
    counts: Counter[int] = Counter()
    for _, _, _, x in weights.uses.values():
        target = _nearest(x, weights)
        counts[id(target)] += 1
    return counts


def _nearest(value: Value, weights: _Weights) -> Value:
    """Find the latest pre-activation before a value, or the input that it comes from."""
    pending, met, last = [value], {id(value)}, value
    while pending:
        pending.sort(key=lambda v: -1 if v.node is None else weights.order.get(id(v.node), -1))
        last = pending.pop()
        if weights.stops(last) or last.node is None:
            return last
        for v in last.node.inputs:
            if id(v) not in met and v.kind in ("input", "activation") and v.dtype.is_floating_point:
                met.add(id(v))
                pending.append(v)
    return last


def after_slopes(graph: Graph, found: Propagation, overrides: Mapping[str, Rule]) -> dict[str, float]:
    """Return, for each weight, p² E (dx/dz)² between its output z and the x that reaches the next weight.

    That is p E f'² for an activation and a dropout, the term of the paper's formula.
    """
    with torch.inference_mode(False), torch.enable_grad():
        weights = _Weights(graph, found, overrides, set(found.weighed.values()))
        walk = Reverse(found, overrides)
        slopes: dict[str, list[float]] = defaultdict(list)
        for _, _, _, x in weights.uses.values():
            signal = found.signal(x)
            unit = Signal(0.0, 1.0, x.shape, axes=signal.axes)
            target, mine, _ = walk.until(x, unit, weights.order, weights.stops)
            name = found.weighed.get(id(target))
            if name is not None:
                ratio = _elements(target.shape) / _elements(x.shape)  # pools hand the same energy to more elements
                slopes[name].append(mine * ratio * signal.path.keep**2)
        return {name: sum(each) / len(each) for name, each in slopes.items()}


def _elements(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape:
        n *= size
    return max(1, n)
