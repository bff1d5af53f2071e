"""LSTM, GRU and plain recurrences, as layers and as cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from unitvar.moments.correlation import Correlation
from unitvar.moments.ops.recurrence import FLAVOURS, LONGEST, Layer, Recurrence, Stack, simulated, solved
from unitvar.moments.rule import Call, builtin
from unitvar.moments.signal import Path, Signal

__all__ = ["Reaching"]


_LARGE = 1.5
_STATES = ("lstm", "gru", "lstm cell", "gru cell")  # which are small: their gates are amplified only half-way


class Reaching(NamedTuple):
    """What reaches a weight of a recurrence, whose op shows no pre-activation.

    Attributes:
        operand: the weight, as recorded.
        x: the signal that reaches it.
        share: the E z² of a gate that it is to make.
    """

    operand: Any
    x: Signal
    share: float


def _shared(x: Signal, kind: str = "positions") -> float:
    """Return the correlation that a weight gives its outputs for a kind of pair, such as two steps."""
    return min(1.0, max(0.0, x.pair(kind) / x.second)) if x.second > 0 else 0.0


def _below(x: Signal) -> float:
    """Return E x² before dropout if x is the state of a gated recurrence, else 0."""
    first, *rest = x.path.words or ("",)
    return x.second * x.path.keep if first in _STATES and all(word.startswith("dropout") for word in rest) else 0.0


@dataclass(frozen=True, slots=True)
class Stacked:
    """The arguments of a recurrent op, read: with a batch of sequences, or with a packed one.

    Attributes:
        groups: the tensors of each layer, in one direction and then the other: w_ih, w_hh, biases, projection.
        directions: 1 or 2.
        steps: how long the sequences are.
        keep: the keep rate between layers.
        time_first: whether the first dimension counts steps.
        start: the states that it starts from, h and then c, one on the other over layers and directions.
    """

    groups: tuple[tuple[Any, ...], ...]
    directions: int
    steps: int
    keep: float
    time_first: bool
    start: tuple[Any, ...]

    @classmethod
    def read(cls, args: Sequence[Any]) -> Stacked:
        """Read arguments in schema order; the weights are the last list among them."""
        at = max(i for i, a in enumerate(args) if isinstance(a, (tuple, list)))
        _, layers, dropout, train, both, *batch_first = args[at + 1 :]
        shape = args[0].shape
        long = 1 if any(batch_first) and len(shape) == 3 else 0
        steps = args[1].shape[0] if at == 3 else shape[long]  # packed: data, batch sizes, state, weights
        directions = 2 if both else 1
        size = len(args[at]) // (layers * directions)
        groups = tuple(tuple(args[at][i * size : (i + 1) * size]) for i in range(layers * directions))
        start = args[at - 1] if isinstance(args[at - 1], (tuple, list)) else (args[at - 1],)
        return cls(groups, directions, int(steps), 1.0 - float(dropout) if train else 1.0, not long, tuple(start))

    @property
    def layers(self) -> list[tuple[tuple[Any, ...], ...]]:
        """Return the groups of each layer, one for each direction."""
        return [self.groups[i : i + self.directions] for i in range(0, len(self.groups), self.directions)]

    def stack(self, flavour: str, x: Signal) -> Stack:
        """Describe the stack to simulate."""
        return Stack(flavour, self.steps, _shared(x), self.directions, self.keep, _below(x))


def _starting(states: Sequence[Signal], projected: float = 1.0) -> tuple[float, float]:
    """Return E h², before a projection by rows of this squared norm, and E c², which only an LSTM has, at the start."""
    h, *c = (state.second for state in states)
    return h / max(projected, 1e-12), c[0] if c else 0.0


def _begun(state: Signal) -> float:
    """Return what the states of two examples have in common at the start; of an input, layers look like examples."""
    pair = state.pair("positions" if state.axes == "bpf" else "examples")
    return min(1.0, max(0.0, pair / state.second)) if state.second > 0 else 0.0


def _projection(group: Sequence[Any]) -> Any:
    """Return the weight that projects the state of a layer, None if there is none."""
    return group[-1] if len(group) % 2 else None


def _norm(weight: Signal | None) -> float:
    """Return the squared norm of a row."""
    return 1.0 if weight is None else weight.shape[-1] * weight.second


def _layer(group: Sequence[Signal], before: float) -> Layer:
    """Read what makes the gates of a layer; before is what scales its input."""
    bias = sum(b.second for b in group[2:] if len(b.shape) == 1)
    return Layer(_norm(group[0]) * before, _norm(group[1]) * _norm(_projection(group)), bias)


def _hidden(flavour: str, mean: float, second: float) -> Signal:
    return Signal(mean, second, (1,), path=Path((flavour.replace("_", " "),)))


def _dropped(out: Signal, keep: float) -> Signal:
    """Describe what dropout between layers leaves."""
    return out.like(second=out.second / keep) if keep else out.like(mean=0.0, second=0.0)


def _steps_of(out: Signal, states: Sequence[float], time_first: bool, both: bool) -> tuple[Signal, ...]:
    """Describe each step: a state grows from zero. A long sequence ends as it has become."""
    if len(out.shape) != 3:
        return ()
    steps = out.shape[0 if time_first else 1]
    shape = (1, *out.shape[1:]) if time_first else (out.shape[0], 1, out.shape[2])
    each = [*states, *(states[-1],) * steps][:steps]
    if both:  # the other direction starts at the last step
        each = [(a + b) / 2 for a, b in zip(each, reversed(each), strict=True)]
    return tuple(out.like(second=max(out.mean**2, s), shape=shape) for s in each)


def _last(out: Signal, layers: Sequence[Recurrence], seconds: Sequence[float], width: int) -> Signal:
    """Describe the last states of all layers and directions, one on the other, by what the last layer puts out."""
    whole = max(out.mean**2, sum(seconds) / len(seconds))
    if len(out.shape) != 3:
        return out.like(second=whole, shape=(1, width), axes="bf")
    shape = (1, out.shape[out.axes.index("b")], width)
    # Layers have weights of their own, as features have.
    parts = tuple(
        out.like(second=max(out.mean**2, s), shape=shape, axes="fbf", correlation=_correlation(out, layer))
        for layer, s in zip(layers, seconds, strict=True)
    )
    return out.like(second=whole, shape=(len(seconds), *shape[1:]), axes="fbf", parts=parts, joined=0)


def _correlation(x: Signal, made: Recurrence) -> Correlation:
    """Return what other examples and other masks share of a layer, and its steps of each other."""
    examples, masks = made.shared
    return x.correlations.with_positions(_of_steps(made))._replace(examples=examples, masks=masks)


def _of_steps(made: Recurrence) -> float:
    """Return the correlation of a state at two steps."""
    var = max(1e-300, made.second - made.mean**2)
    return max(-1.0, min(1.0, (made.pair - made.mean**2) / var))


def _scaled(x: Signal, factor: float) -> Signal:
    return x.scaled(factor, parts=tuple(part.scaled(factor) for part in x.parts))


def _stacked(flavour: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(*args: Any) -> tuple[Signal, ...]:
        x, call = args[0], Stacked.read(args)
        layers, scale = [], x.second
        for group, *_ in call.layers:
            layers.append(_layer(group, scale))
            scale = _norm(_projection(group))
        others = _shared(x, "examples"), _shared(x, "masks")
        begun = _begun(call.start[0]), _shared(call.start[0], "masks")
        start = _starting(call.start, _norm(_projection(call.layers[0][0])))
        every = simulated(call.stack(flavour, x)._replace(others=others, start=start, begun=begun), layers)
        made, width = every[-1], group[1].shape[-1]
        axes = ("pbf" if call.time_first else "bpf") if len(x.shape) == 3 else "pf" if len(x.shape) == 2 else x.axes
        out = x.like(mean=made.mean, second=made.second, shape=(*x.shape[:-1], width * call.directions), axes=axes,
                     correlation=_correlation(x, made), profile=None)  # fmt: skip
        ends = [layer for layer in every for _ in range(call.directions)]
        h = _last(out, ends, [layer.states[-1] for layer in ends], width)
        cell = _last(out.like(mean=0.0), ends, [layer.cells[-1] for layer in ends], width)
        steps = _steps_of(out, made.states, call.time_first, call.directions > 1)
        return (
            _scaled(out.like(parts=steps, joined=0 if call.time_first else 1), math.sqrt(scale)),
            _scaled(h, math.sqrt(scale)),
            cell,
        )

    def actual(x: Signal, args: Sequence[Any], read: Callable[[Any], Signal]) -> Iterator[Reaching]:
        """Walk the layers with the weights that they have, from the states that are given as signals."""
        call = Stacked.read(args)
        projection = _projection(call.layers[0][0])
        start = _starting(call.start, _norm(None if projection is None else read(projection)))
        stack, before, scale = call.stack(flavour, x)._replace(start=start), [], x.second
        for groups in call.layers:
            known = [read(w) for w in groups[0]]
            before.append(_layer(known, scale))
            made = simulated(stack, before)[-1]
            scale = _norm(_projection(known))
            states = (start[0] + sum(made.states[:-1])) / len(made.states)
            for group in groups:
                yield Reaching(group[0], x, 1.0)
                if _projection(group) is not None:
                    yield Reaching(_projection(group), _hidden(flavour, made.mean, made.second), 1.0)
                yield Reaching(group[1], _hidden(flavour, 0.0, states * scale), 1.0)
            x = _dropped(_hidden(flavour, 0.0, made.second * scale), call.keep)

    def recurrent(
        x: Signal, args: Sequence[Any], read: Callable[[Any], Signal] | None = None, repeats: int = 1
    ) -> Iterator[Reaching]:
        """Walk the layers: what reaches each is the state of the one before it, after its dropout."""
        if read is not None:
            yield from actual(x, args, read)
            return
        call = Stacked.read(args)
        layers = call.layers
        for groups, made in zip(layers, solved(call.stack(flavour, x), len(layers)), strict=True):
            raw = out = _hidden(flavour, made.mean, made.second)
            for group in groups:
                weights = [(group[0], x, made.from_input)]
                if _projection(group) is not None:  # a projected state is made to have unit second moment
                    weights.append((_projection(group), raw, 1.0))
                    out = raw.scaled(made.second**-0.5)
                weights.append((group[1], out, made.second))  # as much as the state has
                yield from (Reaching(*weight) for weight in weights)
            x = _dropped(out, call.keep)

    return forward, recurrent


def _loop(repeats: int) -> int:
    """Return how many steps a cell makes. One that is called once gets its state from outside, at any step."""
    return repeats if repeats > 1 else LONGEST


def _cell(flavour: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(call: Call) -> Any:
        x, hidden, *group = call.args
        weights = [g for g in group if g is not None]
        before = hidden[0] if isinstance(hidden, (tuple, list)) else hidden
        stack, layer = Stack(flavour, _loop(call.repeats), _shared(x)), _layer(weights, x.second)
        (made,) = simulated(stack, [layer])
        second, cell = made.next(before.second)
        if before.second > _LARGE * max(made.states):  # no state that a start at zero leads to
            start = _starting(hidden if isinstance(hidden, (tuple, list)) else (hidden,))
            (once,) = simulated(stack._replace(steps=1, start=start), [layer])
            second, cell = once.states[0], once.cells[0]
        shape = (*x.shape[:-1], group[1].shape[-1])
        # Its steps are positions that no tensor of the loop has: a cell above gets them one by one.
        h = x.like(mean=min(made.mean, math.sqrt(second)), second=second, shape=shape,
                   correlation=x.correlations.with_positions(_of_steps(made)))  # fmt: skip
        return (h, x.like(mean=0.0, second=cell, shape=shape)) if flavour == "lstm" else h

    def recurrent(x: Signal, args: Sequence[Any], read: Any = None, repeats: int = 1) -> Iterator[Reaching]:
        (made,) = solved(Stack(flavour, _loop(repeats), _shared(x), below=_below(x)), 1)
        yield Reaching(args[2], x, made.from_input)
        yield Reaching(args[3], _hidden(flavour, made.mean, made.second), made.second)

    return forward, recurrent


def _steps(*args: Any) -> str:
    x = args[0]
    return x.axes[0 if Stacked.read(args).time_first else 1] if len(x.shape) == 3 else ""


for _flavour in FLAVOURS:
    _forward, _recurrent = _stacked(_flavour)
    builtin(_flavour, word=_flavour.replace("_", " "), weights=(2,), recurrent=_recurrent, mixes=_steps)(_forward)
    _forward, _recurrent = _cell(_flavour)
    builtin(f"{_flavour}_cell", word=f"{_flavour} cell", weights=(2, 3), recurrent=_recurrent, call=True)(_forward)
