"""One rule an op: all that is known of it, and how to add one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from unitvar.moments.signal import Signal

__all__ = ["RULES", "Call", "Connection", "Rule", "builtin", "builtin_rule", "check_name", "find", "rule"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Connection:
    """How a weight connects what goes into an op with what comes out.

    Attributes:
        columns: dimensions of the weight that are summed over.
        batch: dimensions that only select: experts, heads.
        fan_in: connections into an output, padding not counted.
        fan_out: connections out of an input.
        fill: how an initialiser must treat it: transposed, groups and stride.
    """

    columns: tuple[int, ...]
    batch: tuple[int, ...] = ()
    fan_in: float = 0.0
    fan_out: float = 0.0
    fill: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, shape: tuple[int, ...], columns: tuple[int, ...], batch: tuple[int, ...] = ()) -> Connection | None:
        """Count the fans of a weight of this shape; None if nothing is summed over."""
        fan_in = math.prod(shape[d] for d in columns)
        fan_out = math.prod(n for d, n in enumerate(shape) if d not in columns and d not in batch)
        return cls(columns, batch, float(fan_in), float(fan_out)) if columns and fan_in else None


def last_column(args: Sequence[Any], position: int, operand: Any) -> Connection | None:
    """Connect as ``linear`` does: rows are outputs, the last dimension is summed over."""
    return Connection.of(operand.shape, (len(operand.shape) - 1,))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an op, for rules that need more than its arguments.

    Attributes:
        op: what the schema says of it.
        args: in schema order, a Signal for each tensor.
        raw: as recorded, a graph's Value for each tensor.
        shapes: of its outputs.
        numbers: gives the numbers of a value that depends on no input, None if there are none.
        repeats: how many calls in the graph have the same parameters.
    """

    op: Any
    args: tuple[Any, ...]
    raw: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    numbers: Callable[[Any], Any]
    repeats: int = 1

    @property
    def name(self) -> str:
        """Return the op's name."""
        return str(self.op.name)


@dataclass(frozen=True, slots=True)
class Rule:
    """What is known of an op.

    Attributes:
        forward: arguments → the signals of its outputs; None leaves it to be sampled.
        backward: arguments → E[g_in²] / E[g_out²] of each tensor input, or of the first signal.
        gradient: a gradient and the arguments → the gradient of each tensor input. It knows more than ``backward``:
            gradients, too, may be alike at different positions.
        pairs: a kind of pair and the arguments → E y_1 y_2 of the output; see :class:`unitvar.moments.Correlation`.
        word: how the op is called in the path of a plan, or a function of its arguments; "" leaves it out.
        weights: positions of arguments that may be weights.
        connect: arguments, the position and the operand → how that weight connects.
        units: position of a weight → the dimension of the output that counts its units.
        product: whether it multiplies two tensors of which neither need be a weight: queries, made of parameters alone,
            meet keys.
        bias: position of what is added to the product of weight and signal.
        recurrent: of a recurrence, what reaches its weights; see :mod:`unitvar.moments.ops.recurrent`.
        resets: whether deviations of the input's size end here, as in a norm.
        carries: whether it hands on its first tensor, moved, masked or rescaled, as views, dropouts and norms do.
        embeds: whether it looks rows of a parameter up.
        padding: arguments → the row that stands for padding and stays zero; None if there is none.
        normalises: whether it may divide by the statistics of its batch.
        variance: of such an op, arguments → the variance that it divides by; None if that is a running one.
        quiet: of noise, what forward becomes when every mask is at its mean, as with dropout off.
        mixes: arguments → the names of the axes that it mixes; examples are never mixed.
        again: whether a second call with the same arguments gives the same elements, as slicing does.
        call: whether forward and gradient want a :class:`Call` instead of the arguments.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any] | None = None
    gradient: Callable[..., Any] | None = None
    pairs: Callable[..., float] | None = None
    word: str | Callable[..., str] | None = None
    weights: tuple[int, ...] = ()
    connect: Callable[..., Connection | None] = last_column
    units: Callable[[int], int] = lambda position: -1
    product: bool = False
    bias: int | None = None
    recurrent: Callable[..., Any] | None = None
    resets: bool = False
    carries: bool = False
    embeds: bool = False
    padding: Callable[..., int | None] | None = None
    normalises: bool = False
    variance: Callable[..., float | None] | None = None
    quiet: Callable[..., Any] | None = None
    mixes: Callable[..., str] | None = None
    again: bool = False
    call: bool = False

    def label(self, name: str, args: Sequence[Any]) -> str:
        """Return the word for a path."""
        if callable(self.word):
            return self.word(*args)
        return name.partition(".")[2] if self.word is None else self.word


RULES: dict[str, Rule] = {}


def rule(
    name: str,
    *,
    backward: Callable[..., Any] | None = None,
    pairs: Callable[..., float] | None = None,
    weights: Sequence[int] | None = None,
    connect: Callable[..., Connection | None] | None = None,
    word: str | None = None,
    resets: bool | None = None,
) -> Callable[[F], F]:
    """Add or replace the rule of an op.

    The function gets the op's arguments in schema order, each tensor as ``Moments(mean, second, shape)`` and the rest
    as recorded. It returns ``Moments``, or a tuple of them for several outputs. If it returns None, these arguments are
    sampled. ``replace(x, second=...)`` keeps everything else that is known of ``x``. If the op already has a rule, what
    you leave out keeps its old rule.

    Args:
        name: ``"aten.max_pool2d"`` for all overloads, ``"aten.add.Tensor"`` for one.
        backward: a function of the same arguments that returns E[g_in²] / E[g_out²], one for each tensor input (or one
            number for the first). Default: estimated by autograd on samples.
        pairs: a function of a kind of pair ("features", "positions", "neighbours", "examples", "masks") and the same
            arguments that returns E y_1 y_2 of such a pair; ``x.pair(kind)`` is that of an input. Default: pairs stay
            as alike as they are in the input.
        weights: positions of the arguments that may be parameters to initialise.
        connect: a function of the arguments, a position and the operand there (with ``shape``) that returns a
            :class:`unitvar.moments.Connection`. Default: as in ``linear``, rows are outputs.
        word: how the op is called in the path of a plan.
        resets: whether deviations of the input's size end here, as in a norm.

    Returns:
        A decorator, which returns the function.

    Example:
        >>> from unitvar.moments import Moments
        >>> @rule("mylib.double", backward=lambda x: 4.0, word="double")
        ... def double(x):
        ...     return Moments(2 * x.mean, 4 * x.second, x.shape)
        >>> _ = RULES.pop("mylib.double")
    """
    check_name(name)
    for label, function in (("backward", backward), ("pairs", pairs), ("connect", connect)):
        if function is not None and not callable(function):
            raise TypeError(f"{label}={function!r} is not a function of the op's arguments.")
    declared: dict[str, Any] = {
        "backward": backward,
        "pairs": pairs,
        "connect": connect,
        "word": word,
        "resets": resets,
    }
    declared["weights"] = None if weights is None else tuple(weights)

    def add(function: F) -> F:
        if not callable(function):
            raise TypeError(f"{function!r} is not a function, so it cannot be the rule of {name}.")
        known = RULES.get(name) or RULES.get(name.rpartition(".")[0])
        for overload in [full for full in RULES if full.startswith(f"{name}.")]:
            del RULES[overload]  # or it would go before the rule for all of them
        RULES[name] = revised(known, function, {k: v for k, v in declared.items() if v is not None})
        return function

    return add


def revised(known: Rule | None, forward: Callable[..., Any], declared: Mapping[str, Any]) -> Rule:
    """Make a rule of a user's function and of what else is known of its op."""
    base = known or Rule(forward)
    made = replace(base, forward=forward, call=False, recurrent=None, **declared)
    # A gradient of ours belongs to our forward; backward factors, which are simpler, stay.
    return replace(made, gradient=None) if "backward" in declared or base.call else made


def builtin(*names: str, **declared: Any) -> Callable[[F], F]:
    """Register one of the library's own rules under several names of aten, without ``aten.``; see :class:`Rule`."""

    def add(function: F) -> F:
        for name in names:
            RULES[f"aten.{name}"] = Rule(function, **declared)
        return function

    return add


def check_name(name: str) -> None:
    """Refuse a name that no op can have."""
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is not the name of an op; pass one like 'aten.max_pool2d'.")
    if "." not in name.strip("."):
        raise ValueError(f"{name!r} is not the name of an op; write it with its namespace, like 'aten.max_pool2d'.")


def builtin_rule(op: str) -> Rule | None:
    """Return the library's own rule of an op as a plan writes it, without ``aten.``."""
    return RULES.get(f"aten.{op}")


def find(name: str, overload: str, overrides: Mapping[str, Rule]) -> Rule | None:
    """Look a rule up: this call's first, one overload's before all overloads'."""
    full = f"{name}.{overload}"
    for table in (overrides, RULES):
        found = table.get(full) or table.get(name)
        if found is not None:
            return found
    return None


def signals_in(args: Sequence[Any]) -> list[Signal]:
    """List the signals among arguments, those in lists too."""
    found: list[Signal] = []
    for arg in args:
        if isinstance(arg, Signal):
            found.append(arg)
        elif isinstance(arg, (tuple, list)):
            found += signals_in(arg)
    return found
