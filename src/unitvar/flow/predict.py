"""What theory predicts for the weights as they are: forward by :func:`propagate`, backward by :func:`gradients`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from unitvar.flow.shares import Examples
from unitvar.graph import Graph, Node, Value, trace
from unitvar.moments import Propagation, Rule, known, propagate
from unitvar.moments.forward import rule_of
from unitvar.moments.inputs import input_signals, renamed_inputs
from unitvar.moments.known import ancestors, followed
from unitvar.moments.reverse import gradients
from unitvar.moments.shares import Shares, predicted_shares
from unitvar.moments.shift import is_noisy, variance_shifts
from unitvar.moments.signal import Signal
from unitvar.moments.uses import operands, use_of

__all__ = ["Prediction", "Predictions", "predict"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Mean and mean square of a pre-activation, the mean square of its gradient (None: unknown), and its shares."""

    mean: float
    second: float
    gradient: float | None
    shares: Shares
    examples: Examples | None = None
    """Where the pre-activation has its examples; None: unknown."""


Predictions = tuple[dict[tuple[str, int], Prediction], dict[tuple[str, int], float]]


def predict(model: nn.Module, batch: Any, outputs: Sequence[float]) -> Predictions:
    """Predict what every use of a weight gives and gets.

    Args:
        model: any module.
        batch: what it is run on; its own mean and variance are taken.
        outputs: E g² of the loss's gradient at each floating-point output.

    Returns:
        Parameter name and number of the use → prediction; batch norm and number of the use → its variance shift.
    """
    graph = trace(model, batch, known=lambda op: known(op, {}))
    try:
        return _predicted(graph, outputs)
    finally:
        graph.release()


def _predicted(graph: Graph, outputs: Sequence[float]) -> Predictions:
    inputs = input_signals(graph, "measured")
    found = propagate(graph, inputs, lambda _: None)
    for others in renamed_inputs(graph, "measured") if found.mixed else ():  # perhaps another dimension counts examples
        other = propagate(graph, others, lambda _: None, numbers=found.numbers)
        found, inputs = (other, others) if other.mixed < found.mixed else (found, inputs)
    shifts = {}
    if is_noisy(graph, {}):
        quiet = propagate(graph, inputs, lambda _: None, numbers=found.numbers, quiet=True)
        shifts = variance_shifts(graph, found, quiet, {})
    floats = [v for v in graph.outputs if v.dtype.is_floating_point]
    seeds = dict(zip(map(id, floats), outputs, strict=False)) if len(floats) == len(outputs) else {}
    back = gradients(graph, found, [seeds.get(id(v), 0.0) for v in graph.outputs]) if seeds else {}
    predictions: dict[tuple[str, int], Prediction] = {}
    uses: Counter[str] = Counter()
    for node, rule in _weight_ops(graph):
        for name, made in _uses(node, rule, found, back):
            uses[name] += 1
            predictions[name, uses[name]] = made
    return predictions, shifts


def _weight_ops(graph: Graph) -> Iterator[tuple[Node, Rule]]:
    for node in graph.nodes:
        rule = rule_of(node, {})
        if rule is not None and rule.weights and any(o is not None and o.kind == "activation" for o in node.outputs):
            yield node, rule


def _uses(node: Node, rule: Rule, found: Propagation, back: dict[int, Signal]) -> Iterator[tuple[str, Prediction]]:
    if rule.recurrent is not None:
        yield from _recurrent(node, rule, found)
        return
    output = node.outputs[0]
    for _, operand in operands(node.args, rule):
        if not isinstance(operand, Value) or operand.kind not in ("parameter", "derived") or len(operand.shape) < 2:
            continue
        if output is None or not any(v.kind in ("input", "activation") for v in node.inputs):
            continue
        signal, g = found.signal(output), back.get(id(output))
        gradient = None if not back else 0.0 if g is None else float(g.second)
        yield (
            _owner(operand),
            Prediction(
                float(signal.mean), float(signal.second), gradient, predicted_shares([signal]), _examples(signal)
            ),
        )
        return


def _examples(signal: Signal) -> Examples | None:
    for dimension, group in enumerate(signal.inside):
        atoms = [(kind, n) for kind, n in group if n > 1]
        if any(kind == "b" for kind, _ in atoms):
            kind, number = atoms[0]
            return Examples(dimension, number if kind == "b" else 0)
    return None


def _recurrent(node: Node, rule: Rule, found: Propagation) -> Iterator[tuple[str, Prediction]]:
    """Return what input and state of a recurrence add to its gates; not their gradients, which go through time."""
    assert rule.recurrent is not None
    if len(rule.weights) > 1:  # of a cell, only the state it gives is known, not what its weights give
        return
    biases = {v.name: v for v in node.inputs if v.kind == "parameter" and len(v.shape) == 1}
    args = list(node.args)
    # Before the list of weights stands what it starts from.
    at = max(i for i, a in enumerate(args) if isinstance(a, (tuple, list))) - 1
    states = args[at] if isinstance(args[at], (tuple, list)) else (args[at],)
    args[at] = tuple(found.signal(state) for state in states)
    for operand, x, _ in rule.recurrent(found.signal(node.args[0]), args, found.numbers.actual):
        use = use_of(node, rule, 2, operand)
        if use is None:
            continue
        second = float(x.second) * use.fan_in * found.numbers.actual(use.operand).second
        bias = biases.get(use.parameter.name.replace("weight", "bias"))
        more = found.numbers.actual(bias).second if bias is not None else 0.0
        yield use.parameter.name, Prediction(0.0, second + more, None, Shares())


def _owner(operand: Value) -> str:
    """Name the parameter that an operand is, or the largest of those it was computed from."""
    parameter = followed(operand)
    if parameter is not None:
        return parameter.name
    found = max(ancestors(operand), key=lambda p: 0 if p.tensor is None else p.tensor.numel(), default=None)
    return "" if found is None else found.name
