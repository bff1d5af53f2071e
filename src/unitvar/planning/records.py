"""What solving finds out of each weight."""

from __future__ import annotations

from dataclasses import dataclass, field

from unitvar.moments import Propagation, Use
from unitvar.moments.signal import Signal

__all__ = ["Record", "Solved", "Table"]


@dataclass(eq=False, slots=True)
class Record:
    """All uses of one parameter in one pass."""

    use: Use
    op: str
    words: tuple[str, ...]
    second_out: list[float] = field(default_factory=list)  # E z² that unit rows would give
    mean: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)  # E z² that it is to make: one, but for the parts of a gate

    @property
    def square(self) -> float:
        """Return s² for these second moments, in the mean over all uses."""
        return sum(self.shares) / sum(self.second_out)


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding that is filled.

    Attributes:
        shape: its shape; the last dimension counts features.
        second: E w² that it gets.
        padding: rows that stay zero.
    """

    shape: tuple[int, ...]
    second: float
    padding: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class Solved:
    """The scales of one graph.

    Attributes:
        records: parameter → its uses.
        squares: parameter → s².
        out: what the last walk met.
        notes: parameter → what its scale could not do.
        unsettled: the parameter whose scale still changed most when the search for ``mode="backward"`` ended without a
            result; "" if it had one.
        leaving: parameter → what leaves it, for each use.
        branches: parameter → the residual branch that it ends.
        tables: embedding → what it is filled with.
        shifts: batch norm and number of its use → variance with dropout on over variance with dropout off.
        outputs: of each output of the model, the parameters that make it, and what is known of it.
        gain: what every scale but those of the outputs was multiplied by.
    """

    records: dict[str, Record]
    squares: dict[str, float]
    out: Propagation
    notes: dict[str, str]
    unsettled: str = ""
    leaving: dict[str, list[Signal]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    shifts: dict[tuple[str, int], float] = field(default_factory=dict)
    outputs: list[tuple[tuple[str, ...], Signal]] = field(default_factory=list)
    gain: float = 1.0
