"""The weights of an op, with what reaches each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from unitvar.propagate.state import State
from unitvar.propagate.uses import Use, use_of
from unitvar.rules import Moments, Rule
from unitvar.rules.recurrent import FLAVOURS, recurrence
from unitvar.trace import Node, Value

__all__ = ["Candidate", "candidates"]

_CELLS = tuple(f"aten.{flavour}_cell" for flavour in FLAVOURS)
_LAYERS = tuple(f"aten.{flavour}" for flavour in FLAVOURS)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A weight of an op.

    Attributes:
        use: how the op uses it.
        x: the state that reaches it.
        share: the part of z's variance that it is to make.
        second: E z² that a row of unit norm gives, where the op's rule does not tell.
    """

    use: Use
    x: State
    share: float = 1.0
    second: float | None = None


def candidates(node: Node, rule: Rule, state: Callable[[Value], State]) -> Iterator[Candidate]:
    """Give every weight of an op."""
    if node.name in _LAYERS:
        yield from _recurrent(node, state)
        return
    if node.name in _CELLS:
        flavour = node.name.removeprefix("aten.").removesuffix("_cell")
        mean, _, second, _ = recurrence(flavour, 64)
        h = State(Moments(mean, second, (1,)), words=(flavour.replace("_", " "),))
        for position, x in ((2, state(node.args[0])), (3, h)):
            use = use_of(node, position, node.args[position])
            if use is not None:
                yield Candidate(use, x, 0.5, x.moments.second)
        return
    for position in rule.weights:
        arg = node.args[position] if position < len(node.args) else None
        operands = arg if isinstance(arg, tuple) else (arg,)
        for operand in operands:
            if not isinstance(operand, Value) or operand.kind not in ("parameter", "derived"):
                continue
            signals = [v for v in node.inputs if v is not operand and v.kind in ("input", "activation")]
            use = use_of(node, position, operand)
            if use is None or not signals:
                continue
            yield Candidate(use, max((state(s) for s in signals), key=lambda s: s.rank))


def _recurrent(node: Node, state: Callable[[Value], State]) -> Iterator[Candidate]:
    """Walk the flat list of weights: for each layer and direction w_ih, w_hh, and biases or projections."""
    flavour = node.name.removeprefix("aten.")
    weights = [a for a in node.args if isinstance(a, tuple) and a and all(isinstance(v, Value) for v in a)]
    flat: tuple[Any, ...] = max(weights, key=len, default=())
    x = state(node.args[0])
    batch_first = bool(node.args[-1]) if isinstance(node.args[-1], bool) else False
    steps = x.shape[1 if batch_first else 0] if len(x.shape) == 3 else 16
    mean, second, *_ = recurrence(flavour, int(steps))
    h = State(Moments(mean, second, (1,)), words=(flavour.replace("_", " "),))
    numbers = [a for a in node.args if isinstance(a, (int, float, bool))]
    both = len(numbers) > 4 and bool(numbers[4])
    dropout = float(numbers[2]) if len(numbers) > 3 and numbers[3] else 0.0
    matrices = [v for v in flat if len(v.shape) == 2]
    each = 4 if both else 2
    for i, operand in enumerate(matrices):
        use = use_of(node, 2, operand)
        if use is None:
            continue
        reaching = h
        if i % 2 == 0:
            reaching = x
            if i >= each:  # the layer below, after its dropout
                reaching = State(Moments(mean, second / (1 - dropout), (1,)), words=h.words)
        yield Candidate(use, reaching, 0.5, reaching.moments.second)
