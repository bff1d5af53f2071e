"""A section of the report: one result beside the paper's claim, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unitvar_reproduction.statistics import Estimate

__all__ = ["VERDICTS", "Grid", "Payload", "Section", "mean", "percent", "precision", "verdict"]

Payload = Mapping[str, Any]
VERDICTS = ("held", "partly", "not held", "not at this scale")


@dataclass(frozen=True)
class Grid:
    """A table: its heads, its rows of cells, and what it shows."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """One result: the paper's claim beside ours."""

    title: str
    claim: str
    found: tuple[str, ...]
    """Sentences; the first is the headline."""

    ran: str
    """Seeds and sizes."""

    tables: tuple[Grid, ...] = ()
    pictures: tuple[str, ...] = field(default=())
    verdict: str = ""
    """One of VERDICTS, by the numbers; nothing where the paper claims nothing."""


def verdict(parts: Iterable[bool], *, shrunk: bool = False) -> str:
    """Return what becomes of a claim, some parts of which held; a shrunk experiment cannot refute it.

    Nothing without parts: what has not been run neither held nor failed.
    """
    held = list(parts)
    if not held:
        return ""
    return VERDICTS[0] if all(held) else VERDICTS[1] if any(held) else VERDICTS[3 if shrunk else 2]


def mean(values: Sequence[float | None]) -> float:
    """Return the mean of saved values; None stands for one that was not finite, and then there is no mean."""
    finite = [value for value in values if value is not None]
    return sum(finite) / len(finite) if len(finite) == len(values) else float("nan")


def percent(value: Mapping[str, Any]) -> str:
    """Write a saved estimate in percent."""
    return Estimate(**value).percent()


def precision(name: str) -> str:
    """Say of a precision what a reader would not expect, after a comma."""
    return "" if name == "float32" else f", in {name}"
