"""What is known of all values of a graph, and what was met on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unitvar.graph import Node, Value
from unitvar.moments.known import Numbers
from unitvar.moments.rule import Call
from unitvar.moments.signal import Origin, Signal

__all__ = ["Propagation", "homed"]


@dataclass(eq=False, slots=True)
class Propagation:
    """What came out of it.

    Attributes:
        signals: ``id(value)`` → what is known of it.
        numbers: reads the values that depend on no input.
        seen: parameter → what used it, other than as a weight.
        biases: parameter of a weight → the parameters added to its output.
        unsupported: op → how often it was sampled.
        where: op → the module that ran it first.
        longest: the layers on the longest path without a norm, and chi along it.
        cut_off: weights that only constants reach: what they are computed from cannot be seen.
        standardised: weights whose scale the forward pass takes away.
        weights: ``id(value)`` → the moments of an operand that is a parameter, with the scale that was chosen.
        weighed: ``id(value)`` → the parameter chosen for the weight op that made it.
        mixed: how often something mixed what was taken for examples.
        uses: ``id(value)`` → how many ops use a parameter.
    """

    signals: dict[int, Signal] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=Numbers)
    seen: dict[str, list[str]] = field(default_factory=dict)
    biases: dict[str, list[str]] = field(default_factory=dict)
    unsupported: Counter[str] = field(default_factory=Counter)
    where: dict[str, str] = field(default_factory=dict)
    longest: tuple[int, float] = (0, 0.0)
    cut_off: set[str] = field(default_factory=set)
    standardised: set[str] = field(default_factory=set)
    weights: dict[int, Signal] = field(default_factory=dict)
    weighed: dict[int, str] = field(default_factory=dict)
    mixed: int = 0
    uses: Counter[int] = field(default_factory=Counter)

    @property
    def leaving(self) -> dict[str, list[Signal]]:
        """Give, for each parameter whose scale was chosen, what leaves its weight ops."""
        found: dict[str, list[Signal]] = {}
        for value, name in self.weighed.items():
            found.setdefault(name, []).append(self.signals[value])
        return found

    def signal(self, value: Value) -> Signal:
        """Return what is known of a value."""
        found = self.signals.get(id(value))
        if found is None:
            found = self.signals[id(value)] = homed(self.numbers.signal(value), value, 1.0)
        return found

    def read(self, arg: Any, replaced: Mapping[int, Signal] | None = None) -> Any:
        """Return an argument with signals for its values, or with what replaces them."""
        if isinstance(arg, Value):
            return replaced[id(arg)] if replaced and id(arg) in replaced else self.signal(arg)
        if isinstance(arg, (tuple, list)):
            return tuple(self.read(a, replaced) for a in arg)
        return arg

    def repeats(self, node: Node) -> int:
        """Return how many ops use the same parameters, as the steps of a loop do."""
        return max((self.uses[id(v)] for v in node.inputs if v.kind == "parameter"), default=0) or 1

    def call(self, node: Node, replaced: Mapping[int, Signal] | None = None) -> Call:
        """Describe the call of an op."""
        shapes = tuple(o.shape for o in node.outputs if o is not None)
        args = tuple(self.read(a, replaced) for a in node.args)
        return Call(node.op, args, node.args, shapes, self.numbers, self.repeats(node))


def homed(signal: Signal, value: Value, chi: float) -> Signal:
    """Give a signal a home, if it has none yet: the value whose elements it describes."""
    return signal if signal.origin is not None else signal.but(origin=Origin(value, chi))
