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


class Sequences(nn.Module):
    """A recurrence, and a linear layer on some of what it puts out."""

    def __init__(self, kind: type[nn.RNNBase], read: str, **options: Any) -> None:
        super().__init__()
        self.body, self.read = kind(64, 96, **options), read
        both = 2 if options.get("bidirectional") and read in ("out", "first", "last") else 1
        self.head = nn.Linear(96 * both * (2 if read == "all states" else 1), 10)

    def forward(self, x: Tensor) -> Tensor:
        out, state = self.body(x)
        hidden, cell = state if isinstance(state, tuple) else (state, state)
        read = {
            "out": lambda: out,
            "first": lambda: out[:, 0],
            "last": lambda: out[:, -1],
            "lower state": lambda: hidden[0],
            "upper state": lambda: hidden[-1],
            "lower cell": lambda: cell[0],
            "all states": lambda: hidden.transpose(0, 1).flatten(1),
        }
        return self.head(read[self.read]())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize(
    ("read", "options"),
    [
        ("lower state", {"num_layers": 2, "dropout": 0.3}),
        ("upper state", {"num_layers": 2, "dropout": 0.3}),
        ("lower cell", {"num_layers": 2, "dropout": 0.3}),
        ("all states", {"num_layers": 2, "dropout": 0.3}),
        ("first", {"bidirectional": True}),
        ("last", {"bidirectional": True}),
    ],
)
def test_each_layer_and_each_end_of_a_recurrence_has_its_own_size(
    kind: type[nn.RNNBase], read: str, options: dict[str, Any]
) -> None:
    """A lower layer's state is larger than the upper one's, and one direction starts where the other ends."""
    x = torch.randn(64, 20, 64)
    outcome = []
    for _ in range(6):
        model = Sequences(kind, read, batch_first=True, **options)
        unitvar.initialize_(model, x, inputs="standard")
        outcome.append(model(x).square().mean().item())
    assert sum(outcome) / len(outcome) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("alike", ["steps", "examples", "nothing"])
def test_with_time_first_the_plan_is_that_of_batch_first(kind: type[nn.RNNBase], alike: str) -> None:
    """What steps have in common a state keeps, and what examples have in common tells none of them apart."""
    shape = {"steps": (32, 1, 64), "examples": (1, 20, 64), "nothing": (32, 20, 64)}[alike]
    x = torch.randn(*shape).expand(32, 20, 64)
    first = unitvar.plan(Sequences(kind, "out", batch_first=True), x.contiguous())
    second = unitvar.plan(Sequences(kind, "out"), x.transpose(0, 1).contiguous())
    assert [a.scale for a in second] == pytest.approx([a.scale for a in first], rel=0.01)
    assert second["head.weight"].signal == pytest.approx(first["head.weight"].signal, abs=0.02)
    assert first["head.weight"].signal == pytest.approx(0 if alike == "examples" else 1, abs=0.05)


class Two(nn.Module):
    """Two recurrences, one on the other, as a stack of two layers has them."""

    def __init__(self, kind: type[nn.RNNBase], dropout: float) -> None:
        super().__init__()
        self.lower, self.drop, self.upper = kind(64, 96), nn.Dropout(dropout), kind(96, 96)

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(self.drop(self.lower(x)[0]))[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_two_recurrences_are_scaled_like_a_stack_of_two_layers(kind: type[nn.RNNBase], dropout: float) -> None:
    x = torch.randn(20, 32, 64)
    stack = unitvar.plan(kind(64, 96, 2, dropout=dropout), x, inputs="standard")
    apart = unitvar.plan(Two(kind, dropout), x, inputs="standard")
    assert [a.scale for a in apart] == pytest.approx([a.scale for a in stack], rel=0.03)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("layers", [2, 3])
def test_noise_of_dropout_between_layers_is_predicted_as_it_is_measured(kind: type[nn.RNNBase], layers: int) -> None:
    x = torch.randn(64, 20, 64)
    measured = []
    for _ in range(3):
        model = Sequences(kind, "out", num_layers=layers, dropout=0.5, batch_first=True)
        unitvar.initialize_(model, x, inputs="standard")
        measured.append(unitvar.measure(model, x, runs=4)["head.weight"])
    signal, noise = (sum(getattr(layer, key) for layer in measured) / 3 for key in ("signal", "noise"))
    assert noise > 0.3
    assert measured[0].predicted_signal == pytest.approx(signal, abs=0.07)
    assert measured[0].predicted_noise == pytest.approx(noise, abs=0.07)


def test_a_level_that_all_inputs_share_is_no_signal_of_a_recurrence() -> None:
    x = 5 + 0.1 * torch.rand(64, 12, 64)
    plan = unitvar.plan(Sequences(nn.LSTM, "out", batch_first=True), x)
    assert plan["head.weight"].signal == pytest.approx(0, abs=0.01)
    assert plan["head.weight"].noise == pytest.approx(0, abs=0.01)
    constant = unitvar.plan(Sequences(nn.LSTM, "out", batch_first=True), torch.ones(8, 12, 64), inputs="measured")
    assert constant.advice == ()


def test_dropout_of_everything_between_layers_leaves_no_signal() -> None:
    plan = unitvar.plan(nn.LSTM(64, 96, 2, dropout=1.0), torch.randn(20, 32, 64))
    assert plan.skipped["weight_ih_l1"] == "no signal reaches it: its input is always 0"


class Twice(nn.Module):
    """One recurrence on two sequences, the steps of one of which are alike."""

    def __init__(self, *, smooth_first: bool) -> None:
        super().__init__()
        self.body, self.smooth_first = nn.LSTM(64, 96, batch_first=True), smooth_first

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        smooth = x[:, :1].expand_as(x)
        one, other = (smooth, x) if self.smooth_first else (x, smooth)
        return self.body(one)[0], self.body(other)[0]


def test_a_recurrence_that_is_used_twice_keeps_its_states_in_any_order() -> None:
    x = torch.randn(32, 20, 64)
    plans = [unitvar.plan(Twice(smooth_first=first), x, inputs="standard") for first in (True, False)]
    assert [a.scale for a in plans[0]] == pytest.approx([a.scale for a in plans[1]], rel=1e-6)
    assert plans[0]["body.weight_hh_l0"].scale == pytest.approx(1, abs=0.01)
