"""What a walk over a graph knows so far, and how ops read and write it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from unitvar.graph import Node, Value
from unitvar.propagate.given import actual, ancestors, by_row, given, realised
from unitvar.propagate.state import State
from unitvar.propagate.uses import Solver, followed
from unitvar.rules import Moments, Rule

__all__ = ["NONE", "Propagation", "Walk"]

NONE: Mapping[int, Moments] = {}  # no operand of an op replaced


@dataclass(eq=False, slots=True)
class Propagation:
    """What came out of it.

    ``states`` has the outcome of each value, ``seen`` what used each parameter that is no weight, ``biases`` the
    parameters added to the output of a weight op, by parameter of the weight, ``cut_off`` the weights that only
    constants reach: what they are computed from cannot be seen.
    """

    states: dict[int, State] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)
    biases: dict[str, list[str]] = field(default_factory=dict)
    unsupported: Counter[str] = field(default_factory=Counter)
    where: dict[str, str] = field(default_factory=dict)
    longest: tuple[int, float] = (0, 0.0)
    cut_off: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Walk:
    """The options of a walk, what it found, and what later ops need of earlier ones.

    Attributes:
        weighed: the parameter chosen for the weight op that made a value, by the value's identity.
        picks: parts taken of a value, by what took them.
    """

    solve: Solver
    zeroed: Callable[[str], bool]
    overrides: Mapping[str, Rule]
    backward: bool
    out: Propagation = field(default_factory=Propagation)
    weighed: dict[int, str] = field(default_factory=dict)
    picks: dict[tuple[Any, ...], list[State]] = field(default_factory=dict)
    _actual: dict[int, Moments] = field(default_factory=dict)

    def state(self, value: Value) -> State:
        """Give what is known of a value."""
        found = self.out.states.get(id(value))
        if found is None:
            found = self.out.states[id(value)] = given(value)
        return found

    def read(self, arg: Any) -> Any:
        """Give an argument with states for its values."""
        if isinstance(arg, Value):
            return self.state(arg)
        if isinstance(arg, tuple):
            return tuple(self.read(a) for a in arg)
        return arg

    def moments(self, arg: Any, replaced: Mapping[int, Moments] = NONE) -> Any:
        """Give an argument with moments for its values, or what replaces them."""
        if isinstance(arg, Value):
            if arg.dtype == torch.bool:  # a mask, whose rows count
                return self.state(arg).moments.like(seen=self.true(arg))
            return replaced[id(arg)] if id(arg) in replaced else self.state(arg).moments
        if isinstance(arg, tuple):
            return tuple(self.moments(a, replaced) for a in arg)
        return arg

    def level(self, arg: Any) -> float:
        """Give the mean of an argument that may be a number or a tensor."""
        return self.state(arg).moments.mean if isinstance(arg, Value) else float(arg)

    def true(self, mask: Any) -> tuple[float, ...]:
        """Give the share of a mask that is True, in each of its rows where they are known."""
        tensor = realised(mask) if isinstance(mask, Value) else None
        if tensor is None or tensor.is_meta or not tensor.numel():
            return (self.level(mask),)
        return by_row(tensor)

    def actual(self, value: Value) -> Moments:
        """Give the moments that a weight has now."""
        if id(value) not in self._actual:
            self._actual[id(value)] = actual(value)
        return self._actual[id(value)]

    def signal(self, node: Node) -> State | None:
        """Give the signal among an op's inputs whose path tells most; None if there is none."""
        signals = [self.state(v) for v in node.inputs if v.kind in ("input", "activation")]
        return max(signals, key=lambda s: s.rank, default=None)

    def put(self, node: Node, states: Sequence[State]) -> None:
        """Write the states of an op's outputs."""
        for output, state in zip((o for o in node.outputs if o is not None), states, strict=False):
            self.out.states[id(output)] = state

    def note(self, node: Node) -> None:
        """Note which parameters an op uses other than as weights."""
        for value in node.inputs:
            if value.kind in ("parameter", "derived"):
                self.note_use(value, node)

    def note_use(self, value: Value, node: Node) -> None:
        """Note that an op uses the parameters behind a value."""
        parameter = followed(value)
        for name in [parameter.name] if parameter is not None else ancestors(value):
            self.out.seen.setdefault(name, []).append(node.name)
