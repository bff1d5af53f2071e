"""What solving finds out of each weight."""

from __future__ import annotations

from dataclasses import dataclass, field

from unitvar.moments import Propagation, Use

__all__ = ["Record", "Solved"]


@dataclass(eq=False, slots=True)
class Record:
    """All uses of one parameter in one pass."""

    use: Use
    op: str
    words: tuple[str, ...]
    second_out: list[float] = field(default_factory=list)  # E z² that unit rows would give
    mean: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    share: float = 1.0

    @property
    def square(self) -> float:
        """Give s² for a second moment of one."""
        return self.share * len(self.second_out) / sum(self.second_out)


@dataclass(eq=False, slots=True)
class Solved:
    """The scales of one graph.

    Attributes:
        records: parameter → its uses.
        squares: parameter → s².
        out: what the last walk met.
        notes: parameter → what its scale could not do.
    """

    records: dict[str, Record]
    squares: dict[str, float]
    out: Propagation
    notes: dict[str, str]
