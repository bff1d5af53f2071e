"""How alike two examples are: E x_i x_j of one unit in two examples of a batch.

Batch norms subtract what all examples share and divide by what is left, so gradients grow by more than the total
variance says: by π / (π - 1) for every BatchNorm after a ReLU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unitvar.graph import Graph, Node, Value
from unitvar.propagate.grid import Field
from unitvar.propagate.state import State
from unitvar.propagate.walk import Propagation

__all__ = ["JOINED", "Alike"]

JOINED = {f"aten.{n}" for n in ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack")}
_TERMS = 16  # of the Hermite series; what lies beyond counts with the next power
_AVERAGES = ("mean", "avg_pool", "adaptive_avg_pool")
_SUMS = ("aten.add", "aten.sub")


class Alike:
    """Follow it through a graph whose moments are known.

    Args:
        graph: a run.
        found: its moments.
    """

    def __init__(self, graph: Graph, found: Propagation) -> None:
        self.states = found.states
        self.known: dict[int, float] = {}
        self.homes: dict[int, Value] = {}
        for value in (*graph.inputs, *(v for n in graph.nodes for v in (*n.inputs, *n.outputs) if v is not None)):
            state = self.states.get(id(value))
            if state is not None:
                self.homes.setdefault(id(state), value)
        for node in graph.nodes:
            for output in node.outputs:
                if output is not None and output.kind == "activation" and id(output) in self.states:
                    self.known[id(output)] = self._after(node, output)

    def __getitem__(self, value: Value) -> float:
        """Give E x_i x_j, between E² x and E x²."""
        found = self.known.get(id(value))
        if found is None:
            found = self.known[id(value)] = self._given(value)
        return found

    def source(self, state: State) -> Value | None:
        """Find the value whose Gaussian a state is a function of; None if that is itself."""
        origin = state._source
        return None if origin is None else self.homes.get(id(origin))

    def correlation(self, value: Value) -> float:
        """Give the correlation of two examples."""
        m = self.states[id(value)].moments
        return min(1.0, max(0.0, (self[value] - m.mean**2) / m.var)) if m.var > 0 else 0.0

    def _given(self, value: Value) -> float:
        state = self.states.get(id(value))
        if state is None:
            return 0.0
        m = state.moments
        if value.kind != "input":
            return m.second  # parameters and constants are the same for all examples
        x = value.tensor
        if x is None or x.is_meta or not x.is_floating_point() or x.dim() < 2 or x.shape[0] < 2:
            return m.mean**2
        x = x.detach().cpu().double().flatten(1)
        n = x.shape[0]
        pair = float((x.sum(0).square() - x.square().sum(0)).mean()) / (n * (n - 1))
        # The input may be taken as standard, whatever the example's scale: what counts is the correlation.
        mean, second = float(x.mean()), float(x.square().mean())
        rho = (pair - mean**2) / (second - mean**2) if second > mean**2 else 0.0
        return m.mean**2 + min(1.0, max(0.0, rho)) * m.var

    def _after(self, node: Node, output: Value) -> float:
        state = self.states[id(output)]
        m = state.moments
        source = self.source(state)
        if source is not None:
            return _clamped(_replayed(state.field, self.correlation(source)), m.mean, m.second)
        signals = [v for v in node.inputs if v.kind in ("input", "activation") and id(v) in self.states]
        if not signals:
            return m.mean**2
        name = node.name
        if "batch_norm" in name or "embedding" in name:
            return m.mean**2
        operands = [v for v in node.inputs if id(v) in self.states]
        if name in JOINED:
            sizes = [math.prod(v.shape) for v in operands]
            return sum(n * self[v] for n, v in zip(sizes, operands, strict=True)) / max(1, sum(sizes))
        if len(operands) == 2 and name in (*_SUMS, "aten.mul"):
            a, b = operands
            first = self.states[id(a)].moments.mean
            pair = self[a] * self[b] if name == "aten.mul" else self[a] + self[b] + 2 * first * (m.mean - first)
            return _clamped(pair, m.mean, m.second)
        x = signals[0]
        before = self.states[id(x)].moments
        if name.removeprefix("aten.").rstrip("0123456789d_").endswith(_AVERAGES):
            return _clamped(self[x], m.mean, m.second)
        bias = self._bias(node)
        share = self[x] / before.second if before.second > 0 else 0.0
        if bias is not None:  # a weight op: what reaches it is carried in proportion, a bias is shared
            return _clamped((m.second - bias) * share / _phases(node) + bias, m.mean, m.second)
        return m.mean**2 + self.correlation(x) * m.var

    def _bias(self, node: Node) -> float | None:
        """Give the second moment of a weight op's bias; None if it is no weight op."""
        weights = [v for v in node.inputs if v.kind in ("parameter", "derived")]
        if not any(len(v.shape) > 1 for v in weights):
            return None
        biases = [v.tensor for v in weights if len(v.shape) == 1 and v.tensor is not None and not v.tensor.is_meta]
        return sum(float(b.detach().cpu().abs().double().square().mean()) for b in biases)


def _phases(node: Node) -> int:
    """Count the sets of taps that neighbours see: a transposed convolution with a stride gives each its own weights."""
    if "conv_transpose" not in node.name:
        return 1
    stride, n = node.args[3], len(node.args[1].shape) - 2
    return int(math.prod(stride if len(stride) == n else tuple(stride) * n))


def _clamped(pair: float, mean: float, second: float) -> float:
    return min(second, max(mean**2, pair))


def _replayed(field: Field, rho: float) -> float:
    """Return E v_1 v_2 for two examples whose Gaussians have correlation rho: Σ a_k² rho^k, a_k Hermite's."""
    assert field.large is not None
    main = field._main().detach()
    weights, nodes = field.large.weights, field.large.nodes.detach()[: len(field.large.weights)]
    mean = float(nodes @ weights)
    t = (nodes - mean) / float(((nodes - mean).square() @ weights).sqrt())
    # Masks are drawn for each example, so that they average out; scales of channels are the same for all of them.
    own = [i for i, a in enumerate(field.noises) if not (a.shared and a.keep == 1.0)]
    for i in reversed(own):
        main = torch.tensordot(main, field.noises[i].weights, dims=([i], [0]))
    probability = torch.ones((), dtype=torch.float64, device="cpu")
    for i, axis in enumerate(field.noises):
        if i not in own:
            probability = (probability[..., None] * axis.weights).flatten()
    rows = main.reshape(-1, len(weights))
    return float(sum(p * _series(row, t, weights, rho) for p, row in zip(probability.reshape(-1), rows, strict=True)))


def _series(values: Tensor, t: Tensor, weights: Tensor, rho: float) -> float:
    before, h = torch.zeros_like(t), torch.ones_like(t)
    total, left = 0.0, float(values.square() @ weights)
    for k in range(_TERMS):
        square = float((values * h) @ weights) ** 2
        total, left = total + square * rho**k, left - square
        before, h = h, (t * h - k**0.5 * before) / (k + 1) ** 0.5
    return total + max(0.0, left) * rho**_TERMS
