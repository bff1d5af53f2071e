"""Recurrences have the states that were predicted."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

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
