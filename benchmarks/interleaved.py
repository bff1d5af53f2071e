"""Times of competitors, interleaved and repeated, so that a noisy machine disturbs all of them alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
console = Console()


def interleave(competitors: Mapping[str, Callable[[], object]], *, repeats: int, label: str) -> dict[str, list[float]]:
    """Return the seconds each competitor took in each round, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in competitors}
    gc.collect()
    for i in track(range(repeats + 1), label, console=console, transient=True):
        # Every other round backwards: whoever comes first may find a cold cache.
        for name in list(competitors)[:: 1 if i % 2 else -1]:
            start = time.perf_counter()
            competitors[name]()
            if i:
                times[name].append(time.perf_counter() - start)
    return times


def ratio(times: Mapping[str, list[float]], ours: str, peer: str) -> dict[str, float]:
    """Return the median over rounds of our time over the peer's in the same round, and its quartiles."""
    ratios = [a / b for a, b in zip(times[ours], times[peer], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"median": middle, "quartile_1": low, "quartile_3": high}


def show(title: str, rows: list[dict[str, object]]) -> None:
    """Print rows as a table."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right" if isinstance(rows[0][name], float) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else "–" if v is None else str(v) for v in row.values()))
    console.print(table)
