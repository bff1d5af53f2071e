"""Recurrences: a layer, its cells in a loop and the equations by hand leave the same signal to the next layer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.composition.spelling import assert_as_predicted, assert_ones, second_moments, white

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
    """The same by nn.LSTMCell in a loop."""

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


def test_spellings_of_an_lstm_leave_the_same_signal_to_the_next_layer() -> None:
    """Within 10 %: a fused op hides its steps, so that what is settled for its weights need not be what a loop settles.

    The scale of the state's weight depends on the state's own second moment, which grows over the steps: a fused op may
    take its limit, a loop takes the mean over uses. That moves the gates by a few per cent and the state, a product of
    three of them, by up to 10 %. A forgotten product or activation moves it by a factor of two.

    Equations written out are another network to a plan: each of the two products has a second moment of one, so that a
    gate has two, where a recurrence that is known as one gives a half to each.
    """
    x = torch.randn(4, STEPS, WIDTH)
    plans = {type(m).__name__: unitvar.plan(m, x)["last.weight"] for m in (Layer(), Cells())}
    reference = plans["Layer"]
    for kind, layer in plans.items():
        assert layer.second == pytest.approx(reference.second, rel=0.1), kind
        assert layer.scale == pytest.approx(reference.scale, rel=0.08), kind


def hidden(model: nn.Module, x: Tensor) -> float:
    """Return E z² of the last weight's output after initialisation, over its prediction."""
    plan = unitvar.initialize_(model, x)
    return second_moments(model, x)["last.weight"] / plan["last.weight"].predicted


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("build", [Layer, Cells, lambda: Layer(proj_size=48)], ids=["layer", "cells", "projected"])
def test_what_follows_an_lstm_is_what_was_predicted(build: Callable[[], nn.Module]) -> None:
    found = torch.tensor([hidden(build(), torch.randn(16, STEPS, WIDTH)) for _ in range(8)])
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) - 1) <= 5 * error + 0.05, found


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
