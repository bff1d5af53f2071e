"""LSTM, GRU and plain recurrences, as layers and as cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unitvar.rules.moments import Moments
from unitvar.rules.recurrence import FLAVOURS, LONGEST, Layer, Stack, simulated
from unitvar.rules.registry import builtin

__all__ = ["Call", "alike", "projection"]


def alike(x: Moments) -> float:
    """Return the correlation that a weight gives its outputs at two steps."""
    return min(1.0, max(0.0, x.pair / x.second)) if x.second > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a recurrent op, read: with a batch of sequences, or with a packed one.

    Attributes:
        groups: the tensors of each layer, in one direction and then the other: w_ih, w_hh, biases, projection.
        directions: 1 or 2.
        steps: how long the sequences are.
        keep: the keep rate between layers.
    """

    groups: tuple[tuple[Any, ...], ...]
    directions: int
    steps: int
    keep: float

    @classmethod
    def read(cls, args: Sequence[Any]) -> Call:
        """Read arguments in schema order; the weights are the last list among them."""
        at = max(i for i, a in enumerate(args) if isinstance(a, (tuple, list)))
        _, layers, dropout, train, both, *batch_first = args[at + 1 :]
        shape = args[0].shape
        long = 1 if any(batch_first) and len(shape) == 3 else 0
        steps = args[1].shape[0] if at == 3 else shape[long]  # packed: data, batch sizes, state, weights
        directions = 2 if both else 1
        size = len(args[at]) // (layers * directions)
        groups = tuple(tuple(args[at][i * size : (i + 1) * size]) for i in range(layers * directions))
        return cls(groups, directions, int(steps), 1.0 - float(dropout) if train else 1.0)

    @property
    def layers(self) -> list[tuple[tuple[Any, ...], ...]]:
        """Give the groups of each layer, one for each direction."""
        return [self.groups[i : i + self.directions] for i in range(0, len(self.groups), self.directions)]

    def stack(self, flavour: str, x: Moments) -> Stack:
        """Say what to simulate."""
        return Stack(flavour, self.steps, alike(x), self.directions, self.keep)


def projection(group: Sequence[Any]) -> Any:
    """Give the weight that projects the state of a layer, None if there is none."""
    return group[-1] if len(group) % 2 else None


def _norm(weight: Moments | None) -> float:
    """Return the squared norm of a row."""
    return 1.0 if weight is None else weight.shape[-1] * weight.second


def _layer(group: Sequence[Moments], before: float) -> Layer:
    """Read what makes the gates of a layer; before is what scales its input."""
    bias = sum(b.second for b in group[2:] if len(b.shape) == 1)
    return Layer(_norm(group[0]) * before, _norm(group[1]) * _norm(projection(group)), bias)


def _layers(flavour: str) -> Callable[..., tuple[Moments, ...]]:
    def run(*args: Any) -> tuple[Moments, ...]:
        x, call = args[0], Call.read(args)
        layers, scale = [], x.second
        for group, *_ in call.layers:
            layers.append(_layer(group, scale))
            scale = _norm(projection(group))
        made = simulated(call.stack(flavour, x), layers)
        width = group[1].shape[-1]
        out = Moments(made.mean, made.second, (*x.shape[:-1], width * call.directions), cross=made.pair)
        h = Moments(made.mean, max(made.mean**2, made.states[-1]), (1, width))
        cell = Moments(0.0, made.cells[-1], (1, width))
        return out.scaled(math.sqrt(scale)), h.scaled(math.sqrt(scale)), cell

    return run


for _flavour in FLAVOURS:
    builtin(_flavour, word=_flavour.replace("_", " "), weights=(2,))(_layers(_flavour))


def _cells(flavour: str) -> Callable[..., Any]:
    def run(x: Moments, hidden: Any, *group: Any) -> Any:
        given = [g for g in group if g is not None]
        before = hidden[0] if isinstance(hidden, (tuple, list)) else hidden
        made = simulated(Stack(flavour, LONGEST, alike(x)), [_layer(given, x.second)])
        second, cell = made.next(before.second)
        shape = (*x.shape[:-1], group[1].shape[-1])
        h = Moments(min(made.mean, math.sqrt(second)), second, shape)
        return (h, Moments(0.0, cell, shape)) if flavour == "lstm" else h

    return run


for _flavour in FLAVOURS:
    builtin(f"{_flavour}_cell", word=f"{_flavour} cell", weights=(2, 3))(_cells(_flavour))
