"""The options of a plan, checked once."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from unitvar.init import MODES
from unitvar.moments.inputs import INPUTS
from unitvar.moments.rule import RULES, Rule, check_name, revised

__all__ = ["DISTRIBUTIONS", "METHODS", "Options", "Overrides"]

DISTRIBUTIONS = ("sphere", "orthonormal", "normal", "uniform")
METHODS = ("analytic", "measured")


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
            known = RULES.get(name) or RULES.get(name.rpartition(".")[0])
            function, *backward = _pair(given)
            made[name] = revised(known, function, {"backward": backward[0]} if backward else {})
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
