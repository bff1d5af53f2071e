"""Recurrences, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unitvar.expectation.ops.activations import relu, smooth
from unitvar.expectation.ops.affine import mul
from unitvar.expectation.ops.linear import linear
from unitvar.expectation.ops.noise import dropout
from unitvar.expectation.ops.table import register
from unitvar.expectation.ops.views import moved
from unitvar.expectation.uncertain import Uncertain, mean_of, var_of

Step = Callable[[Any, tuple[Any, ...], list[Any]], tuple[Any, ...]]


def _affine(x: Any, weight: Tensor, bias: Tensor | None) -> Any:
    if isinstance(x, Uncertain):
        return linear(None, Uncertain(x.mean, x.var), weight, bias)._replace(sources=())
    return torch.nn.functional.linear(x, weight, bias)


def _plus(x: Any, y: Any) -> Any:
    if isinstance(x, Uncertain) or isinstance(y, Uncertain):
        return Uncertain(mean_of(x) + mean_of(y), var_of(x) + var_of(y))
    return x + y


def _times(x: Any, y: Any) -> Any:
    return mul(None, x, y) if isinstance(x, Uncertain) or isinstance(y, Uncertain) else x * y


def _apply(function: Any, x: Any) -> Any:
    if not isinstance(x, Uncertain):
        return function(x)
    return relu(None, x) if function is torch.relu else smooth(function, x)


def _parts(x: Any, n: int) -> tuple[Any, ...]:
    if isinstance(x, Uncertain):
        pairs = zip(x.mean.chunk(n, -1), x.var.chunk(n, -1), strict=True)
        return tuple(Uncertain(m, v) for m, v in pairs)
    return tuple(x.chunk(n, -1))


def _at(x: Any, i: int) -> Any:
    return Uncertain(x.mean[i], x.var[i]) if isinstance(x, Uncertain) else x[i]


def _lstm(x: Any, state: tuple[Any, ...], weights: list[Any]) -> tuple[Any, ...]:
    hidden, cell = state
    i, f, g, o = _parts(_plus(x, _affine(hidden, weights[1], weights[3])), 4)
    i, f, o = (_apply(torch.sigmoid, gate) for gate in (i, f, o))
    cell = _plus(_times(f, cell), _times(i, _apply(torch.tanh, g)))
    return _times(o, _apply(torch.tanh, cell)), cell


def _gru(x: Any, state: tuple[Any, ...], weights: list[Any]) -> tuple[Any, ...]:
    (hidden,) = state
    own = _parts(x, 3)
    past = _parts(_affine(hidden, weights[1], weights[3]), 3)
    r, z = (_apply(torch.sigmoid, _plus(a, b)) for a, b in zip(own[:2], past[:2], strict=True))
    n = _apply(torch.tanh, _plus(own[2], _times(r, past[2])))
    rest = Uncertain(1 - z.mean, z.var) if isinstance(z, Uncertain) else 1 - z
    return (_plus(_times(rest, n), _times(z, hidden)),)


def _simple(function: Any) -> Step:
    def step(x: Any, state: tuple[Any, ...], weights: list[Any]) -> tuple[Any, ...]:
        return (_apply(function, _plus(x, _affine(state[0], weights[1], weights[3]))),)

    return step


def _run(
    step: Step, x: Any, states: tuple[Any, ...], params: Any, biases: bool, layers: int, p: float, train: bool,
    both_ways: bool, batch_first: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Run layers one after another, and each of them step by step; means of products are those of independent gates."""
    if batch_first:
        x = moved(torch.Tensor.transpose, x, 0, 1) if isinstance(x, Uncertain) else x.transpose(0, 1)
    each, ways = (4 if biases else 2), (2 if both_ways else 1)
    finals: list[tuple[Any, ...]] = []
    for layer in range(layers):
        outs = []
        for way in range(ways):
            index = layer * ways + way
            weights = list(params[index * each : (index + 1) * each])
            weights += [None] * (4 - len(weights))
            state = tuple(_at(s, index) for s in states)
            inputs = _affine(x, weights[0], weights[2])
            steps = range(mean_of(x).shape[0])
            found = []
            for t in reversed(steps) if way else steps:
                state = step(_at(inputs, t), state, weights)
                found.append(state[0])
            outs.append(_stacked(found[::-1] if way else found))
            finals.append(state)
        x = outs[0] if ways == 1 else _joined(outs)
        if train and p > 0 and layer < layers - 1:
            x = dropout(None, x, p)
    if batch_first:
        x = moved(torch.Tensor.transpose, x, 0, 1) if isinstance(x, Uncertain) else x.transpose(0, 1)
    return (x, *(_stacked([final[i] for final in finals]) for i in range(len(states))))


def _stacked(items: list[Any]) -> Any:
    if any(isinstance(t, Uncertain) for t in items):
        return Uncertain(torch.stack([mean_of(t) for t in items]), torch.stack([var_of(t) for t in items]))
    return torch.stack(items)


def _joined(items: list[Any]) -> Any:
    if any(isinstance(t, Uncertain) for t in items):
        return Uncertain(torch.cat([mean_of(t) for t in items], -1), torch.cat([var_of(t) for t in items], -1))
    return torch.cat(items, -1)


def _drops(x: Any, hidden: Any, params: Any, biases: bool, layers: int, p: float, train: bool, *rest: Any) -> bool:
    return bool(train) and p > 0 and layers > 1


def _plain(
    x: Any, hidden: Any, params: Any, biases: bool, layers: int, p: float = 0.0, train: bool = False,
    both_ways: bool = False, *rest: Any,
) -> bool:  # fmt: skip
    """Return True if no projection follows the hidden state, and no weight is uncertain."""
    each = layers * (2 if both_ways else 1) * (4 if biases else 2)
    return len(params) == each and not any(isinstance(w, Uncertain) for w in params)


@register("lstm.input", method="quadrature", noise=_drops, takes=_plain)
def lstm(op: Any, x: Any, hidden: Any, params: Any, *rest: Any) -> tuple[Any, ...]:
    """Run an LSTM."""
    return _run(_lstm, x, tuple(hidden), params, *rest)


@register("gru.input", method="quadrature", noise=_drops, takes=_plain)
def gru(op: Any, x: Any, hidden: Any, params: Any, *rest: Any) -> tuple[Any, ...]:
    """Run a GRU."""
    return _run(_gru, x, (hidden,), params, *rest)


@register("rnn_tanh.input", method="quadrature", noise=_drops, takes=_plain)
def rnn_tanh(op: Any, x: Any, hidden: Any, params: Any, *rest: Any) -> tuple[Any, ...]:
    """Run a recurrence of tanh."""
    return _run(_simple(torch.tanh), x, (hidden,), params, *rest)


@register("rnn_relu.input", method="closed form", noise=_drops, takes=_plain)
def rnn_relu(op: Any, x: Any, hidden: Any, params: Any, *rest: Any) -> tuple[Any, ...]:
    """Run a recurrence of ReLUs."""
    return _run(_simple(torch.relu), x, (hidden,), params, *rest)


@register("lstm_cell", method="quadrature")
def lstm_cell(
    op: Any, x: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> tuple[Any, ...]:
    """Run one step of an LSTM."""
    return _lstm(_affine(x, w_ih, b_ih), tuple(hidden), [w_ih, w_hh, b_ih, b_hh])


@register("gru_cell", method="quadrature")
def gru_cell(op: Any, x: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Run one step of a GRU."""
    return _gru(_affine(x, w_ih, b_ih), (hidden,), [w_ih, w_hh, b_ih, b_hh])[0]
