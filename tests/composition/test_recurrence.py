"""Recurrences: a layer, its cells in a loop and the equations by hand leave the same signal to the next layer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.composition.spelling import (
    assert_as_predicted,
    assert_ones,
    assert_same_plans,
    second_moments,
    shared,
    white,
)

WIDTH, STEPS = 96, 6


class Layer(nn.Module):
    """An LSTM and a linear layer on its outputs."""

    def __init__(self, **options: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True, **options)
        self.last = nn.Linear(options.get("proj_size", WIDTH), WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0])


class Cells(nn.Module):
    """The same as an nn.LSTM by nn.LSTMCell in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTMCell(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), WIDTH)
        states = []
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
            states.append(h)
        return self.last(torch.stack(states, 1))


class Equations(nn.Module):
    """The same by sigmoids and products."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.state = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), WIDTH)
        states = []
        for step in x.unbind(1):
            i, f, g, o = (self.input(step) + self.state(h)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return self.last(torch.stack(states, 1))


class Short(nn.Module):
    """A GRU or a plain recurrence, as a layer or by its cells."""

    def __init__(self, layer: nn.Module | None, cell: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.cell, self.last = layer, cell, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.layer is not None:
            return self.last(self.layer(x)[0])
        assert self.cell is not None
        states = [x.new_zeros(len(x), WIDTH)]
        for step in x.unbind(1):
            states.append(self.cell(step, states[-1]))
        return self.last(torch.stack(states[1:], 1))


RECURRENCES: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "lstm": (Layer, Cells),
    "gru": (lambda: Short(nn.GRU(WIDTH, WIDTH, batch_first=True)), lambda: Short(None, nn.GRUCell(WIDTH, WIDTH))),
    "tanh": (lambda: Short(nn.RNN(WIDTH, WIDTH, batch_first=True)), lambda: Short(None, nn.RNNCell(WIDTH, WIDTH))),
    "relu": (
        lambda: Short(nn.RNN(WIDTH, WIDTH, nonlinearity="relu", batch_first=True)),
        lambda: Short(None, nn.RNNCell(WIDTH, WIDTH, nonlinearity="relu")),
    ),
}
INPUTS = {
    "white": (white(16, STEPS, WIDTH), "standard"),
    "shared": (shared(16, STEPS, WIDTH, dims=(1,)), "measured"),
}


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", RECURRENCES)
def test_a_layer_and_its_cells_in_a_loop_have_one_plan(kind: str, inputs: str) -> None:
    """Equations written out are another network: each product gets E z² = 1, a gate of a known recurrence in all."""
    sample, known = INPUTS[inputs]
    layer, cells = RECURRENCES[kind]
    assert_same_plans({"layer": layer(), "cells": cells()}, sample(), inputs=known)


def hidden(model: nn.Module, x: Tensor, inputs: str) -> float:
    """Return E z² of the last weight's output after initialisation, over its prediction."""
    plan = unitvar.initialize_(model, x, inputs=inputs)
    return second_moments(model, x)["last.weight"] / plan["last.weight"].predicted


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("build", [Layer, Cells, lambda: Layer(proj_size=48)], ids=["layer", "cells", "projected"])
def test_what_follows_an_lstm_is_what_was_predicted(build: Callable[[], nn.Module], inputs: str) -> None:
    sample, known = INPUTS[inputs]
    found = torch.tensor([hidden(build(), sample(), known) for _ in range(8)])
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) - 1) <= 5 * error + 0.05, found


class StackedCells(nn.Module):
    """Cells one on the other in one loop, as in a decoder that feeds on its own outputs."""

    def __init__(self, cell: type[nn.Module], depth: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cell(WIDTH, WIDTH) for _ in range(depth))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        states: list[Any] = [None] * len(self.cells)
        out = []
        for step in x.unbind(1):
            for i, cell in enumerate(self.cells):
                states[i] = cell(step, states[i])
                step = states[i][0] if isinstance(states[i], tuple) else states[i]
            out.append(step)
        return self.last(torch.stack(out, 1))


@pytest.mark.parametrize(("cell", "stack"), [(nn.LSTMCell, nn.LSTM), (nn.GRUCell, nn.GRU)], ids=["lstm", "gru"])
def test_stacked_cells_leave_what_a_stack_of_layers_leaves(cell: type[nn.Module], stack: type[nn.Module]) -> None:
    """Within 20 %: a cell knows how much the steps below it have in common, not in which order they change."""
    x = white(16, STEPS, WIDTH)()
    cells = unitvar.plan(StackedCells(cell, 3), x)
    layers = unitvar.plan(Short(stack(WIDTH, WIDTH, 3, batch_first=True)), x)
    for one, other in zip(cells, layers, strict=True):
        assert one.scale == pytest.approx(other.scale, rel=0.1), one.name
    found = torch.tensor([hidden(StackedCells(cell, 3), x, "standard") for _ in range(4)])
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) - 1) <= 5 * error + 0.2, found


class Started(nn.Module):
    """A recurrence that starts from a state made of something else, as in a captioner; by a layer, or by a cell."""

    def __init__(self, kind: str, cells: bool) -> None:
        super().__init__()
        self.start, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layer = None if cells else getattr(nn, kind)(WIDTH, WIDTH, batch_first=True)
        self.cell = getattr(nn, f"{kind}Cell")(WIDTH, WIDTH) if cells else None
        self.lstm = kind == "LSTM"

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x[:, -1])  # standard normal, as the inputs are
        if self.layer is not None:
            first = h[None]
            return self.last(self.layer(x[:, :-1], (first, torch.zeros_like(first)) if self.lstm else first)[0])
        assert self.cell is not None
        state, states = (h, torch.zeros_like(h)) if self.lstm else h, []
        for step in x[:, :-1].unbind(1):
            state = self.cell(step, state)
            states.append(state[0] if self.lstm else state)
        return self.last(torch.stack(states, 1))


@pytest.mark.parametrize("steps", [2, 6])
@pytest.mark.parametrize("cells", [False, True], ids=["layer", "cells"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrence_may_start_from_a_state_of_unit_variance(kind: str, cells: bool, steps: int) -> None:
    """It starts many times larger than it stays, and two steps do not forget it: 6.3 times too much before (GRU)."""
    found = torch.tensor(
        [hidden(Started(kind, cells), torch.randn(16, steps + 1, WIDTH), "standard") for _ in range(6)]
    )
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) - 1) <= 5 * error + 0.1, found


class Handed(nn.Module):
    """A layer that starts from the states that its caller hands it, as a decoder does."""

    def __init__(self, kind: str, **options: int) -> None:
        super().__init__()
        self.kind = kind
        self.layer = getattr(nn, kind)(WIDTH, WIDTH, batch_first=True, **options)
        self.last = nn.Linear(options.get("proj_size", WIDTH), WIDTH)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        return self.last(self.layer(x, (h, c) if self.kind == "LSTM" else h)[0])  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("kind", "size"), [("LSTM", 0), ("GRU", 0), ("RNN", 0), ("LSTM", 24)])
def test_a_state_that_is_handed_over_is_signal_and_reaches_the_gates(kind: str, size: int) -> None:
    """Without dropout there is no noise, whatever a recurrence starts from; and a copied state tells nothing apart."""
    options = {"proj_size": size} if size else {}
    own = torch.randn(1, 64, size or WIDTH), torch.randn(1, 64, WIDTH)
    model, x = Handed(kind, **options), torch.randn(64, 3, WIDTH)
    last = unitvar.initialize_(model, (x, *own))["last.weight"]
    assert last.noise == pytest.approx(0, abs=1e-6)
    assert last.signal == pytest.approx(1, abs=0.05)
    for layer in unitvar.measure(model, (x, *own)):
        assert layer.variance == pytest.approx(layer.predicted_variance, rel=0.15), layer.label
    same = (x[:1].expand_as(x).contiguous(), *(state[:, :1].expand_as(state).contiguous() for state in own))
    assert unitvar.plan(model, same)["last.weight"].signal == pytest.approx(0, abs=0.02)


def test_a_learned_state_is_common_to_all_examples() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, WIDTH)
            self.start = nn.Parameter(torch.randn(1, 1, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.layer(x, self.start.expand(-1, len(x), -1).contiguous())[0])  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x = Learned(), torch.randn(64, 6, WIDTH)
    last = unitvar.initialize_(model, x)["last.weight"]
    assert last.noise == pytest.approx(0, abs=1e-6)
    assert last.signal == pytest.approx(unitvar.measure(model, x)["last.weight"].signal, abs=0.05)
    assert last.signal < 0.5


def test_the_gates_of_a_written_lstm_are_what_was_predicted() -> None:
    """Within 10 %: one scale serves all steps, while the state grows over them."""
    assert_as_predicted(Equations, white(16, STEPS, WIDTH), tolerance=0.1, draws=8)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    "options", [{}, {"proj_size": 48}, {"num_layers": 2}], ids=["plain", "projected", "two layers"]
)
def test_measure_predicts_the_gates_of_an_lstm_as_torch_leaves_it(options: dict[str, int]) -> None:
    """Within 15 %: one number predicts all steps. The weights are torch's own: their states are far from unit."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(5):
        for layer in unitvar.measure(Layer(**options), torch.randn(16, STEPS, WIDTH), runs=1):
            assert layer.variance is not None
            assert layer.predicted_variance is not None, layer.label
            found[layer.label].append(layer.variance / layer.predicted_variance)
    assert_ones({name: torch.tensor(values) for name, values in found.items()}, tolerance=0.15)
