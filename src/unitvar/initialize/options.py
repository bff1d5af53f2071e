"""The options of a plan, checked once."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from unitvar.graph import Graph, Value
from unitvar.init import MODES
from unitvar.rules import Moments, Rule
from unitvar.rules.registry import RULES, check_name

__all__ = ["DISTRIBUTIONS", "METHODS", "Options", "Overrides"]

DISTRIBUTIONS = ("sphere", "orthonormal", "normal", "uniform")
METHODS = ("analytic", "measured")
INPUTS = ("standard", "measured")


Override = Callable[..., Any] | tuple[Callable[..., Any], Callable[..., Any]]
Overrides = Mapping[str, Override]


def _pair(given: Override) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) and len(given) == 2 else (given,)


@dataclass(frozen=True)
class Options:
    """Hold what :func:`unitvar.plan` takes by keyword."""

    mode: str
    distribution: str
    only: str | Sequence[str] | None
    inputs: Any
    rules: Overrides | None
    strict: bool
    method: str = "analytic"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("mode", self.mode, MODES),
            ("distribution", self.distribution, DISTRIBUTIONS),
            ("method", self.method, METHODS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}.")
        if isinstance(self.inputs, str) and self.inputs not in INPUTS:
            raise ValueError(f"inputs={self.inputs!r} is not 'standard', 'measured', (mean, std) or a list of those.")
        if self.only is not None and not (
            isinstance(self.only, str)
            or (isinstance(self.only, Sequence) and all(isinstance(p, str) for p in self.only))
        ):
            raise TypeError(f"only={self.only!r} is not a shell pattern on parameter names, nor a list of them.")
        if self.rules is not None and not isinstance(self.rules, Mapping):
            raise TypeError(f"rules={self.rules!r} is not a dict of op name → rule, like {{'aten.max_pool2d': f}}.")
        for name, given in (self.rules or {}).items():
            check_name(name)
            if not all(map(callable, _pair(given))):
                raise TypeError(
                    f"rules[{name!r}]={given!r} is not a function of the op's arguments, nor a pair of them: forward, "
                    "backward."
                )

    @property
    def overrides(self) -> dict[str, Rule]:
        """Give the rules of this call, each with what else is known of its op."""
        made = {}
        for name, given in (self.rules or {}).items():
            known = RULES.get(name) or RULES.get(name.rpartition(".")[0]) or Rule(lambda *_: None)
            function, backward = (*_pair(given), known.backward)[:2]
            made[name] = Rule(function, backward, known.word, known.weights, known.resets)
        return made

    @property
    def patterns(self) -> tuple[str, ...]:
        """Give the patterns of ``only``."""
        return () if self.only is None else (self.only,) if isinstance(self.only, str) else tuple(self.only)

    def selects(self, name: str) -> bool:
        """Say whether a parameter may be touched."""
        return self.only is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)

    def check_patterns(self, model: nn.Module) -> None:
        """Refuse patterns that match nothing: they are misspelt."""
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        for pattern in self.patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                some = ", ".join(map(repr, names[:5]))
                raise ValueError(
                    f"only={pattern!r} matches no parameter; names are those of named_parameters(): {some}"
                    f"{', …' if len(names) > 5 else ''}."
                )

    def input_moments(self, graph: Graph) -> list[Moments]:
        """Give the moments of each input of a graph."""
        floats = [v for v in graph.inputs if v.dtype.is_floating_point]
        if isinstance(self.inputs, str):
            pairs: list[Any] = [None] * len(floats)
        elif isinstance(self.inputs, list):
            pairs = self.inputs
            if len(pairs) != len(floats):
                raise ValueError(
                    f"inputs has {len(pairs)} pairs, but the example has {len(floats)} floating-point tensors; "
                    "give one (mean, std) for each."
                )
        else:
            pairs = [self.inputs] * len(floats)
        given = dict(zip(map(id, floats), pairs, strict=True))
        return [self._one(value, given.get(id(value))) for value in graph.inputs]

    def _one(self, value: Value, pair: Any) -> Moments:
        if pair is not None:
            try:
                mean, std = (float(x) for x in pair)
            except (TypeError, ValueError):
                raise TypeError(f"inputs={pair!r} is not 'standard', 'measured' or (mean, std).") from None
            if not (math.isfinite(mean) and 0 <= std < math.inf):
                raise ValueError(f"inputs={pair!r}: a mean is finite, a standard deviation 0 or more.")
            return Moments(mean, mean**2 + std**2, value.shape)
        tensor = value.tensor
        if (
            (self.inputs == "measured" or not value.dtype.is_floating_point)
            and tensor is not None
            and not tensor.is_meta
        ):
            numbers = tensor.detach().cpu().double()  # MPS has no float64
            if not numbers.numel():
                return Moments(0.0, 0.0, value.shape)
            cross = None
            if numbers.dim() > 2:  # what the positions of an example share
                cross = float(numbers.flatten(2).mean(2).square().mean()) if numbers.dim() > 3 else None
            return Moments(float(numbers.mean()), float(numbers.square().mean()), value.shape, cross=cross)
        return Moments(0.0, 1.0, value.shape)
