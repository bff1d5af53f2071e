"""Weight ops: the solver is asked for the scale of each weight, then the op's rule is applied."""

from __future__ import annotations

import math

from unitvar.graph import Node, Value
from unitvar.propagate.apply import apply, factor, forward
from unitvar.propagate.candidates import Candidate, candidates, recurrent
from unitvar.propagate.state import State
from unitvar.propagate.uses import Weighing, followed
from unitvar.propagate.walk import Walk
from unitvar.rules import Moments, Rule

__all__ = ["weigh"]


def weigh(walk: Walk, node: Node, rule: Rule) -> None:
    """Choose the scales of an op's weights and follow the signal through it."""
    parameters = [v for v in node.inputs if v.kind in ("parameter", "derived")]
    if not parameters:  # a product of two signals
        apply(walk, node, rule)
        return
    found = list(candidates(node, rule, walk.state))
    replaced: dict[int, Moments] = {}
    chosen: list[str] = []
    trial: tuple[Moments, ...] = ()
    for candidate in found:
        weighing, trial = _tried(walk, node, rule, candidate, parameters)
        replaced[id(candidate.use.operand)] = _asked(walk, weighing, chosen)
    for value in parameters:
        if id(value) not in replaced:
            replaced[id(value)] = _other(walk, node, value, chosen)
    if len(found) == len(chosen) == 1 and trial and sum(m.second > 0 for m in replaced.values()) == 1:
        # The trial, but for the scale: no need to apply the rule again.
        use = found[0].use
        norm = math.sqrt(replaced[id(use.operand)].second * use.fan_in)
        results = tuple(m.scaled(norm) for m in trial)
    else:
        results = forward(walk, node, rule, replaced)
    _finish(walk, node, rule, results, found[0].x if found else walk.signal(node), chosen)


def _asked(walk: Walk, weighing: Weighing, chosen: list[str]) -> Moments:
    """Ask the solver, and give the moments that the weight then has; note whose scale was chosen."""
    use = weighing.use
    square = walk.solve(weighing)
    if square is None:
        walk.out.seen.setdefault(use.parameter.name, []).append(weighing.node.name)
        return walk.actual(use.operand)
    chosen.append(use.parameter.name)
    return Moments(0.0, square * use.part / use.fan_in, use.operand.shape)


def _tried(
    walk: Walk, node: Node, rule: Rule, candidate: Candidate, parameters: list[Value]
) -> tuple[Weighing, tuple[Moments, ...]]:
    """Try the op with this weight alone, of unit row norm; return what the solver needs, and what came out."""
    use = candidate.use
    if candidate.second is not None:  # a recurrence: its op shows no pre-activation
        second, back = candidate.second, use.fan_out / use.fan_in
        return Weighing(use, candidate.x, second, back, node, candidate.share), ()
    alone = {id(v): Moments(0.0, 0.0, v.shape) for v in parameters}
    alone[id(use.operand)] = Moments(0.0, 1.0 / use.fan_in, use.operand.shape)
    trial = forward(walk, node, rule, alone)
    backward = factor(walk, node, rule, alone) if walk.backward else None
    return Weighing(use, candidate.x, trial[0].second, backward, node, candidate.share), trial


def _other(walk: Walk, node: Node, value: Value, chosen: list[str]) -> Moments:
    """Give the moments of an operand that is no weight: a bias becomes zero with its weight."""
    parameter = followed(value)
    if chosen and parameter is not None and (len(value.shape) < 2 or node.name == "aten.baddbmm"):
        walk.out.biases.setdefault(chosen[0], []).append(parameter.name)
        if walk.zeroed(parameter.name):
            return Moments(0.0, 0.0, value.shape)
    walk.note_use(value, node)
    return walk.actual(value)


def _finish(
    walk: Walk, node: Node, rule: Rule, results: tuple[Moments, ...], x: State | None, chosen: list[str]
) -> None:
    depth, chi = (0, 1.0) if x is None or x.rank[0] <= 0 else ((x.depth or 0) + 1, x.chi)
    if depth > walk.out.longest[0]:
        walk.out.longest = depth, chi
    # A recurrence ends with its own activation, which a path must name.
    words = (str(rule.word),) if recurrent(node) else ()
    last = chosen[0] if chosen else None
    made = []
    for moments, output in zip(results, node.outputs, strict=False):
        if output is not None:
            made.append(State(moments.like(shape=output.shape), words=words, chi=chi, depth=depth, last=last))
            if last is not None:
                walk.weighed[id(output)] = last
    walk.put(node, made)
