"""What theory predicts for the weights as they are: forward by :func:`propagate`, backward by :func:`gradients`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from unitvar.graph import Graph, Node, Value, trace
from unitvar.initialize.options import Options
from unitvar.propagate import Propagation, gradients, known, propagate
from unitvar.propagate.candidates import LAYERS, candidates
from unitvar.propagate.given import actual, ancestors
from unitvar.propagate.uses import followed
from unitvar.rules import Rule
from unitvar.rules.registry import find

__all__ = ["Prediction", "predict"]

_AS_GIVEN = Options("forward", "sphere", None, "measured", None, False)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Mean and mean square of a pre-activation, and the mean square of its gradient; None where that is unknown."""

    mean: float
    second: float
    gradient: float | None


def predict(model: nn.Module, batch: Any, outputs: Sequence[float]) -> dict[tuple[str, int], Prediction]:
    """Predict what every use of a weight gives and gets.

    Args:
        model: any module.
        batch: what it is run on; its own mean and variance are taken.
        outputs: E g² of the loss's gradient at each floating-point output.

    Returns:
        Parameter name and number of the use → prediction.
    """
    graph = trace(model, batch, known=lambda op: known(op, {}))
    try:
        return _predicted(graph, outputs)
    finally:
        graph.release()


def _predicted(graph: Graph, outputs: Sequence[float]) -> dict[tuple[str, int], Prediction]:
    found = propagate(graph, _AS_GIVEN.input_moments(graph), lambda _: None)
    floats = [v for v in graph.outputs if v.dtype.is_floating_point]
    seeds = dict(zip(map(id, floats), outputs, strict=False)) if len(floats) == len(outputs) else {}
    back = gradients(graph, found, [seeds.get(id(v), 0.0) for v in graph.outputs]) if seeds else {}
    predictions: dict[tuple[str, int], Prediction] = {}
    uses: Counter[str] = Counter()
    for node, rule in _weight_ops(graph):
        for name, made in _uses(node, rule, found, back):
            uses[name] += 1
            predictions[name, uses[name]] = made
    return predictions


def _weight_ops(graph: Graph) -> Iterator[tuple[Node, Rule]]:
    for node in graph.nodes:
        rule = find(node.name, node.op.overload, {})
        # Of a cell, only the state it gives is known, not what its weights give.
        if (
            rule is not None
            and rule.weights
            and not node.name.endswith("_cell")
            and any(o is not None and o.kind == "activation" for o in node.outputs)
        ):
            yield node, rule


def _uses(node: Node, rule: Rule, found: Propagation, back: dict[int, float]) -> Iterator[tuple[str, Prediction]]:
    if node.name in LAYERS:
        yield from _recurrent(node, rule, found)
        return
    output = node.outputs[0]
    for position in rule.weights:
        arg = node.args[position] if position < len(node.args) else None
        for operand in arg if isinstance(arg, tuple) else (arg,):
            if not isinstance(operand, Value) or operand.kind not in ("parameter", "derived") or len(operand.shape) < 2:
                continue
            if output is None or not any(v.kind in ("input", "activation") for v in node.inputs):
                continue
            m = found.states[id(output)].moments
            gradient = float(back.get(id(output), 0.0)) if back else None
            yield _owner(operand), Prediction(float(m.mean), float(m.second), gradient)
            return


def _recurrent(node: Node, rule: Rule, found: Propagation) -> Iterator[tuple[str, Prediction]]:
    """Give what input and state of a recurrence contribute to its gates; not their gradients, which go through time."""
    biases = {v.name: v for v in node.inputs if v.kind == "parameter" and len(v.shape) == 1}
    for candidate in candidates(node, rule, lambda value: found.states[id(value)]):
        use = candidate.use
        second = float(candidate.x.moments.second) * use.fan_in * actual(use.operand).second
        bias = biases.get(use.parameter.name.replace("weight", "bias"))
        yield use.parameter.name, Prediction(0.0, second + (actual(bias).second if bias is not None else 0.0), None)


def _owner(operand: Value) -> str:
    """Name the parameter that an operand is, or the largest of those it was computed from."""
    parameter = followed(operand)
    if parameter is not None:
        return parameter.name
    sizes = dict(_sizes(operand))
    return max(ancestors(operand), key=lambda name: sizes.get(name, 0), default="")


def _sizes(value: Value) -> Iterator[tuple[str, int]]:
    if value.kind == "parameter" and value.tensor is not None:
        yield value.name, value.tensor.numel()
    elif value.node is not None:
        for v in value.node.inputs:
            yield from _sizes(v)
