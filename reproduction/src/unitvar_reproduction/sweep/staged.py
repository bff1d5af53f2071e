"""What the commands that train for hours have in common: where they train, in which order, and what they leave."""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from rich.console import Console

from unitvar_reproduction import data, record
from unitvar_reproduction.sweep.pools import check_device
from unitvar_reproduction.sweep.run import (
    TrialError,
    checkpoint_path,
    finished,
    forget_checkpoint,
    forget_checkpoints,
    shared_pool,
    sweep,
)
from unitvar_reproduction.training import checkpoint
from unitvar_reproduction.training.replicas import replica

__all__ = ["Stage", "StagedSweep", "resumable", "stopwatch", "time_spent"]

Stage = tuple[str, list[Any]]


@dataclass(frozen=True)
class StagedSweep(ABC):
    """A command that trains what has not been trained yet, in stages, and summarises what is done."""

    parallel: ClassVar[bool] = True  # torchrun trains one network in all of its processes
    kind: ClassVar[str]
    """What files and folders are called."""

    title: ClassVar[str]
    """What people call it."""

    scale: Literal["small", "medium", "paper"] = "small"
    """paper: the size of the paper; small: for two CPU cores; medium: for two that have half a day."""

    out: Path = record.OUT
    """Folder for the summary, the pictures, one file a trial, and checkpoints of those that run."""

    data_dir: Path | None = None
    """Folder that holds the data as their authors publish them; default: download them into the cache."""

    workers: int | None = None
    """Trials at once; default: one for each core, or one alone on a GPU."""

    ray: str | None = None
    """Address of a Ray cluster to run the trials on, such as "auto"."""

    device: str = "cpu"
    """Where to train: cpu, cuda, …"""

    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: matrix products and convolutions in half the bits, by autocast; these are other trials."""

    compiled: bool = False
    """Compile the network first; slower on the CPUs we measured, not measured on GPUs."""

    train: bool = True
    """Train what has not been trained yet; otherwise summarise what is there."""

    @abstractmethod
    def stages(self) -> Iterator[Stage]:
        """Give the trials in labelled stages; later ones may build on what ``done`` has of earlier ones."""

    @abstractmethod
    def runner(self) -> Callable[..., dict[str, Any]]:
        """Return the function that runs a trial, given it, ``data_dir``, ``device`` and ``compiled``."""

    @abstractmethod
    def conclude(self, planned: list[Any], records: list[dict[str, Any]], console: Console) -> None:
        """Summarise the trials that are done, a part of the plan or all."""

    def datasets(self, trials: Iterable[Any]) -> Iterable[str]:
        """Return the data sets that trials need."""
        return dict.fromkeys(trial.dataset for trial in trials)

    def run(self, console: Console) -> None:
        """Train, print, draw and save; if trials failed, what is done is summarised before the error."""
        failed = self._train(console) if self.train else None
        planned = [trial for _, trials in self.stages() for trial in trials]
        records = self.done(planned)
        if records and replica().first:
            self.conclude(planned, records, console)
        if failed:
            raise failed
        if not records:
            raise ValueError(f"No trial of this plan is in {self.folder}. Run it without --no-train.")

    def _train(self, console: Console) -> TrialError | None:
        """Train stage by stage; return what went wrong in one, without which it is not known what comes next."""
        folder = self.data_dir and self.data_dir.resolve()  # trials may run elsewhere
        trial = functools.partial(self.runner(), data_dir=folder, device=self.device, compiled=self.compiled)
        ran = {"device": self.device, "compiled": self.compiled, "processes": replica().count}
        where = {"workers": self.workers, "ray": self.ray, "device": self.device}
        options = {"settled": functools.partial(forget_checkpoint, self.out), "ran": ran, **where}
        with shared_pool(**where) as pool:  # type: ignore[arg-type]
            for label, trials in self.stages():
                if self.ray is None:  # else the nodes of the cluster have device and data
                    check_device(self.device)
                    with replica().in_turn():  # so that one downloads, and the next finds it
                        data.check(self.datasets(trials), self.data_dir, console)
                label = f"{self.title}, {label}"
                try:
                    sweep(trial, trials, self.folder, console, label=label, pool=pool, **options)  # type: ignore[arg-type]
                except TrialError as error:
                    return error
        forget_checkpoints(self.out)
        return None

    @property
    def name(self) -> str:
        """What the results of this scale are called."""
        return self.kind if self.scale == "paper" else f"{self.kind}_{self.scale}"

    @property
    def folder(self) -> Path:
        """Where the trials' results are."""
        return self.out / self.name

    def done(self, trials: list[Any]) -> list[dict[str, Any]]:
        """Return the records of those trials that are done."""
        return finished(trials, self.folder)


def resumable(trial: Any, *, run: Callable[..., dict[str, Any]], out: Path, **options: Any) -> dict[str, Any]:
    """Run a trial that saves its training on the way, and goes on from there."""
    path = checkpoint_path(out, trial)
    if path.exists():  # one that cannot be read is better met now than after the data are read
        checkpoint.check(path)
    return run(trial, checkpoint=path, **options)


def stopwatch(notes: dict[str, Any]) -> Callable[[], None]:
    """Return a function that notes, of a training, the seconds since it was last called or made, and the code's commit.

    Notes go into checkpoints, so that both are of the whole training, however often it was interrupted.
    """
    notes["seconds"], before = 0.0, time.perf_counter()

    def note_time() -> None:
        nonlocal before
        now = time.perf_counter()
        notes["seconds"] += now - before
        before = now
        commits = notes.setdefault("commits", [])
        if record.commit() not in commits:
            commits.append(record.commit())

    return note_time


def time_spent(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a trial saves of the time that was noted."""
    commits = notes["commits"]
    environment = {"commit": commits if len(commits) > 1 else commits[0]}
    return {"seconds": round(notes["seconds"], 1), "environment": environment}
