"""LSTM, GRU and plain recurrences: the moments of a state that has forgotten how it began."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from unitvar.activations import activation_moments
from unitvar.rules.moments import Moments
from unitvar.rules.registry import builtin

__all__ = ["FLAVOURS", "recurrence"]

FLAVOURS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@lru_cache(maxsize=256)
def recurrence(flavour: str, steps: int) -> tuple[float, float, float]:
    """Return E h, E h² over the steps and at the last one, with gates whose inputs are N(0, 1)."""
    if flavour == "rnn_relu":
        return activation_moments("relu").mean, 0.5, 0.5
    squash = activation_moments("tanh").second
    if flavour == "rnn_tanh":
        return 0.0, squash, squash
    gate = activation_moments("sigmoid").second
    seen, cell, state = 0.0, 0.0, 0.0
    for _ in range(max(1, min(steps, 1000))):
        if flavour == "lstm":
            cell = gate * cell + gate * squash
            state = gate * activation_moments("tanh", std=round(cell, 12) ** 0.5).second
        else:  # h = (1 - z) n + z h, and 1 - z has z's law
            state = gate * squash + gate * state
        seen += state
    return 0.0, seen / max(1, min(steps, 1000)), state


def _layers(flavour: str) -> Callable[..., tuple[Moments, ...]]:
    def run(x: Moments, hidden: Any, weights: Sequence[Moments], *rest: Any) -> tuple[Moments, ...]:
        _, layers, _, _, bidirectional, batch_first = (*rest, False)[:6]
        if not isinstance(layers, int) or isinstance(layers, bool):  # packed sequences: data, batch_sizes, ...
            bidirectional = rest[5] if len(rest) > 5 else False
        steps = x.shape[1 if batch_first else 0] if len(x.shape) == 3 else 16
        mean, second, last = recurrence(flavour, int(steps))
        width = max(w.shape[1] for w in weights[1:2])
        out = Moments(mean, second, (*x.shape[:-1], width * (2 if bidirectional else 1)))
        end = Moments(mean, last, (1, width))
        return out, end, end

    return run


for _flavour in FLAVOURS:
    builtin(_flavour, word=_flavour.replace("_", " "), weights=(2,))(_layers(_flavour))


def _cells(flavour: str) -> Callable[..., Any]:
    def run(x: Moments, hidden: Any, w_ih: Moments, w_hh: Moments, *biases: Any) -> Any:
        mean, _, last = recurrence(flavour, 100)
        shape = (*x.shape[:-1], w_hh.shape[1])
        state = Moments(mean, last, shape)
        return (state, state) if flavour == "lstm" else state

    return run


for _flavour in FLAVOURS:
    builtin(f"{_flavour}_cell", word=f"{_flavour} cell", weights=(2, 3))(_cells(_flavour))
