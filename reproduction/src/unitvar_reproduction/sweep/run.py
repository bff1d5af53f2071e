"""Independent trials: one JSON a trial, written when it is done, so that a sweep can resume."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unitvar_reproduction import record
from unitvar_reproduction.sweep.pools import Pool, processes, ray_cluster, together
from unitvar_reproduction.training.replicas import replica

__all__ = [
    "TrialError",
    "checkpoint_path",
    "finished",
    "forget_checkpoint",
    "forget_checkpoints",
    "sweep",
    "trial_path",
]

Config = TypeVar("Config")
SHOWN = 5  # failures that an error lists
CHECKPOINTS = "checkpoints"


class TrialError(RuntimeError):
    """Some trials of a sweep failed; all others have their results."""


def trial_path(folder: Path, config: Any) -> Path:
    """Return where the result of a trial belongs: a name made of its experiment and the hash of its config."""
    text = json.dumps({"kind": type(config).__name__, **asdict(config)}, sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def checkpoint_path(out: Path, config: Any) -> Path:
    """Return where a trial saves its training until its result is on disk."""
    return trial_path(out / CHECKPOINTS, config).with_suffix(".pt")


def forget_checkpoint(out: Path, config: Any) -> None:
    """Delete the checkpoint of a trial whose result is on disk, and what a process killed while it wrote one left."""
    path = checkpoint_path(out, config)
    for leftover in (path, *path.parent.glob(f"{path.name}*.partial")):
        leftover.unlink(missing_ok=True)


def forget_checkpoints(out: Path) -> None:
    """Delete their folder if it is empty; only when no trial runs, which might be about to write there."""
    with suppress(OSError):  # others are in there, or it never was
        (out / CHECKPOINTS).rmdir()


def finished(configs: Sequence[Any], folder: Path) -> list[dict[str, Any]]:
    """Return the saved records of those trials that have one, in order."""
    paths = [trial_path(folder, config) for config in configs]
    return [record.load(path) for path in paths if path.exists()]


def sweep(
    trial: Callable[[Config], Mapping[str, object]],
    configs: Sequence[Config],
    folder: Path,
    console: Console,
    *,
    label: str,
    workers: int | None = None,
    ray: str | None = None,
    device: str = "cpu",
    settled: Callable[[Config], object] = lambda config: None,
    ran: Mapping[str, object] | None = None,
) -> list[dict[str, Any]]:
    """Run every trial that has no result yet, each on one thread, and return all results in order.

    A trial that fails does not keep the others from running: a :class:`TrialError` names those that did at the end.
    In the processes of a torchrun, which must see the same folder, one trial at a time runs in all of them together.

    Args:
        trial: what to run; a module-level function, since it goes to other processes.
        configs: frozen dataclasses, one for each trial; earlier ones start first.
        folder: where the results are and go.
        console: where to show what runs, what is left and the time to go.
        label: what to call the sweep there.
        workers: trials at once; default: one for each core, or one alone on a GPU.
        ray: the address of a Ray cluster to run them on, such as "auto"; default: processes on this machine.
        device: what trials need a core of, or a GPU of the cluster if it is "cuda".
        settled: called with a trial when its result is on disk.
        ran: what to note of how the trials ran, beside versions and hardware.

    Returns:
        For each config the saved record, with ``config`` and what the trial returned.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers} is not 1 or more; leave it out for one on each core, or one on a GPU.")
    finished(configs, folder)  # a file that cannot be read is better met now than after hours
    place = replica()
    missing = place.gather([not trial_path(folder, config).exists() for config in configs])[0]
    todo = deque(config for config, wanted in zip(configs, missing, strict=True) if wanted)
    if place.first:
        for config, wanted in zip(configs, missing, strict=True):
            if not wanted:  # it may have been killed just before it was settled
                settled(config)
    if todo:
        most = workers or (os.cpu_count() if device == "cpu" else 1) or 1  # a GPU may have room for one
        size = min(most, len(todo))
        progress = Sweep(label, configs, done=len(configs) - len(todo))
        pool = together() if place.count > 1 else ray_cluster(ray, workers, device) if ray else processes(size)
        with pool as running, progress.shown(console):
            progress.size = running.size
            for config, result in _results(running, functools.partial(_measure, trial, ran or {}), todo, progress):
                if place.first:
                    record.save(trial_path(folder, config), result)
                    settled(config)
                place.gather(None)  # nobody goes on before it is there
    return finished(configs, folder)


def _results(pool: Pool, measure: Callable[..., Any], todo: deque[Any], progress: Sweep) -> Iterator[tuple[Any, Any]]:
    """Give each trial and its result, as they come; raise for those that failed when the others are done."""
    failed: list[tuple[Any, Exception]] = []
    try:
        while todo or progress.running:
            while todo and len(progress.running) < pool.size:
                config = todo.popleft()
                progress.running[pool.submit(measure, config)] = config, time.monotonic()
            for handle in pool.wait(list(progress.running), seconds=1.0):
                config, _ = progress.running[handle]
                try:
                    result = pool.result(handle)
                except BrokenExecutor:
                    raise
                except Exception as error:
                    if replica().count > 1:  # the others wait for this one: end, and torchrun ends them
                        raise
                    failed.append((config, error))
                    progress.drop(handle)
                else:
                    yield config, result
                    progress.finish(handle)
            progress.refresh()
    except BrokenExecutor as error:  # no trial's fault, and no more will run
        raise TrialError(
            "A process that ran a trial was ended from outside, perhaps for want of memory. What was done is saved: "
            "run the same again, with fewer workers if it was memory."
        ) from error
    if failed:
        raise _told(failed, progress.total) from failed[0][1]


def _told(failed: Sequence[tuple[Any, Exception]], total: int) -> TrialError:
    said = "\n".join(f"  {config}: {type(error).__name__}: {error}" for config, error in failed[:SHOWN])
    more = f"\n  and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
    return TrialError(
        f"{len(failed)} of {total} trials failed; the others are saved, and to run the same again tries only these:\n"
        f"{said}{more}"
    )


def _measure(trial: Callable[[Any], Mapping[str, object]], ran: Mapping[str, object], config: Any) -> dict[str, object]:
    """Run a trial where it was sent, and note what ran it, and how; what it notes of that itself goes first."""
    found = dict(trial(config))
    environment = {**record.environment(), **ran, **found.pop("environment", {})}  # type: ignore[dict-item]
    return {"config": asdict(config), **found, "environment": environment}


class Sweep:
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
        """Redraw the table."""
        if self._live is not None:
            self._live.refresh()

    def to_go(self) -> str:
        """Estimate the time to go from the trials done so far."""
        if not self._seconds:
            return "?"
        each = sum(self._seconds) / len(self._seconds)
        begun = sum(max(0.0, each - (time.monotonic() - start)) for _, start in list(self.running.values()))
        return _duration((begun + each * self.waiting) / self.size)

    @property
    def waiting(self) -> int:
        """How many trials have not begun."""
        return self.total - self.done - self.failed - len(self.running)

    def _table(self) -> Group:
        table = Table(title=self.label, title_justify="left", box=None)
        for head in ("running", "for"):
            table.add_column(head, justify="right" if head == "for" else "left")
        for config, start in list(self.running.values()):  # another thread draws
            table.add_row(self._name(config), _duration(time.monotonic() - start))
        failed = f"{self.failed} failed, " if self.failed else ""
        summary = f"{self.done} of {self.total} done, {failed}{self.waiting} waiting, {self.to_go()} to go"
        return Group(table, Text(summary), ProgressBar(self.total, self.done, width=60))  # a bar ends no line

    def _name(self, config: Any) -> str:
        settings = asdict(config)
        return ", ".join(f"{key} {settings[key]}" for key in self._telling) or type(config).__name__


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
