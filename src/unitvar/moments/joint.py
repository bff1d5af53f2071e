"""Values that depend on several sources, some of them shared by the operands: drawn together.

A pointwise op of two tensors that go back to different Gaussians has no law of one Gaussian. Its moments follow from
those of its operands only if these are independent, which x · (x + y) is not, and a function of its result sees tails
that no Gaussian has. So every such result remembers the expression that it is. Where moments alone do not tell, the
expression is evaluated on quasi-random draws of all sources at once; for two elements of a pair, on two correlated sets
of draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unitvar.moments.correlation import KINDS, UNRELATED, Correlation
from unitvar.moments.law import Axis, Field

__all__ = ["Joint", "Operand", "described", "is_gaussian"]

_DRAWS = 1 << 13  # and as many with the opposite sign
_SOURCES, _DEPTH = 10, 32  # that an expression may have; one of more is taken for a source of its own

Place = tuple[Any, ...]
Name = tuple[int, Place]


@dataclass(frozen=True, eq=False, slots=True)
class Operand:
    """One tensor of an expression.

    Attributes:
        field: its values as a function of its sources.
        correlation: of its Gaussian.
        place: shape and order of dimensions; the same source elsewhere gives other elements.
    """

    field: Field
    correlation: Correlation
    place: Place

    @classmethod
    def of(cls, field: Field, correlation: Correlation, shape: tuple[int, ...], turn: tuple[int, ...]) -> Operand:
        """Describe a tensor of this shape, whose dimensions were turned so."""
        return cls(field, correlation, (shape, turn))

    @property
    def inner(self) -> Joint | None:
        """Return the expression behind its Gaussian, if there is one."""
        large = self.field.large
        if large is None or large.origin is None or large.origin.axis is None:
            return None
        found: Joint | None = large.origin.joint
        return found if large.origin.axis.key is large.key else None

    @property
    def names(self) -> frozenset[Name]:
        """Name its sources: two operands that share one are dependent."""
        found = {(id(axis.key), self.place) for axis in self.field.noises}
        inner = self.inner
        if inner is not None:
            found |= {_elsewhere(name, self.place, inner.place) for name in inner.names}
        elif self.field.large is not None:
            found.add((id(self.field.large.key), self.place))
        return frozenset(found)

    @property
    def heavy(self) -> bool:
        """Return True if what it is a function of has tails that a Gaussian has not."""
        return self.inner is not None and self.inner.heavy


def _elsewhere(name: Name, place: Place, home: Place) -> Name:
    """Name the source of an expression that was moved from its home to another place."""
    key, own = name
    if place == home:
        return name
    return (key, place) if own == home else (key, (own, place))


@dataclass(frozen=True, eq=False, slots=True)
class Joint:
    """A pointwise expression of several tensors.

    Attributes:
        function: values of the operands → values of the result.
        operands: the tensors.
        place: where its elements are; see :class:`Operand`.
        names: of all sources.
        heavy: whether its tails are not those of a Gaussian.
        depth: how many expressions are inside each other.
    """

    function: Callable[[Sequence[Tensor]], Tensor]
    operands: tuple[Operand, ...]
    place: Place
    names: frozenset[Name]
    heavy: bool
    depth: int

    @classmethod
    def of(
        cls, function: Callable[[Sequence[Tensor]], Tensor], operands: Sequence[Operand], shape: tuple[int, ...],
        *, linear: bool,
    ) -> Joint | None:  # fmt: skip
        """Describe an op's result; None if it has no source, or too many."""
        names = frozenset[Name]().union(*(x.names for x in operands))
        depth = 1 + max((x.inner.depth for x in operands if x.inner is not None), default=0)
        if not 0 < len(names) <= _SOURCES or depth > _DEPTH:
            return None
        varying = sum(x.field.large is not None for x in operands)
        heavy = any(x.heavy for x in operands) or (not linear and varying > 1)
        return cls(function, tuple(operands), (shape, ()), names, heavy, depth)

    @property
    def dependent(self) -> bool:
        """Return True if operands share a source."""
        return sum(len(x.names) for x in self.operands) > len(self.names)

    def moments(self) -> tuple[float, float, Correlation] | None:
        """Draw mean, second moment and the correlations of pairs; None if they are not finite."""
        return _drawn(lambda draws, kind: _evaluated(self, draws, (), kind))


def described(law: Field) -> tuple[float, float, Correlation]:
    """Return mean, second moment and correlations of a law: by quadrature, or drawn if its Gaussian is none."""
    x = _alone(law)
    found = _drawn(lambda draws, kind: _values(x, draws, (), kind)) if x.heavy else None
    if found is not None:
        return found
    mean, second = law.moments()
    return mean, second, law.correlation(mean, second)


def is_gaussian(law: Field) -> bool:
    """Return False if what a law is a function of has tails that a Gaussian has not."""
    return not _alone(law).heavy


def _alone(law: Field) -> Operand:
    return Operand.of(law, UNRELATED if law.large is None else law.large.correlation, (), ())


Moves = tuple[tuple[Place, Place], ...]  # from an expression's home to where it is used, innermost first
Evaluate = Callable[["_Draws", "str | None"], Tensor]
_FIRST, _APART = None, "apart"


def _drawn(evaluate: Evaluate) -> tuple[float, float, Correlation] | None:
    draws = _Draws()
    v = evaluate(draws, _FIRST)
    mean, second = float(v.mean()), float(v.square().mean())
    if not math.isfinite(second):
        return None
    var = second - mean**2
    if var <= 1e-12 * second:
        return mean, second, UNRELATED
    # The error of a pair moment is that of unrelated draws, which is known, and taken off.
    zero = float((v * evaluate(draws, _APART)).mean())
    known: dict[tuple[Any, ...], float] = {}
    found = []
    for kind in KINDS:
        draws.used.clear()
        other = evaluate(draws, kind)
        key = tuple(draws.used)
        if key not in known:
            known[key] = (float((v * other).mean()) - zero) / var
        found.append(max(-1.0, min(1.0, known[key])))
    return mean, second, Correlation(*found)


class _Draws:
    """Quasi-random numbers, two columns a source: one for each element of a pair."""

    def __init__(self) -> None:
        self.columns: dict[Name, int] = {}
        self.used: list[Any] = []
        # Evaluated once, with what was used for it: an expression may be part of another one many times.
        self.evaluated: dict[tuple[int, Moves, str | None], tuple[Tensor, tuple[Any, ...]]] = {}

    def gaussian(self, name: Name, rho: float | None) -> Tensor:
        """Draw a standard normal source; with rho, the one of the other element of a pair."""
        z = _normals(self._column(name))
        if rho is None:
            return z
        self.used.append((name, rho))
        rho = max(-1.0, min(1.0, rho))
        return rho * z + math.sqrt(1 - rho * rho) * _normals(self._column(name) + 1)

    def states(self, name: Name, axis: Axis, other: bool) -> Tensor:
        """Draw the states of a noise."""
        self.used.append((name, other))
        edges = axis.weights.detach().cumsum(0)[:-1].contiguous()
        return torch.searchsorted(edges, _uniforms()[self._column(name) + int(other)])

    def _column(self, name: Name) -> int:
        return self.columns.setdefault(name, 2 * len(self.columns))


@lru_cache(maxsize=1)
def _uniforms() -> Tensor:
    """Return the draws, one row a column of numbers; the second half mirrors the first."""
    engine: Any = torch.quasirandom.SobolEngine(2 * _SOURCES, scramble=True, seed=0)  # type: ignore[no-untyped-call]
    u: Tensor = engine.draw(_DRAWS, dtype=torch.float64).clamp(1e-9, 1 - 1e-9).T.contiguous()
    return torch.cat((u, 1 - u), 1)


@lru_cache(maxsize=2 * _SOURCES)
def _normals(column: int) -> Tensor:
    z: Tensor = torch.special.ndtri(_uniforms()[column])
    return z / z.square().mean().sqrt()


def _evaluated(joint: Joint, draws: _Draws, moves: Moves, kind: str | None) -> Tensor:
    key = id(joint), moves, kind
    if key not in draws.evaluated:
        before, draws.used = draws.used, []
        with torch.no_grad():
            out = joint.function([_values(x, draws, moves, kind) for x in joint.operands]).double()
        draws.evaluated[key] = out, tuple(dict.fromkeys(draws.used))
        draws.used = before
    out, used = draws.evaluated[key]
    draws.used.extend(used)
    return out


def _values(x: Operand, draws: _Draws, moves: Moves, kind: str | None) -> Tensor:
    """Draw an operand: the first element of a pair (no kind), or the other one."""
    if kind not in (_FIRST, _APART) and getattr(x.correlation, kind) >= 1 - 1e-9:
        kind = _FIRST  # a copy
    field, large = x.field, x.field.large
    last = 1 if large is None else len(large.weights)
    full = field.values.detach().expand(*(len(a.nodes) for a in field.noises), last).reshape(-1, last)
    row: Any = 0
    for axis in field.noises:
        other = kind is not _FIRST and kind not in axis.shared
        row = row * len(axis.nodes) + draws.states(_moved((id(axis.key), x.place), moves), axis, other)
    if large is None:
        return full[row, 0] if field.noises else full[0]
    z = _gaussian(x, large, draws, moves, kind)
    if field.values is large.nodes:
        return z
    nodes = large.nodes.detach().numpy()
    if not field.noises:
        return torch.from_numpy(np.interp(z.numpy(), nodes, full[0].numpy()))
    at = np.stack([np.interp(z.numpy(), nodes, values.numpy()) for values in full])
    return torch.from_numpy(at).gather(0, row.unsqueeze(0))[0]


def _gaussian(x: Operand, large: Axis, draws: _Draws, moves: Moves, kind: str | None) -> Tensor:
    inner = x.inner
    if inner is not None:
        own = () if inner.place == x.place else ((x.place, inner.place),)
        return _evaluated(inner, draws, own + moves, kind)
    rho = None if kind is _FIRST else 0.0 if kind == _APART else float(getattr(x.correlation, kind))
    return large.mean + large.std * draws.gaussian(_moved((id(large.key), x.place), moves), rho)


def _moved(name: Name, moves: Moves) -> Name:
    for place, home in moves:
        name = _elsewhere(name, place, home)
    return name
