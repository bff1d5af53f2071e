"""The table of rules: what an op does to means and variances of single elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["RULES", "Rule", "find", "register"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rule:
    """What is known of an op.

    Attributes:
        function: gets the op and its arguments in schema order, an ``Uncertain`` for each uncertain tensor, and returns
            an ``Uncertain``, or a tuple of results.
        method: how the result is found, as :attr:`unitvar.expectation.Expectation.methods` says it.
        affine: whether the op is elementwise and affine in one uncertain argument, so that any distribution is exact.
        keeps: whether sources of noise travel through, so that linear layers after it are exact.
        mixes: whether it is a dense linear layer, which asks for the sources.
        keyed: whether the function wants ``keys``, which identify its uncertain arguments, and ``key``, its result.
        noise: whether the op draws random numbers of its own; a function of the arguments that says so.
        mixture: whether the function can say what dropout does just before a nonlinearity (``mixture=True``).
        takes: whether the function can treat these arguments; None if it can treat all.
        otherwise: the rule for the arguments that it cannot treat; None leaves them to be sampled.
    """

    function: Callable[..., Any]
    method: str = "exact"
    affine: bool = False
    keeps: bool = False
    mixes: bool = False
    keyed: bool = False
    noise: Callable[..., bool] | None = None
    mixture: bool = False
    takes: Callable[..., bool] | None = None
    otherwise: Rule | None = None


RULES: dict[str, Rule] = {}


def register(*names: str, **known: Any) -> Callable[[F], F]:
    """Register a function as the rule of ops, named without ``aten.``; see :class:`Rule`."""

    def add(function: F) -> F:
        for name in names:
            RULES[f"aten.{name}"] = Rule(function, **known)
        return function

    return add


def find(name: str, overload: str = "") -> Rule | None:
    """Look a rule up: one overload's before all overloads'."""
    return RULES.get(f"{name}.{overload}") or RULES.get(name)
