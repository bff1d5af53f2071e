"""What of a sweep is done, runs and is left, for people."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unitvar_reproduction.progress import duration, note

__all__ = ["SweepView"]


class SweepView:
    """What of a sweep is done, runs and is left: a live table, or a line for each trial where there is no terminal."""

    def __init__(self, label: str, configs: Sequence[Any], done: int) -> None:
        self.label = label
        self.total = len(configs)
        self.done = done
        self.failed = 0
        self.size = 1
        self.running: dict[Any, tuple[Any, float]] = {}
        self._seconds: list[float] = []
        settings = [asdict(config) for config in configs]
        # What all trials have in common need not be said of each.
        self._telling = [key for key in settings[0] if len({str(s[key]) for s in settings}) > 1]
        self._live: Live | None = None
        self._console: Console | None = None

    @contextmanager
    def shown(self, console: Console) -> Iterator[None]:
        """Show the sweep for the length of a block."""
        self._console = console
        if not console.is_terminal:
            yield
            return
        with Live(get_renderable=self._table, console=console, transient=True, refresh_per_second=2) as self._live:
            yield

    def finish(self, handle: Any) -> None:
        """Note a trial that is done."""
        config, start = self.running.pop(handle)
        self.done += 1
        self._seconds.append(time.monotonic() - start)
        if self._live is None and self._console is not None:
            togo = f", {self.to_go()} to go" if self.done < self.total else ""
            self._console.print(f"{self.label}: {self.done} of {self.total} done{togo} ({self._name(config)})")

    def drop(self, handle: Any) -> None:
        """Note a trial that has failed."""
        config, _ = self.running.pop(handle)
        self.failed += 1
        if self._live is None and self._console is not None:
            self._console.print(f"{self.label}: one failed ({self._name(config)})")

    def refresh(self) -> None:
        """Redraw the table, or tell a log what it says when it has been silent."""
        if self._live is not None:
            self._live.refresh()
        elif self._console is not None:
            note(self._console, f"{self.label}: {self._summary()}")

    def to_go(self) -> str:
        """Estimate the time to go from the trials done so far."""
        if not self._seconds:
            return "?"
        each = sum(self._seconds) / len(self._seconds)
        begun = sum(max(0.0, each - (time.monotonic() - start)) for _, start in list(self.running.values()))
        return duration((begun + each * self.pending) / self.size)

    @property
    def pending(self) -> int:
        """How many trials have not begun."""
        return self.total - self.done - self.failed - len(self.running)

    def _table(self) -> Group:
        table = Table(title=self.label, title_justify="left", box=None)
        for head in ("running", "for"):
            table.add_column(head, justify="right" if head == "for" else "left")
        for config, start in list(self.running.values()):  # another thread draws
            table.add_row(self._name(config), duration(time.monotonic() - start))
        return Group(table, Text(self._summary()), ProgressBar(self.total, self.done, width=60))  # a bar ends no line

    def _summary(self) -> str:
        failed = f"{self.failed} failed, " if self.failed else ""
        return f"{self.done} of {self.total} done, {failed}{self.pending} pending, {self.to_go()} to go"

    def _name(self, config: Any) -> str:
        settings = asdict(config)
        return ", ".join(f"{key} {settings[key]}" for key in self._telling) or type(config).__name__
