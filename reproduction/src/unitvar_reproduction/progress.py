"""Progress that also reaches a log: a bar in a terminal, elsewhere a line whenever nothing was printed for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

__all__ = ["SILENCE", "LogConsole", "duration", "note", "steps"]

Item = TypeVar("Item")
SILENCE = 30.0  # seconds


class LogConsole(Console):
    """A console that, without a terminal, says what is going on when nothing was printed for a while."""

    doing = "at work"
    _printed = 0.0

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, and note when."""
        self._printed = time.monotonic()
        super().print(*objects, **options)

    @contextmanager
    def alive(self, silence: float = SILENCE) -> Iterator[None]:
        """Break every silence of so many seconds, for the length of a block."""
        if self.is_terminal or self.quiet:
            yield
            return
        ended, start = threading.Event(), time.monotonic()
        self._printed = start

        def speak() -> None:
            while not ended.wait(silence / 10):
                if time.monotonic() - self._printed >= silence:
                    self.print(f"{self.doing} ({duration(time.monotonic() - start)} so far)", highlight=False)

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def note(console: Console, text: str) -> None:
    """Say what is going on, for the next time that a log has been silent."""
    if isinstance(console, LogConsole):
        console.doing = text


def steps(items: Sequence[Item], label: str, console: Console) -> Iterator[Item]:
    """Go through items, with a bar in a terminal, and a note of how many are done elsewhere."""
    for i, item in enumerate(track(items, label, console=console, transient=True)):
        note(console, f"{label}: {i} of {len(items)} done")
        yield item


def duration(seconds: float) -> str:
    """Write a time as people say it."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
