"""Recurrences, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unitvar.expectation.ops.activations import relu, smooth
from unitvar.expectation.ops.affine import mul
from unitvar.expectation.ops.noise import dropout
from unitvar.expectation.ops.table import register
from unitvar.expectation.ops.views import moved
from unitvar.expectation.uncertain import Uncertain, mean_of, var_of, wide


class _Weights(NamedTuple):
    """The weights of one layer in one direction, and the squares of those that every step needs."""

    inputs: Tensor
    hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None
    square: Tensor


Step = Callable[[Any, tuple[Any, ...], _Weights], tuple[Any, ...]]


def _prepared(
    inputs: Tensor, hidden: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> _Weights:
    return _Weights(inputs, hidden, input_bias, hidden_bias, wide(hidden).square())


def _lstm_weights(*parameters: Tensor | None) -> _Weights:
    """Double what makes the cell's new content: tanh x = 2 σ(2x) - 1, so one call of σ serves all four parts."""
    size = mean_of(parameters[0]).shape[0] // 4
    return _prepared(*(None if w is None else torch.cat([w[: 2 * size], 2 * w[2 * size : 3 * size], w[3 * size :]])
                       for w in parameters))  # type: ignore[arg-type]  # fmt: skip


def _affine(x: Any, weight: Tensor, bias: Tensor | None, square: Tensor | None = None) -> Any:
    mean = F.linear(mean_of(x), weight, bias)
    if not isinstance(x, Uncertain):
        return mean
    return Uncertain(mean, F.linear(x.var, wide(weight).square() if square is None else square))


def _past(hidden: Any, weights: _Weights) -> Any:
    return _affine(hidden, weights.hidden, weights.hidden_bias, weights.square)


def _plus(x: Any, y: Any) -> Any:
    if not isinstance(x, Uncertain) and not isinstance(y, Uncertain):
        return x + y
    variances = [t.var for t in (x, y) if isinstance(t, Uncertain)]
    return Uncertain(mean_of(x) + mean_of(y), sum(variances[1:], variances[0]))


def _times(x: Any, y: Any) -> Any:
    return mul(None, x, y) if isinstance(x, Uncertain) or isinstance(y, Uncertain) else x * y


def _sigmoid(x: Any) -> Any:
    return smooth(torch.sigmoid, x) if isinstance(x, Uncertain) else torch.sigmoid(x)


def _relu(x: Any) -> Any:
    return relu(None, x) if isinstance(x, Uncertain) else torch.relu(x)


def _scaled(x: Any, scale: float, shift: float = 0.0) -> Any:
    return Uncertain(scale * x.mean + shift, scale**2 * x.var) if isinstance(x, Uncertain) else scale * x + shift


def _tanh(x: Any) -> Any:
    """Apply tanh by way of the logistic function, which takes a processor an eighth of the time."""
    return _scaled(_sigmoid(_scaled(x, 2.0)), 2.0, -1.0) if isinstance(x, Uncertain) else torch.tanh(x)


def _parts(x: Any, n: int) -> tuple[Any, ...]:
    if isinstance(x, Uncertain):
        pairs = zip(x.mean.chunk(n, -1), x.var.chunk(n, -1), strict=True)
        return tuple(Uncertain(m, v) for m, v in pairs)
    return tuple(x.chunk(n, -1))


def _at(x: Any, i: Any) -> Any:
    return Uncertain(x.mean[i], x.var[i]) if isinstance(x, Uncertain) else x[i]


def _lstm(x: Any, state: tuple[Any, ...], weights: _Weights) -> tuple[Any, ...]:
    hidden, cell = state
    i, f, g, o = _parts(_sigmoid(_plus(x, _past(hidden, weights))), 4)
    cell = _plus(_times(f, cell), _times(i, _scaled(g, 2.0, -1.0)))
    return _times(o, _tanh(cell)), cell


def _gru(x: Any, state: tuple[Any, ...], weights: _Weights) -> tuple[Any, ...]:
    (hidden,) = state
    *own, new = _parts(x, 3)
    *gates, past = _parts(_past(hidden, weights), 3)
    r, z = (_sigmoid(_plus(a, b)) for a, b in zip(own, gates, strict=True))
    n = _tanh(_plus(new, _times(r, past)))
    return (_plus(_times(_scaled(z, -1.0, 1.0), n), _times(z, hidden)),)


def _simple(function: Any) -> Step:
    def step(x: Any, state: tuple[Any, ...], weights: _Weights) -> tuple[Any, ...]:
        return (function(_plus(x, _past(state[0], weights))),)

    return step


def _run(
    op: Any, step: Step, prepared: Callable[..., _Weights], x: Any, states: tuple[Any, ...], params: Any, biases: bool,
    layers: int, p: float, train: bool, both_ways: bool, batch_first: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Run layers one after another, and each of them step by step; means of products are those of independent gates.

    A layer that no noise has reached runs as a whole, by the op itself.
    """
    if batch_first:
        x = moved(torch.Tensor.transpose, x, 0, 1) if isinstance(x, Uncertain) else x.transpose(0, 1)
    each, ways = (4 if biases else 2), (2 if both_ways else 1)
    finals: list[tuple[Any, ...]] = []
    for layer in range(layers):
        at = slice(layer * ways, (layer + 1) * ways)
        own, first = params[at.start * each : at.stop * each], tuple(_at(s, at) for s in states)
        if not any(isinstance(t, Uncertain) for t in (x, *first)):
            start = first if len(first) > 1 else first[0]
            x, *last = op(x, start, own, biases, 1, 0.0, False, both_ways, False)
            finals += zip(*last, strict=True)
        else:
            outs = []
            for way in range(ways):
                weights = prepared(*own[way * each : (way + 1) * each])
                out, state = _stepped(step, x, tuple(_at(s, way) for s in first), weights, backwards=way == 1)
                outs.append(out)
                finals.append(state)
            x = outs[0] if ways == 1 else _joined(outs)
        if train and p > 0 and layer < layers - 1:
            x = dropout(None, x, p)
    if batch_first:
        x = moved(torch.Tensor.transpose, x, 0, 1) if isinstance(x, Uncertain) else x.transpose(0, 1)
    return (x, *(_stacked([final[i] for final in finals]) for i in range(len(states))))


def _stepped(
    step: Step, x: Any, state: tuple[Any, ...], weights: _Weights, *, backwards: bool
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    """Run one layer in one direction; return what it gives at each step, and the last state."""
    inputs = _affine(x, weights.inputs, weights.input_bias)
    steps = range(mean_of(x).shape[0])
    found = []
    for t in reversed(steps) if backwards else steps:
        state = step(_at(inputs, t), state, weights)
        found.append(state[0])
    return _stacked(found[::-1] if backwards else found), state


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
    return _run(op, _lstm, _lstm_weights, x, tuple(hidden), params, *rest)


@register("gru.input", method="quadrature", noise=_drops, takes=_plain)
def gru(op: Any, x: Any, hidden: Any, params: Any, *rest: Any) -> tuple[Any, ...]:
    """Run a GRU."""
    return _run(op, _gru, _prepared, x, (hidden,), params, *rest)


@register("rnn_tanh.input", method="quadrature", noise=_drops, takes=_plain)
def rnn_tanh(op: Any, x: Any, hidden: Any, params: Any, *rest: Any) -> tuple[Any, ...]:
    """Run a recurrence of tanh."""
    return _run(op, _simple(_tanh), _prepared, x, (hidden,), params, *rest)


@register("rnn_relu.input", method="closed form", noise=_drops, takes=_plain)
def rnn_relu(op: Any, x: Any, hidden: Any, params: Any, *rest: Any) -> tuple[Any, ...]:
    """Run a recurrence of ReLUs."""
    return _run(op, _simple(_relu), _prepared, x, (hidden,), params, *rest)


@register("lstm_cell", method="quadrature")
def lstm_cell(
    op: Any, x: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> tuple[Any, ...]:
    """Run one step of an LSTM."""
    weights = _lstm_weights(w_ih, w_hh, b_ih, b_hh)
    return _lstm(_affine(x, weights.inputs, weights.input_bias), tuple(hidden), weights)


@register("gru_cell", method="quadrature")
def gru_cell(op: Any, x: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Run one step of a GRU."""
    return _gru(_affine(x, w_ih, b_ih), (hidden,), _prepared(w_ih, w_hh, b_ih, b_hh))[0]
