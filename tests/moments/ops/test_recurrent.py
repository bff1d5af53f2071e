"""Recurrences have the states that were predicted."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.moments.models import Output, outcomes


class Unrolled(nn.Module):
    """A loop over cells, from zero, which returns the last state."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[1], 64)
        for step in x:
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(step, (h, c))
            else:
                h = self.cell(step, h)
        return h


RECURRENT: dict[str, tuple[Callable[[], nn.Module], int]] = {
    **{
        f"{kind.__name__} {options}": (lambda kind=kind, options=options: Unrolled(kind(16, 64, **options)), 64)
        for kind, options in [
            (nn.LSTMCell, {}), (nn.GRUCell, {}), (nn.RNNCell, {}), (nn.RNNCell, {"nonlinearity": "relu"}),
        ]
    },
    **{
        f"{kind.__name__} {options}, {where}": (
            lambda kind=kind, options=options, reduce=reduce: Output(kind(16, 64, **options), reduce),
            128 if "bidirectional" in options else 64,
        )
        for kind, options in [
            (nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}),
            (nn.LSTM, {"num_layers": 2, "dropout": 0.3}), (nn.GRU, {"num_layers": 2, "bidirectional": True}),
        ]
        for where, reduce in [("all steps", lambda out: out[0]), ("mean", lambda out: out[0].mean(0))]
    },
    "LSTM's last state": (lambda: Output(nn.LSTM(16, 64), lambda out: out[1][0][0]), 64),
    "LSTM's cell": (lambda: Output(nn.LSTM(16, 64), lambda out: out[1][1][0]), 64),
    "GRU's last state": (lambda: Output(nn.GRU(16, 64, bias=False), lambda out: out[1][0]), 64),
}  # fmt: skip


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrences_have_the_states_that_were_predicted(name: str) -> None:
    make, features = RECURRENT[name]
    found = outcomes(make, features, lambda: torch.randn(10, 32, 16))
    # The rule itself simulates one recurrence of 128 units, whose own error is that of one draw at twice the width.
    error = found.std().item() * (5 / math.sqrt(len(found)) + 2 / math.sqrt(2))
    assert found.mean().item() == pytest.approx(1.0, abs=error)


def test_a_frozen_recurrence_counts_as_it_is() -> None:
    def make() -> nn.Module:
        return Output(nn.LSTM(16, 64).requires_grad_(False), lambda out: out[0])

    found = outcomes(make, 64, lambda: torch.randn(10, 32, 16))
    assert found.mean().item() == pytest.approx(1.0, abs=0.15)  # torch's own weights are not Gaussian


@pytest.mark.parametrize(
    ("kind", "options", "second"),
    [
        (nn.LSTM, {}, 0.25),
        (nn.LSTM, {"num_layers": 2, "dropout": 0.3}, 0.25),
        (nn.GRU, {}, 0.25),
        (nn.GRU, {"bidirectional": True}, 0.25),
        (nn.RNN, {}, 1.0),
        (nn.RNN, {"nonlinearity": "relu"}, 1.0),
    ],
)
def test_recurrent_weights_keep_the_state_and_the_input_makes_the_rest_of_a_gate(
    kind: type[nn.RNNBase], options: dict[str, Any], second: float
) -> None:
    """By hand: E z² of a gate is what both weights make of the inputs and states that the network has."""
    found = []
    for _ in range(8):
        model, x = kind(64, 96, **options), torch.randn(12, 64, 64)
        unitvar.initialize_(model, x, inputs="standard")
        with torch.no_grad():
            states = model(x)[0]
        for name, weight in model.named_parameters():
            if name.startswith("weight_hh"):
                assert weight.square().sum(1).mean().item() == pytest.approx(1, rel=1e-4), name
        lowest = (states if options.get("num_layers", 1) == 1 else _first(model, x))[:, :, :96]
        before = torch.cat([torch.zeros_like(lowest[:1]), lowest[:-1]])
        with torch.no_grad():
            gates = x @ model.weight_ih_l0.T + before @ model.weight_hh_l0.T
        found.append(gates.square().mean().item())
    assert torch.tensor(found).mean().item() == pytest.approx(second, rel=0.1)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_an_upper_layer_amplifies_a_small_state_half_way_on_a_logarithmic_scale(kind: type[nn.RNNBase]) -> None:
    """By hand: its input makes the geometric mean of what that state has without dropout and what a gate lacks."""
    model, x = kind(64, 96, num_layers=2, dropout=0.3), torch.randn(12, 64, 64)
    unitvar.initialize_(model, x, inputs="standard")
    state = _first(model, x).square().mean().item()
    made = model.weight_ih_l1.square().sum(1).mean().item() * state / 0.7  # after dropout
    rest = 0.25 - model(x)[0].square().mean().item()
    assert made == pytest.approx(math.sqrt(state * rest), rel=0.1)


def _first(model: nn.RNNBase, x: Tensor) -> Tensor:
    """Return the states of the first layer, by a network that has no other."""
    alone = type(model)(model.input_size, model.hidden_size)
    alone.load_state_dict({name: p for name, p in model.state_dict().items() if name.endswith("l0")})
    with torch.no_grad():
        return alone(x)[0]


def test_noise_of_dropout_between_layers_does_not_grow_over_a_long_sequence() -> None:
    """Two passes under other masks end as near to each other after 100 steps as after ten."""
    near = []
    for _ in range(4):
        model, x = nn.LSTM(64, 64, num_layers=2, dropout=0.2), torch.randn(100, 32, 64)
        unitvar.initialize_(model, x)
        with torch.no_grad():
            one, other = model(x)[0], model(x)[0]
        shares = ((one - other).square().mean((1, 2)) / 2 / one.square().mean((1, 2))).tolist()
        near.append(sum(shares[90:]) / sum(shares[5:15]))
    assert sum(near) / len(near) == pytest.approx(1, abs=0.2)
