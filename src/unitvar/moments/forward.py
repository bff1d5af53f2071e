"""Signals through a graph, op by op, in the order of the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from unitvar.graph import Graph, Node, Op, Value
from unitvar.moments.correlation import CONSTANT, KINDS
from unitvar.moments.known import Numbers, ancestors, followed
from unitvar.moments.ops.arithmetic import is_sum
from unitvar.moments.ops.pointwise import POINTWISE
from unitvar.moments.propagation import Propagation, homed
from unitvar.moments.rule import Rule, find
from unitvar.moments.sample import sampled
from unitvar.moments.signal import Origin, Path, Signal
from unitvar.moments.uses import Solver, Weighing, operands, use_of

__all__ = ["known", "propagate", "rule_of"]

_UNIT = CONSTANT._replace(positions=1.0, neighbours=1.0)  # weights are the same everywhere
_SAMPLED = Rule(lambda: None)


def known(op: Op, overrides: Mapping[str, Rule]) -> bool:
    """Return True if the op has a rule of its own."""
    return op.pointwise or op.name.startswith("prim.") or find(op.name, op.overload, overrides) is not None


def rule_of(node: Node, overrides: Mapping[str, Rule]) -> Rule | None:
    """Find the rule of an op: its own, or that of all pointwise ops."""
    return find(node.name, node.op.overload, overrides) or (POINTWISE if node.op.pointwise else None)


def propagate(
    graph: Graph,
    inputs: Sequence[Signal],
    solve: Solver,
    *,
    zeroed: Callable[[str], bool] = lambda name: False,
    overrides: Mapping[str, Rule] | None = None,
    numbers: Numbers | None = None,
    tables: Mapping[str, float] | None = None,
    quiet: bool = False,
) -> Propagation:
    """Follow the signals from the inputs to the end.

    Args:
        graph: a run.
        inputs: the signals of its inputs.
        solve: chooses the squared row norm of each use of a weight; None leaves the weight's actual values.
        zeroed: whether a bias of this name will be zero.
        overrides: rules of this call.
        numbers: of an earlier pass over the same graph.
        tables: embedding → the E w² that its rows will have; others keep their values.
        quiet: whether every mask is at its mean, as with dropout off.

    Returns:
        The signals of all values, and what was met on the way.
    """
    with torch.inference_mode(False), torch.enable_grad():
        uses = Counter(id(v) for node in graph.nodes for v in node.inputs if v.kind == "parameter")
        found = Propagation(numbers=numbers or Numbers(), uses=uses)
        walk = _Walk(solve, zeroed, overrides or {}, found, quiet=quiet)
        for value, signal in zip(graph.inputs, inputs, strict=True):
            if not _is_mask(value):  # which is read as it is, like one that is no input
                axes = signal.axes if len(signal.axes) == len(value.shape) else ""
                walk.out.signals[id(value)] = homed(signal.but(shape=value.shape, axes=axes), value, 1.0)
        for name, second in (tables or {}).items():
            table = graph.parameters[name]
            walk.out.signals[id(table)] = homed(Signal(0.0, second, table.shape, correlation=CONSTANT), table, 1.0)
            walk.filled.add(id(table))
        for node in graph.nodes:
            walk.step(node)
        return walk.out


def _is_mask(value: Value) -> bool:
    tensor = value.tensor
    if tensor is None or tensor.is_meta:
        return False
    return tensor.dtype == torch.bool or (tensor.is_floating_point() and bool(tensor.isneginf().any()))


@dataclass(eq=False, slots=True)
class _Walk:
    solve: Solver
    zeroed: Callable[[str], bool]
    overrides: Mapping[str, Rule]
    out: Propagation
    parts: dict[tuple[Any, ...], tuple[Signal, ...]] = field(default_factory=dict)
    quiet: bool = False
    filled: set[int] = field(default_factory=set)  # tables that will be filled, and what is computed from them alone

    def step(self, node: Node) -> None:
        """Follow the signals through one op."""
        kinds = {o.kind for o in node.outputs if o is not None}
        rule = rule_of(node, self.overrides)
        if kinds <= {"derived", "buffer"}:  # parameters' own arithmetic: read when it meets a signal
            if kinds and rule is not None and rule.embeds:
                self.note(node)
            elif kinds == {"derived"}:
                self.look_for_constants(node, rule)
            if rule is not None and not rule.weights and any(id(v) in self.filled for v in node.inputs):
                self.apply(node, rule)
                self.filled.update(id(o) for o in node.outputs if o is not None)
            return
        if rule is not None and rule.weights:
            self.weigh(node, rule)
            return
        self.note(node)
        if rule is None:
            self.unknown(node)
        elif not (rule is POINTWISE and is_sum(node.name) and self.take_bias(node)):
            self.apply(node, rule)

    def apply(self, node: Node, rule: Rule) -> None:
        """Follow signals through an op by its rule; where that gives None, the op is sampled."""
        key = None
        if rule.again and not any(isinstance(a, Value) for a in node.args[1:]):
            key = id(node.args[0]), node.name, node.op.overload, repr(node.args[1:])
            if key in self.parts:
                for output, signal in zip((o for o in node.outputs if o is not None), self.parts[key], strict=False):
                    self.out.signals[id(output)] = signal
                return
        results = self.forward(node, rule)
        if not results:
            self.unknown(node)
            return
        made = self.finish(node, rule, results)
        if key is not None:
            self.parts[key] = made

    def unknown(self, node: Node) -> None:
        """Run an op without a rule on random numbers, and report it."""
        self.out.unsupported[node.name] += 1
        self.out.where.setdefault(node.name, node.path)
        self.finish(node, _SAMPLED, sampled(node, self.out))

    def forward(self, node: Node, rule: Rule, replaced: Mapping[int, Signal] | None = None) -> tuple[Signal, ...]:
        """Return the signals of an op's outputs; none if its rule does not know these arguments."""
        call = self.out.call(node, replaced)
        if rule.mixes is not None and "b" in rule.mixes(*call.args):
            self.out.mixed += 1
        forward = rule.quiet if self.quiet and rule.quiet is not None else rule.forward
        result = forward(call) if rule.call else forward(*call.args)
        results = result if isinstance(result, tuple) else () if result is None else (result,)
        if rule.pairs is not None and results:
            pairs = {kind: rule.pairs(kind, *call.args) for kind in KINDS}
            results = (results[0].related(pairs), *results[1:])
        return results

    def main(self, node: Node) -> Signal | None:
        """Return the signal among an op's inputs whose path tells most; None if there is none."""
        signals = [self.out.signal(v) for v in node.inputs if v.kind in ("input", "activation")]
        return max(signals, key=lambda s: s.path.rank, default=None)

    def finish(self, node: Node, rule: Rule, results: Sequence[Signal]) -> tuple[Signal, ...]:
        """Complete what a rule returned: what it does not say stays as it was."""
        main = self.main(node) or Signal(0.0, 1.0)
        word = rule.label(node.name, node.args)
        made = []
        for result, output in zip(results, node.outputs, strict=False):
            if output is None:
                continue
            path = (result.path if result.path != Path() else main.path).then(word)
            path = replace(path, depth=None) if rule.resets else path
            same = len(result.axes) == len(output.shape)
            axes = result.axes if same else main.axes if len(main.axes) == len(output.shape) else ""
            correlation = main.correlations if result.correlation is None else result.correlation
            signal = result.but(shape=output.shape, axes=axes, correlation=correlation, path=path)
            if signal.origin is None:
                chi = 1.0 if rule.resets or signal.law is not None else main.chi
                signal = signal.but(origin=Origin(output, chi, joint=signal.joint), joint=None)
            self.out.signals[id(output)] = signal
            made.append(signal)
        return tuple(made)

    def take_bias(self, node: Node) -> bool:
        """Take a vector added to the output of a weight op as its bias, if that will be zero."""
        a, b = node.args[:2]
        for signal, other in ((a, b), (b, a)):
            if not (isinstance(signal, Value) and isinstance(other, Value) and id(signal) in self.out.weighed):
                continue
            parameter = followed(other)
            if parameter is not None and sum(n > 1 for n in parameter.shape) <= 1 and self.zeroed(parameter.name):
                self.out.biases.setdefault(self.out.weighed[id(signal)], []).append(parameter.name)
                for output in (o for o in node.outputs if o is not None):
                    self.out.signals[id(output)] = self.out.signal(signal)
                return True
        return False

    def weigh(self, node: Node, rule: Rule) -> None:
        """Choose the scales of an op's weights and follow the signal through it."""
        parameters = [v for v in node.inputs if v.kind in ("parameter", "derived")]
        if not parameters:  # a product of two signals
            self.apply(node, rule)
            return
        found = list(self.weighings(node, rule, parameters))
        replaced: dict[int, Signal] = {}
        chosen: list[str] = []
        for weighing, _ in found:
            replaced[id(weighing.use.operand)] = self.asked(weighing, chosen)
        for value in parameters:
            if rule.product and _is_table(value):
                self.note_use(value, node)  # and read as it is, like any tensor
            elif id(value) not in replaced:
                replaced[id(value)] = self.other(node, rule, value, chosen)
        self.out.weights.update(replaced)
        if len(found) == len(chosen) == 1 and found[0][1] and sum(s.second > 0 for s in replaced.values()) == 1:
            # The trial, but for the scale: no need to apply the rule again.
            use = found[0][0].use
            norm = math.sqrt(replaced[id(use.operand)].second * use.fan_in / use.part)
            results = tuple(s.scaled(norm) for s in found[0][1])
        else:
            results = self.forward(node, rule, replaced)
        self.weighed(node, rule, results, found[0][0].x if found else self.main(node), chosen)

    def weighings(self, node: Node, rule: Rule, parameters: list[Value]) -> Any:
        """Describe every weight of an op, and what the op gives with this weight alone, of unit row norm."""
        if rule.recurrent is not None:  # its op shows no pre-activation
            reaching = rule.recurrent(self.out.signal(node.args[0]), node.args, repeats=self.out.repeats(node))
            for operand, x, share in reaching:
                use = use_of(node, rule, 2, operand) if isinstance(operand, Value) else None
                if use is not None:
                    yield Weighing(use, x, x.second, node, share), ()
            return
        for position, operand in operands(node.args, rule):
            if not isinstance(operand, Value) or operand.kind not in ("parameter", "derived"):
                continue
            signals = [v for v in node.inputs if v is not operand and v.kind in ("input", "activation")]
            use = use_of(node, rule, position, operand)
            if use is None or not signals:
                continue
            x = max((self.out.signal(s) for s in signals), key=lambda s: s.path.rank)
            alone = {id(v): _weight(0.0, v.shape) for v in parameters}
            alone[id(operand)] = _weight(use.part / use.fan_in, operand.shape)
            trial = self.forward(node, rule, alone)
            yield Weighing(use, x, trial[0].second if trial else 1.0, node), trial

    def asked(self, weighing: Weighing, chosen: list[str]) -> Signal:
        """Ask the solver, and give the moments that the weight then has; note whose scale was chosen."""
        use = weighing.use
        square = self.solve(weighing)
        if square is None:
            self.out.seen.setdefault(use.parameter.name, []).append(weighing.node.name)
            return self.out.numbers.actual(use.operand, use.connection.columns)
        chosen.append(use.parameter.name)
        return _weight(square * use.part / use.fan_in, use.operand.shape)

    def other(self, node: Node, rule: Rule, value: Value, chosen: list[str]) -> Signal:
        """Return the moments of an operand that is no weight: a bias becomes zero with its weight."""
        parameter = followed(value)
        added_on = rule.bias is not None and rule.bias < len(node.args) and node.args[rule.bias] is value
        if chosen and parameter is not None and (len(value.shape) < 2 or added_on):
            self.out.biases.setdefault(chosen[0], []).append(parameter.name)
            if self.zeroed(parameter.name):
                return _weight(0.0, value.shape)
        if parameter is None and len(value.shape) > 1:
            for owner in ancestors(value):
                if len(owner.shape) > 1 and self.out.numbers.standardised(value, owner):
                    self.out.standardised.add(owner.name)
        self.note_use(value, node)
        position = next((p for p, operand in operands(node.args, rule) if operand is value), None)
        connection = None if position is None or len(value.shape) < 2 else rule.connect(node.args, position, value)
        return self.out.numbers.actual(value, () if connection is None else connection.columns)

    def weighed(self, node: Node, rule: Rule, results: tuple[Signal, ...], x: Signal | None, chosen: list[str]) -> None:
        """Write what a weight op gives."""
        depth, chi = (0, 1.0) if x is None or x.path.rank[0] <= 0 else ((x.path.depth or 0) + 1, x.chi)
        if depth > self.out.longest[0]:
            self.out.longest = depth, chi
        # A recurrence ends with its own activation, which a path must name.
        words = (str(rule.word),) if rule.recurrent is not None else ()
        path = Path(words, depth, 1.0, chosen[0] if chosen else None)
        for signal, output in zip(results, node.outputs, strict=False):
            if output is None:
                continue
            axes = signal.axes if len(signal.axes) == len(output.shape) else ""
            made = signal.but(shape=output.shape, path=path, origin=Origin(output, chi), law=None, axes=axes)
            self.out.signals[id(output)] = made if made.correlation is not None else made.but(correlation=CONSTANT)
            if chosen:
                self.out.weighed[id(output)] = chosen[0]

    def note(self, node: Node) -> None:
        """Note which parameters an op uses other than as weights."""
        for value in node.inputs:
            if value.kind in ("parameter", "derived"):
                self.note_use(value, node)

    def note_use(self, value: Value, node: Node) -> None:
        """Note that an op uses the parameters behind a value."""
        parameter = followed(value)
        for owner in [parameter] if parameter is not None else ancestors(value):
            self.out.seen.setdefault(owner.name, []).append(node.name)

    def look_for_constants(self, node: Node, rule: Rule | None) -> None:
        """Note the weights of an op whose signal is made of constants, as after a detour through numpy."""
        if rule is None or not rule.weights:
            return
        weights = [p for v in node.inputs if len(v.shape) > 1 and (p := followed(v)) is not None]
        others = [v for v in node.inputs if v.dtype.is_floating_point and followed(v) is None]
        if weights and any(_constant(v) for v in others):
            self.out.cut_off.update(p.name for p in weights)


def _weight(second: float, shape: tuple[int, ...]) -> Signal:
    return Signal(0.0, second, shape, axes="f" * len(shape), correlation=_UNIT)


def _is_table(value: Value) -> bool:
    """Return True for a tensor with positions that was computed from parameters alone, as learned queries are."""
    return value.kind == "derived" and len(value.shape) > 2 and followed(value) is None


def _constant(value: Value) -> bool:
    """Return True if a value goes back to a constant of more than one dimension."""
    pending = [value]
    while pending:
        v = pending.pop()
        if v.node is None:
            if v.kind == "constant" and len(v.shape) > 1:
                return True
        else:
            pending += v.node.inputs
    return False
