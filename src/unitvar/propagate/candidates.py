"""The weights of an op, with what reaches each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unitvar.graph import Node, Value
from unitvar.propagate.state import State
from unitvar.propagate.uses import Use, use_of
from unitvar.rules import Moments, Rule
from unitvar.rules.recurrence import FLAVOURS, LONGEST, SHARE, Stack, solved
from unitvar.rules.recurrent import Call, alike, projection

__all__ = ["LAYERS", "Candidate", "candidates", "recurrent"]

_CELLS = tuple(f"aten.{flavour}_cell" for flavour in FLAVOURS)
LAYERS = tuple(f"aten.{flavour}" for flavour in FLAVOURS)


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


def recurrent(node: Node) -> bool:
    """Say whether an op is a recurrence, of one step or many."""
    return node.name in LAYERS or node.name in _CELLS


def candidates(node: Node, rule: Rule, state: Callable[[Value], State]) -> Iterator[Candidate]:
    """Give every weight of an op."""
    if node.name in LAYERS:
        yield from _recurrent(node, state)
        return
    if node.name in _CELLS:
        yield from _cell(node, state)
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


def _cell(node: Node, state: Callable[[Value], State]) -> Iterator[Candidate]:
    flavour = node.name.removeprefix("aten.").removesuffix("_cell")
    x = state(node.args[0])
    (made,) = solved(Stack(flavour, LONGEST, alike(x.moments)), 1)  # a cell does not see how long its loop is
    for position, reaching in ((2, x), (3, _hidden(flavour, Moments(made.mean, made.second)))):
        use = use_of(node, position, node.args[position])
        if use is not None:
            yield Candidate(use, reaching, SHARE, reaching.moments.second)


def _recurrent(node: Node, state: Callable[[Value], State]) -> Iterator[Candidate]:
    """Walk the layers: what reaches each is the state of the one before it, after its dropout."""
    flavour = node.name.removeprefix("aten.")
    x, call = state(node.args[0]), Call.read(node.args)
    layers = call.layers
    for groups, made in zip(layers, solved(call.stack(flavour, x.moments), len(layers)), strict=True):
        raw = out = Moments(made.mean, made.second)
        for group in groups:
            weights = [(group[0], x, SHARE)]
            if projection(group) is not None:  # a projected state is made to have unit second moment
                weights.append((projection(group), _hidden(flavour, raw), 1.0))
                out = raw.scaled(made.second**-0.5)
            weights.append((group[1], _hidden(flavour, out), SHARE))
            for operand, reaching, share in weights:
                use = use_of(node, 2, operand)
                if use is not None:
                    yield Candidate(use, reaching, share, reaching.moments.second)
        x = _hidden(flavour, out.like(second=out.second / call.keep))


def _hidden(flavour: str, moments: Moments) -> State:
    return State(moments.like(shape=(1,)), words=(flavour.replace("_", " "),))
