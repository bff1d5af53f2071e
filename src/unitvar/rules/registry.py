"""The table of rules: op name → function, and how to add one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

__all__ = ["RULES", "Rule", "find", "rule"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and its backward factor; ``weights`` are the positions of what may be a parameter to initialise."""

    forward: Callable[..., Any]
    backward: Callable[..., Any] | None = None
    word: str | Callable[..., str] | None = None
    weights: tuple[int, ...] = ()
    resets: bool = False


RULES: dict[str, Rule] = {}


def rule(name: str, *, backward: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Add or replace the rule of an op.

    The function gets the op's arguments in schema order, each tensor as ``Moments(mean, second, shape)`` and the rest
    as recorded, and returns ``Moments``, or a tuple of them for several outputs; None leaves these arguments to be
    sampled. What else is known of the op, such as which of its arguments are weights, stays.

    Args:
        name: ``"aten.max_pool2d"`` for all overloads, ``"aten.add.Tensor"`` for one.
        backward: a function of the same arguments that returns E[g_in²] / E[g_out²], one for each tensor input (or one
            number for the first). Default: that of the rule so far; without one, estimated by autograd on samples.

    Returns:
        A decorator, which returns the function.

    Example:
        >>> from unitvar.rules import Moments
        >>> @rule("mylib.double", backward=lambda x: 4.0)
        ... def double(x):
        ...     return Moments(2 * x.mean, 4 * x.second, x.shape)
        >>> _ = RULES.pop("mylib.double")
    """
    check_name(name)
    if backward is not None and not callable(backward):
        raise TypeError(f"backward={backward!r} is not a function of the op's arguments.")

    def add(function: F) -> F:
        if not callable(function):
            raise TypeError(f"{function!r} is not a function, so it cannot be the rule of {name}.")
        known = RULES.get(name) or RULES.get(name.rpartition(".")[0]) or Rule(function)
        for overload in [full for full in RULES if full.startswith(f"{name}.")]:
            del RULES[overload]  # or it would go before the rule for all of them
        RULES[name] = replace(known, forward=function, backward=backward or known.backward)
        return function

    return add


def builtin(
    *names: str,
    backward: Callable[..., Any] | None = None,
    word: str | Callable[..., str] | None = None,
    weights: tuple[int, ...] = (),
    resets: bool = False,
) -> Callable[[F], F]:
    """Register one of the library's own rules under several names of aten.

    Args:
        names: without ``aten.``.
        backward: as in :func:`rule`.
        word: how the op is called in the path of a plan, or a function of its arguments; "" leaves it out.
        weights: positions of arguments that may be weights.
        resets: whether deviations of the input's size end here, as in a norm.
    """

    def add(function: F) -> F:
        for name in names:
            RULES[f"aten.{name}"] = Rule(function, backward, word, weights, resets)
        return function

    return add


def check_name(name: str) -> None:
    """Refuse a name that no op can have."""
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is not the name of an op; pass one like 'aten.max_pool2d'.")
    if "." not in name.strip("."):
        raise ValueError(f"{name!r} is not the name of an op; write it with its namespace, like 'aten.max_pool2d'.")


def find(name: str, overload: str, overrides: Mapping[str, Rule]) -> Rule | None:
    """Look a rule up: this call's first, one overload's before all overloads'."""
    full = f"{name}.{overload}"
    for table in (overrides, RULES):
        found = table.get(full) or table.get(name)
        if found is not None:
            return found
    return None
