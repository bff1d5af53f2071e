"""The options of a plan, checked once."""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from unitvar.init import MODES
from unitvar.moments.inputs import ALLOWED, INPUTS
from unitvar.moments.rule import RULES, Rule, check_name, revised

__all__ = ["DISTRIBUTIONS", "EMBEDDINGS", "METHODS", "RESIDUALS", "Options", "Overrides"]

DISTRIBUTIONS = ("sphere", "orthonormal", "normal", "uniform")
METHODS = ("analytic", "measured")
RESIDUALS = ("auto", "scaled", "damped", "unit", "zero")
EMBEDDINGS = ("keep", "unit")


Override = Callable[..., Any] | tuple[Callable[..., Any], Callable[..., Any]]
Overrides = Mapping[str, Override]


def _pair(override: Override) -> tuple[Any, ...]:
    return override if isinstance(override, tuple) and len(override) == 2 else (override,)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold what :func:`unitvar.plan` takes by keyword."""

    mode: str
    distribution: str
    residual: str
    gain: float | str
    embeddings: str
    only: str | Sequence[str] | None
    inputs: Any
    rules: Overrides | None
    strict: bool
    method: str = "analytic"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("mode", self.mode, MODES),
            ("distribution", self.distribution, DISTRIBUTIONS),
            ("residual", self.residual, RESIDUALS),
            ("embeddings", self.embeddings, EMBEDDINGS),
            ("method", self.method, METHODS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}.")
        if isinstance(self.gain, bool) or not isinstance(self.gain, (int, float, str)):
            raise TypeError(f"gain={self.gain!r} is neither a number nor 'auto'; 1.0 keeps unit variance.")
        if self.gain != "auto" and not (isinstance(self.gain, (int, float)) and 0 < self.gain < math.inf):
            raise ValueError(
                f"gain={self.gain!r} is neither a finite number above 0 nor 'auto'; 1.0 keeps unit variance."
            )
        if isinstance(self.inputs, str) and self.inputs not in INPUTS:
            raise ValueError(f"inputs={self.inputs!r} is not {ALLOWED}.")
        if self.only is not None and not (
            isinstance(self.only, str)
            or (isinstance(self.only, Sequence) and all(isinstance(p, str) for p in self.only))
        ):
            raise TypeError(f"only={self.only!r} is not a shell pattern on parameter names, nor a list of them.")
        if self.rules is not None and not isinstance(self.rules, Mapping):
            raise TypeError(f"rules={self.rules!r} is not a dict of op name → rule, like {{'aten.max_pool2d': f}}.")
        for name, override in (self.rules or {}).items():
            check_name(name)
            if not all(map(callable, _pair(override))):
                raise TypeError(
                    f"rules[{name!r}]={override!r} is not a function of the op's arguments, nor a pair of them: "
                    "forward, backward."
                )

    @property
    def overrides(self) -> dict[str, Rule]:
        """Return the rules of this call, each with what else is known of its op."""
        made = {}
        for name, override in (self.rules or {}).items():
            known = RULES.get(name) or RULES.get(name.rpartition(".")[0])
            function, *backward = _pair(override)
            made[name] = revised(known, function, {"backward": backward[0]} if backward else {})
        return made

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the patterns of ``only``."""
        return () if self.only is None else (self.only,) if isinstance(self.only, str) else tuple(self.only)

    def selects(self, name: str) -> bool:
        """Return True if a parameter may be changed."""
        return self.only is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)

    def check_patterns(self, model: nn.Module) -> None:
        """Refuse patterns that match nothing: they are misspelt."""
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        for pattern in self.patterns:
            if any(fnmatch.fnmatchcase(name, pattern) for name in names):
                continue
            some = ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
            raise ValueError(
                f"only={pattern!r} matches no parameter.{_guess(pattern, names)} Names are those of "
                f"named_parameters(): {some}."
            )


def _guess(pattern: str, names: list[str]) -> str:
    """Suggest what a pattern that matches nothing may have meant: a module's parameters, or a similar name."""
    inside = next(
        (wide for wide in (f"{pattern}.*", f"*.{pattern}.*", f"*{pattern}*") if fnmatch.filter(names, wide)), ""
    )
    near = [inside] if inside else difflib.get_close_matches(pattern, names, 1)
    return f" Did you mean {near[0]!r}?" if near else ""
