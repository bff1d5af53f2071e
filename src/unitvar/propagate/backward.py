"""Gradients through a graph whose moments are known, in reverse: E g² of every value.

What is followed is the energy of a value's gradient, the sum of E g² over its elements: moving elements about keeps it,
broadcasting adds it up, and where a value is used twice the energies add, as gradients through different weights are
independent. A value inside a region of pointwise ops hands E (dv/dz)² of its energy to the Gaussian z of the region.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unitvar.graph import Graph, Node, Value
from unitvar.graph.record import MERGE
from unitvar.propagate.alike import JOINED, Alike
from unitvar.propagate.given import actual, arguments, realised
from unitvar.propagate.grid import Field
from unitvar.propagate.replay import replayed
from unitvar.propagate.sample import MOST
from unitvar.propagate.special import SPECIAL
from unitvar.propagate.state import State
from unitvar.propagate.walk import Propagation
from unitvar.rules import Moments, Rule
from unitvar.rules.noise import DROPOUTS
from unitvar.rules.registry import find
from unitvar.rules.shapes import PICK, SAME

__all__ = ["gradients"]

_DRAWS = 4096
# Their factors depend on more than moments: run on random numbers instead.
_DRAWN = {"aten.scaled_dot_product_attention"}
_MAXIMA = ("aten.max_pool", "aten.adaptive_max_pool", "aten.amax", "aten.max")
_BATCH_NORMS = {f"aten.{n}" for n in ("batch_norm", "native_batch_norm", "_native_batch_norm_legit")}


def gradients(
    graph: Graph, found: Propagation, outputs: Sequence[float], *, overrides: Mapping[str, Rule] | None = None
) -> dict[int, float]:
    """Follow the gradients from the outputs to the inputs.

    Args:
        graph: a run.
        found: its moments, for the weights as they are: ``propagate(..., solve=lambda _: None)``.
        outputs: E g² of the loss's gradient at each output of the graph.
        overrides: rules of this call.

    Returns:
        ``id(value)`` → E g² of an element, for every value that a gradient reaches.

    Example:
        >>> from unitvar.propagate import propagate
        >>> from unitvar.graph import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Dropout(0.5), torch.nn.ReLU())
        >>> graph = trace(net, torch.zeros(1, 4))
        >>> found = propagate(graph, [Moments(0.0, 1.0)], lambda weighing: None)
        >>> round(gradients(graph, found, [1.0])[id(graph.nodes[0].outputs[0])], 6)  # E relu'² / keep
        1.0
    """
    with torch.inference_mode(False), torch.enable_grad():
        walker = _Reverse(graph, found, overrides or {})
        for value, second in zip(graph.outputs, outputs, strict=True):
            walker.add(value, second * _count(value))
        for node in reversed(graph.nodes):
            walker.step(node)
        values = {id(v): v for n in graph.nodes for v in (*n.inputs, *n.outputs) if v is not None}
        return {key: energy / _count(values[key]) for key, energy in walker.energy.items() if key in values}


def _count(value: Value) -> int:
    return max(1, math.prod(value.shape))


def _signal(value: Value) -> bool:
    return value.kind in ("input", "activation") and (value.dtype.is_floating_point or value.dtype.is_complex)


class _Reverse:
    def __init__(self, graph: Graph, found: Propagation, overrides: Mapping[str, Rule]) -> None:
        self.states, self.overrides = found.states, overrides
        self.alike = Alike(graph, found)
        self.energy: dict[int, float] = defaultdict(float)
        self.actual: dict[int, Moments] = {}

    def add(self, value: Any, energy: float) -> None:
        if isinstance(value, Value) and energy > 0:
            self.energy[id(value)] += energy

    def step(self, node: Node) -> None:
        reached = [o for o in node.outputs if o is not None and self.energy.get(id(o), 0.0) > 0]
        left = []
        for output in reached:
            state = self.states.get(id(output))
            source = None if state is None else self.alike.source(state)
            if state is None or source is None:
                left.append(output)
            else:
                self.add(source, state.field.slope() * self.energy[id(output)])
        if left and any(_signal(v) for v in node.inputs):
            self.through(node, left)

    def through(self, node: Node, outputs: list[Value]) -> None:
        """Hand energy from an op's outputs to its inputs."""
        energy = sum(self.energy[id(o)] for o in outputs)
        name, args = node.name, node.args
        rule = find(name, getattr(node.op.func, "_overloadname", ""), self.overrides)
        if name in SPECIAL and rule is not None and rule.backward is not None:  # the user's
            self._ruled(node, rule, outputs[0], energy)
        elif name in SAME or name in PICK:
            self.add(next((v for v in node.inputs if _signal(v)), None), energy)
        elif name == "aten.copy":
            self.add(args[1], energy)
        elif name == MERGE:
            for value, share in zip((args[0], *args[1]), (1 - sum(args[2]), *args[2]), strict=True):
                self.add(value, share * energy)
        elif name in DROPOUTS:
            dropped = float(args[1]) if len(args) < 3 or args[2] else 0.0
            self.add(args[0], energy / (1 - dropped) if dropped < 1 else 0.0)
        elif name in JOINED:
            for value in args[0]:
                self.add(value, energy * _count(value) / _count(outputs[0]))
        elif name.startswith(_MAXIMA) and len(list(node.inputs)) == 1:
            self._largest(node, outputs[0], energy)
        elif name in _BATCH_NORMS and self._by_batch(node):
            for part in self._parts(args[0]):  # channels that were joined have each their own variance
                self.add(part, energy * _count(part) / _count(args[0]) * self._batch_slope(node, part))
        elif rule is not None and rule.backward is not None and name not in _DRAWN:
            self._ruled(node, rule, outputs[0], energy)
        elif rule is None and node.op.pointwise:
            self._pointwise(node, energy)
        else:
            self._drawn(node, outputs)

    def _ruled(self, node: Node, rule: Rule, output: Value, energy: float) -> None:
        assert rule.backward is not None
        factors = rule.backward(*(self.moments(a, {}) for a in node.args))
        inputs = list(node.inputs)
        if not isinstance(factors, tuple):  # one number is that of the first signal
            pairs = [(next(v for v in inputs if _signal(v)), factors)]
        else:
            pairs = list(zip(inputs, factors, strict=False))
        for value, factor in pairs:
            if _signal(value):
                self.add(value, energy * float(factor) * _count(value) / _count(output))

    def _largest(self, node: Node, output: Value, energy: float) -> None:
        """Hand all energy to the largest element of each window, whose slope is no average one: ReLU's is on."""
        x = node.args[0]
        state = self.states[id(x)]
        source = self.alike.source(state)
        if source is None:
            self.add(x, energy)
            return
        window = node.args[1] if node.name.startswith("aten.max_pool") else None
        dims = len(x.shape) - 2
        sizes = () if window is None else (window,) * dims if isinstance(window, int) else tuple(window)
        count = math.prod(sizes * dims if len(sizes) == 1 else sizes) if sizes else _count(x) / _count(output)
        m = self.states[id(source)].moments
        rho = max(0.0, (m.pair - m.mean**2) / m.var) if m.var > 0 else 0.0
        # Positions that are alike compete less.
        self.add(source, energy * _winning(state.field, 1 + (count - 1) * (1 - min(1.0, rho))))

    def _by_batch(self, node: Node) -> bool:
        """Say whether a batch norm uses its batch's statistics."""
        return bool(node.args[5]) or node.args[3] is None

    def _parts(self, x: Value) -> Iterator[Value]:
        """Give the tensors whose channels a tensor was joined from, or itself."""
        node = x.node
        if node is None or node.name not in ("aten.cat", "aten.concat") or int(node.args[1]) % len(x.shape) != 1:
            yield x
            return
        for part in node.args[0]:
            yield from self._parts(part)

    def _batch_slope(self, node: Node, x: Value) -> float:
        """Return γ² / var, the variance over examples and positions of one channel: what they share is subtracted."""
        eps = float(node.args[7])
        weight = self.moments(node.args[1], {}) if isinstance(node.args[1], Value) else None
        within = max(0.0, self.states[id(x)].moments.second - self.alike[x])
        return (weight.second if weight is not None else 1.0) / (within + eps)

    def _pointwise(self, node: Node, energy: float) -> None:
        """Treat operands that go back to different Gaussians."""
        name, args = node.name, node.args
        a, b = (*args, None, None)[:2]
        if name in ("aten.add", "aten.sub", "aten.subtract"):
            alpha = args[2] if len(args) > 2 and isinstance(args[2], (int, float)) else 1
            self.add(a, energy)
            self.add(b, energy * alpha**2)
        elif name in ("aten.mul", "aten.multiply"):
            for one, other in ((a, b), (b, a)):
                second = self.moments(other, {}).second if isinstance(other, Value) else abs(other) ** 2
                self.add(one, energy * second)
        else:
            self._sloped(node, energy)

    def _sloped(self, node: Node, energy: float) -> None:
        """Estimate E (dv/dz)² for the Gaussian z of each operand from draws of all of them."""
        generator = np.random.default_rng(0)
        signals = {id(v): v for v in node.inputs if _signal(v)}
        drawn = {id(v): _draws(self.states[id(v)], generator) for v in node.inputs}
        leaves = {key: values.requires_grad_(key in signals) for key, (values, _) in drawn.items()}
        try:
            out = replayed(node, tuple(leaves[id(a)] if isinstance(a, Value) else a for a in node.args))
            slopes = torch.autograd.grad(out.double().sum(), [leaves[key] for key in signals], allow_unused=True)
        except (RuntimeError, TypeError, NotImplementedError):  # an op that has no gradient
            return
        for (key, value), slope in zip(signals.items(), slopes, strict=True):
            if slope is not None:
                source = self.alike.source(self.states[key])
                self.add(value if source is None else source, energy * float((slope * drawn[key][1]).square().mean()))

    def _drawn(self, node: Node, outputs: list[Value]) -> None:
        """Run an op on random numbers with the right moments, and autograd through it."""
        signals = [v for v in node.inputs if _signal(v)]
        try:
            found = self._autograd(node, outputs)
        except Exception:  # whatever a foreign op raises on inputs that it did not expect
            self.add(signals[0], sum(self.energy[id(o)] for o in outputs))
            return
        for value, gradient in zip(signals, found, strict=True):
            self.add(value, float(gradient.abs().double().square().sum()) if gradient is not None else 0.0)

    def _autograd(self, node: Node, outputs: list[Value]) -> tuple[Tensor | None, ...]:
        if any(_count(v) > MOST for v in node.inputs):
            raise ValueError("too large to be run")
        normal = partial(torch.randn, generator=torch.Generator().manual_seed(0), device="cpu")
        leaves: list[Tensor] = []

        def real(arg: Any) -> Any:
            if isinstance(arg, tuple):
                return [real(a) for a in arg]
            if not isinstance(arg, Value):
                return arg
            known = None if _signal(arg) else realised(arg)  # masks and weights as they are
            if known is not None and not known.is_meta:
                return known.detach().clone()
            m = self.moments(arg, {})
            common = max(0.0, m.pair - m.mean**2) if node.name in _DRAWN else 0.0  # of all tokens of an example
            numbers = normal(arg.shape) * max(0.0, m.var - common) ** 0.5 + m.mean
            if common:
                shape = (*arg.shape[:-2], 1, arg.shape[-1])
                numbers += normal(shape) * common**0.5
            numbers = numbers.to(arg.dtype)
            if not _signal(arg):
                return numbers
            leaves.append(numbers.requires_grad_())
            return numbers.clone()

        positional, keywords = arguments(node, [real(a) for a in node.args])
        out = node.op.func(*positional, **keywords)
        outs = [out] if isinstance(out, Tensor) else list(out)
        chosen = [(o, v) for o, v in zip(outs, node.outputs, strict=False) if v is not None and v in outputs]
        seeds = [normal(o.shape).mul_((self.energy[id(v)] / _count(v)) ** 0.5).to(o.dtype) for o, v in chosen]
        return torch.autograd.grad([o for o, _ in chosen], leaves, seeds, allow_unused=True)

    def moments(self, arg: Any, replaced: Mapping[int, Moments]) -> Any:
        """Describe an argument as rules want it: weights as they are."""
        if isinstance(arg, tuple):
            return tuple(self.moments(a, replaced) for a in arg)
        if not isinstance(arg, Value):
            return arg
        state = self.states.get(id(arg))
        if state is not None:
            return state.moments
        if id(arg) not in self.actual:
            self.actual[id(arg)] = actual(arg)
        return self.actual[id(arg)]


def _winning(field: Field, count: float) -> float:
    """Return E (dv/dz)² of the largest of several independent v, which is v with probability d F(v)^count."""
    main = field._main().detach()
    order, probability = _sorted(field, main)
    squares = field.derivative().square().expand(main.shape).reshape(-1)[order]
    # Equal values have equal chances: a pool picks any of them.
    _, groups = torch.unique_consecutive(main.reshape(-1)[order], return_inverse=True)
    empty = torch.zeros(int(groups[-1]) + 1, dtype=torch.float64, device="cpu")
    share = empty.index_add(0, groups, probability)
    slopes = empty.index_add(0, groups, probability * squares) / share.clamp(min=1e-300)
    chance = torch.diff(share.cumsum(0).clamp(max=1.0) ** count, prepend=share.new_zeros(1))
    return float(chance @ slopes)


def _draws(state: State, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw from the law of a value, evenly over its quantiles, with dv/dz for the Gaussian z it is a function of."""
    field = state.field
    main = field._main().detach()
    order, probability = _sorted(field, main)
    levels = torch.from_numpy(generator.permutation((np.arange(_DRAWS) + 0.5) / _DRAWS))
    chosen = order[torch.searchsorted(probability.cumsum(0), levels).clamp(max=len(order) - 1)]
    inside = field.large is not None and state._source is not None
    values = main.reshape(-1)[chosen]
    return values, field.derivative().expand(main.shape).reshape(-1)[chosen] if inside else torch.ones_like(values)


def _sorted(field: Field, main: Tensor) -> tuple[Tensor, Tensor]:
    """Return the order of a field's values, and their probabilities in that order."""
    weights = field.large.weights if field.large is not None else torch.ones(1, dtype=torch.float64, device="cpu")
    for axis in reversed(field.noises):
        weights = axis.weights.reshape(-1, *(1,) * weights.dim()) * weights
    order = main.reshape(-1).argsort(stable=True)
    return order, weights.expand(main.shape).reshape(-1)[order]
