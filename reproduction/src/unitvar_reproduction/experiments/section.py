"""A section of the report: one result beside the paper's claim, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unitvar_reproduction.judgement import VERDICTS, verdict
from unitvar_reproduction.statistics import Estimate

__all__ = ["VERDICTS", "Grid", "Payload", "Picture", "Section", "mean", "percent", "points", "precision", "verdict"]

Payload = Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """A table: its heads, its rows of cells, and what it shows."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A figure: its file, what to see in it, and what it shows to those who cannot see it."""

    file: str
    caption: str
    alt: str


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
    pictures: tuple[Picture, ...] = ()
    verdict: str = ""
    """One of VERDICTS, by the numbers; nothing where the paper claims nothing."""


def mean(values: Sequence[float | None]) -> float:
    """Return the mean of saved values; None stands for one that was not finite, and then there is no mean."""
    finite = [value for value in values if value is not None]
    return sum(finite) / len(finite) if len(finite) == len(values) else float("nan")


def percent(value: Mapping[str, Any]) -> str:
    """Write a saved estimate in percent."""
    return Estimate(**value).percent()


def points(value: Mapping[str, Any] | Estimate | None) -> str:
    """Write a difference of errors in percentage points, with its sign."""
    if value is None:
        return "–"
    found = value if isinstance(value, Estimate) else Estimate(**value)
    mean, half_width = 100 * found.mean, found.half_width
    written = f"{mean:+.2f}".replace("-", "−")
    return written if half_width is None else f"{written} ± {100 * half_width:.2f}"


def precision(name: str) -> str:
    """Say of a precision what a reader would not expect, after a comma."""
    return "" if name == "float32" else f", in {name}"
