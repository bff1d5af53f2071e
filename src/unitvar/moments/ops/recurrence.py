"""A small recurrence, run: states are correlated with their past as no closed form follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["FLAVOURS", "LONGEST", "Layer", "Recurrence", "Stack", "simulated", "solved"]

FLAVOURS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_SECOND = {"lstm": 0.25, "gru": 0.25, "rnn_tanh": 1.0, "rnn_relu": 1.0}  # E z² of a gate: docs/when-does-it-help.md
_GATED = ("lstm", "gru")
LONGEST = 64  # steps after which a state has forgotten how it began
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_WIDTH, _BATCH, _ROUNDS = 128, 32, 5


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Moments of a state h, and of an LSTM's cell c.

    Attributes:
        mean: E h over all steps.
        second: E h² over all steps.
        pair: E h_s h_t of two steps.
        states: E h² at each step.
        cells: E c² at each step; of h, where there is no cell.
        from_input: E z² that the input gives to a gate.
        shared: the correlations of h with that of other runs, as many as the stack asks for.
    """

    mean: float
    second: float
    pair: float
    states: tuple[float, ...]
    cells: tuple[float, ...]
    from_input: float
    shared: tuple[float, ...] = ()

    def next(self, second: float) -> tuple[float, float]:
        """Return E h² and E c² one step after a state of this second moment."""
        at = min(range(len(self.states)), key=lambda t: abs((0.0, *self.states)[t] - second))
        return self.states[at], self.cells[at]


class Layer(NamedTuple):
    """What makes the gates of a layer: squared row norms of its weights for input and state, and E b² of its bias.

    Of the first layer, ``input`` is the variance of what the input gives to a gate.
    """

    input: float
    state: float
    bias: float = 0.0


class Stack(NamedTuple):
    """Layers of a kind, one on the other.

    Attributes:
        flavour: one of FLAVOURS.
        steps: how many.
        shared: the correlation of what the input gives to a gate at two steps.
        directions: 1 or 2.
        keep: the keep rate between layers.
        below: E h² of the state that is the input of the first layer, if it comes from another stack, else 0.
        others: the correlations of what the input gives to a gate with that of other runs, each with masks of its own.
        start: E h² and E c² of the states that all layers start from.
        begun: the correlations of these states with those of other runs.
    """

    flavour: str
    steps: int
    shared: float
    directions: int = 1
    keep: float = 1.0
    below: float = 0.0
    others: tuple[float, ...] = ()
    start: tuple[float, float] = (0.0, 0.0)
    begun: tuple[float, ...] = ()

    @property
    def rounded(self) -> Stack:
        """Return one of the few that are worth a simulation of their own."""
        state, cell = self.start
        return self._replace(
            steps=max(1, min(self.steps, LONGEST)),
            shared=round(self.shared, 2),
            below=float(f"{self.below:.2g}"),
            others=tuple(round(other, 3) for other in self.others),
            start=(float(f"{state:.2g}"), float(f"{cell:.2g}")),
            begun=tuple(round(other, 3) for other in self.begun) if any(self.start) else (),
        )


def solved(stack: Stack, count: int) -> tuple[Recurrence, ...]:
    """Simulate layers whose recurrent weights keep the size of the state, while the input makes up the gates' E z².

    Larger recurrent weights, which a small state needs in order to make half of a gate, would amplify what the masks
    and the past differ in at every step. A gated layer above another, whose input is such a state, amplifies it only
    half-way, on a logarithmic scale.
    """
    return _solved(stack.rounded, count)


def simulated(stack: Stack, layers: Sequence[Layer]) -> tuple[Recurrence, ...]:
    """Run layers, and describe each.

    A state is correlated with its past, through gates and weights alike, which no closed form follows: so small layers
    are run on Gaussian inputs.
    """
    return _simulated(stack.rounded, tuple(Layer(*(float(f"{number:.3g}") for number in layer)) for layer in layers))


@lru_cache(maxsize=256)
def _solved(stack: Stack, count: int) -> tuple[Recurrence, ...]:
    simulation = _Simulation(stack)
    found = []
    for depth in range(count):
        wanted = rest = _SECOND[stack.flavour]
        below = simulation.second * stack.keep if depth else stack.below  # dropout's part is taken out whole
        power = 0.5 if below and stack.flavour in _GATED else 1.0
        for _ in range(_ROUNDS):
            made = below ** (1 - power) * rest**power
            h, c = simulation.layer(Layer(made / simulation.second, 1.0))
            # The mean of both: a ReLU's state grows by as much as its input does, and would not settle.
            rest = (rest + max(wanted / 10, wanted - float(h.square().mean()))) / 2
        simulation.feed(h)
        found.append(_described(stack, h, c, made))
    return tuple(found)


@lru_cache(maxsize=1024)
def _simulated(stack: Stack, layers: tuple[Layer, ...]) -> tuple[Recurrence, ...]:
    simulation = _Simulation(stack)
    found = []
    for layer in layers:
        h, c = simulation.layer(layer)
        found.append(_described(stack, h, c, simulation.second * layer.input))
        simulation.feed(h)
    return tuple(found)


class _Simulation:
    """A small stack of layers, run one at a time."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.gates = _GATES[stack.flavour] * _WIDTH
        self.generator = torch.Generator().manual_seed(0)
        self.other = torch.Generator().manual_seed(1)  # so that other runs change no number of the first
        one = self._sequences(self.generator)
        others = (one * math.sqrt(rho) + self._sequences(self.other) * math.sqrt(1 - rho) for rho in stack.others)
        self.inputs = torch.cat([one, *others], 1)
        self.depth, self.second = 0, 1.0

    def layer(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Run a layer in each of its directions; leave the random state, so that another try gets the same numbers."""
        before = self.generator.get_state()
        states, cells = [], []
        for direction in range(self.stack.directions):
            x = self.inputs
            if self.depth:
                x = x @ self._normal(x.shape[-1], self.gates) / math.sqrt(x.shape[-1])
            x = x * math.sqrt(layer.input) + self._normal(self.gates) * math.sqrt(layer.bias)
            weight = self._normal(_WIDTH, self.gates) * math.sqrt(layer.state / _WIDTH)
            start = [self._start(s, 2 * direction + i) if s else None for i, s in enumerate(self.stack.start)]
            h, c = _unrolled(self.stack.flavour, x.flip(0) if direction else x, weight, *start)
            states.append(h.flip(0) if direction else h)
            cells.append(c.flip(0) if direction else c)
        self.generator.set_state(before)
        return torch.cat(states, 2), torch.cat(cells, 2)

    def feed(self, h: Tensor) -> None:
        """Make the states of a layer the input of the next."""
        self.depth += 1
        self.generator.manual_seed(self.depth)  # other numbers for another layer
        first, *others = torch.split(h, _BATCH, 1)
        drawn = [torch.rand(first.shape, generator=self.generator, device="cpu")]
        drawn += [torch.rand(other.shape, generator=self.other, device="cpu") for other in others]
        mask = torch.cat(drawn, 1) < self.stack.keep
        self.inputs = h * mask / max(self.stack.keep, 1e-12)  # dropout 1 leaves zeros
        self.second = max(1e-6, float(self.inputs[:, :_BATCH].square().mean()))

    def _sequences(self, generator: torch.Generator) -> Tensor:
        shared = self.stack.shared
        always = torch.randn(_BATCH, self.gates, generator=generator, device="cpu")
        fresh = torch.randn(self.stack.steps, _BATCH, self.gates, generator=generator, device="cpu")
        return fresh * math.sqrt(1 - shared) + always * math.sqrt(shared)

    def _start(self, second: float, number: int) -> Tensor:
        """Draw the states that the runs start from; those of other runs change no number of the first."""
        one = self._normal(_BATCH, _WIDTH)
        generator = torch.Generator().manual_seed(number)
        begun = self.stack.begun or (0.0,) * len(self.stack.others)
        others = (
            one * math.sqrt(rho) + torch.randn(one.shape, generator=generator, device="cpu") * math.sqrt(1 - rho)
            for rho in begun
        )
        return torch.cat([one, *others]) * math.sqrt(second)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device="cpu")


def _described(stack: Stack, h: Tensor, c: Tensor, from_input: float) -> Recurrence:
    steps = stack.steps
    h, *others = torch.split(h, _BATCH, 1)
    second = float(h.square().mean())
    mean = float(h.mean()) if stack.flavour == "rnn_relu" else 0.0  # the others are odd in their inputs
    total = float(h.mean(0).square().mean())
    pair = (total * steps - second) / (steps - 1) if steps > 1 else mean**2
    each, cells = (t[:, :_BATCH, :_WIDTH].square().mean((1, 2)).tolist() for t in (h, c))
    shared = tuple(_correlation(h, other, mean) for other in others)
    return Recurrence(mean, second, pair, tuple(each), tuple(cells), from_input, shared)


def _correlation(one: Tensor, other: Tensor, mean: float) -> float:
    """Return the correlation of two tensors of one mean, from 0 to 1; 1 if nothing varies."""
    pair, first, second = (float((a * b).mean()) - mean**2 for a, b in ((one, other), (one, one), (other, other)))
    return max(0.0, min(1.0, pair / math.sqrt(first * second))) if min(first, second) > 0 else 1.0


def _unrolled(
    flavour: str, inputs: Tensor, weight: Tensor, h0: Tensor | None = None, c0: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    zero = torch.zeros(inputs.shape[1], _WIDTH, device="cpu")
    h, c = (zero if state is None else state for state in (h0, c0))
    states, cells = [], []
    for x in inputs:
        if flavour == "gru":
            z, r, n = x.chunk(3, 1)
            uz, ur, un = (h @ weight).chunk(3, 1)
            z = torch.sigmoid(z + uz)
            h = c = (1 - z) * torch.tanh(n + torch.sigmoid(r + ur) * un) + z * h
        elif flavour == "lstm":
            i, f, g, o = (x + h @ weight).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        else:
            h = c = torch.tanh(x + h @ weight) if flavour == "rnn_tanh" else torch.relu(x + h @ weight)
        states.append(h)
        cells.append(c)
    return torch.stack(states), torch.stack(cells)
