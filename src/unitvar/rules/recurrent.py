"""LSTM, GRU and plain recurrences: the moments of a state that has forgotten how it began."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from unitvar.rules.moments import Moments
from unitvar.rules.registry import builtin

__all__ = ["FLAVOURS", "recurrence"]

FLAVOURS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_WIDTH, _BATCH, _LONGEST, _ROUNDS = 128, 32, 64, 5


@lru_cache(maxsize=256)
def recurrence(flavour: str, steps: int) -> tuple[float, float, float, float]:
    """Return E h, E h² over the steps, E h² at the last one, and E h_s h_t of two steps.

    A state is correlated with its past, through gates and weights alike, which no closed form follows: so a small
    recurrence is run, whose gates get half their unit variance from fresh inputs and half from the state, with the
    scale that makes it so. From zero, as layers start.
    """
    steps = max(1, min(steps, _LONGEST))
    gates = _GATES[flavour]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(steps, _BATCH, gates * _WIDTH, generator=generator) * math.sqrt(0.5)
    weight = torch.randn(_WIDTH, gates * _WIDTH, generator=generator) * math.sqrt(0.5 / _WIDTH)
    second = 0.1
    with torch.no_grad():
        for _ in range(_ROUNDS):
            h = _unrolled(flavour, inputs, weight / math.sqrt(second))
            second = float(h.square().mean())
    mean = float(h.mean()) if flavour == "rnn_relu" else 0.0  # the others are odd in their inputs
    total = float(h.mean(0).square().mean())
    pair = (total * steps - second) / (steps - 1) if steps > 1 else mean**2
    return mean, second, float(h[-1].square().mean()), pair


def _unrolled(flavour: str, inputs: Tensor, weight: Tensor) -> Tensor:
    h = c = torch.zeros(_BATCH, _WIDTH)
    states = []
    for x in inputs:
        if flavour == "gru":
            z, r, n = x.chunk(3, 1)
            uz, ur, un = (h @ weight).chunk(3, 1)
            z = torch.sigmoid(z + uz)
            h = (1 - z) * torch.tanh(n + torch.sigmoid(r + ur) * un) + z * h
        elif flavour == "lstm":
            i, f, g, o = (x + h @ weight).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        else:
            h = torch.tanh(x + h @ weight) if flavour == "rnn_tanh" else torch.relu(x + h @ weight)
        states.append(h)
    return torch.stack(states)


def _layers(flavour: str) -> Callable[..., tuple[Moments, ...]]:
    def run(x: Moments, hidden: Any, weights: Sequence[Moments], *rest: Any) -> tuple[Moments, ...]:
        _, layers, _, _, bidirectional, batch_first = (*rest, False)[:6]
        if not isinstance(layers, int) or isinstance(layers, bool):  # packed sequences: data, batch_sizes, ...
            bidirectional = rest[5] if len(rest) > 5 else False
        steps = x.shape[1 if batch_first else 0] if len(x.shape) == 3 else 16
        mean, second, last, pair = recurrence(flavour, int(steps))
        width = max(w.shape[1] for w in weights[1:2])
        out = Moments(mean, second, (*x.shape[:-1], width * (2 if bidirectional else 1)), cross=pair)
        end = Moments(mean, last, (1, width))
        return out, end, end

    return run


for _flavour in FLAVOURS:
    builtin(_flavour, word=_flavour.replace("_", " "), weights=(2,))(_layers(_flavour))


def _cells(flavour: str) -> Callable[..., Any]:
    def run(x: Moments, hidden: Any, w_ih: Moments, w_hh: Moments, *biases: Any) -> Any:
        mean, _, last, _ = recurrence(flavour, 64)
        shape = (*x.shape[:-1], w_hh.shape[1])
        state = Moments(mean, last, shape)
        return (state, state) if flavour == "lstm" else state

    return run


for _flavour in FLAVOURS:
    builtin(f"{_flavour}_cell", word=f"{_flavour} cell", weights=(2, 3))(_cells(_flavour))
