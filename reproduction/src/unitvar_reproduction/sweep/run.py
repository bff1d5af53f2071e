"""Independent trials: the result of each is kept when it is done, so that a sweep can resume."""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from unitvar_reproduction import record
from unitvar_reproduction.sweep.pools import Pool, processes, ray_cluster, together
from unitvar_reproduction.sweep.store import Files, Store, trial_path
from unitvar_reproduction.sweep.view import SweepView
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
    return Files(folder).load(configs)


def sweep(
    trial: Callable[[Config], Mapping[str, object]],
    configs: Sequence[Config],
    folder: Path | Store,
    console: Console,
    *,
    label: str,
    workers: int | None = None,
    ray: str | None = None,
    device: str = "cpu",
    settled: Callable[[Config], object] = lambda config: None,
    ran: Mapping[str, object] | None = None,
    pool: Callable[[], Pool] | None = None,
) -> list[dict[str, Any]]:
    """Run every trial that has no result yet, each on one thread, and return all results in order.

    A trial that fails does not keep the others from running: a :class:`TrialError` names those that did at the end.
    In the processes of a torchrun, which must see the same folder, one trial at a time runs in all of them together.

    Args:
        trial: what to run; a module-level function, since it goes to other processes.
        configs: frozen dataclasses, one for each trial; earlier ones start first.
        folder: where the results are and go: a folder of one file a trial, or another store.
        console: where to show what runs, what is left and the time to go.
        label: what to call the sweep there.
        workers: trials at once; default: one for each core, or one alone on a GPU.
        ray: the address of a Ray cluster to run them on, such as "auto"; default: processes on this machine.
        device: what trials need a core of, or a GPU of the cluster if it is "cuda".
        settled: called with a trial when its result is on disk.
        ran: what to note of how the trials ran, beside versions and hardware.
        pool: gives the pool to run them in, from :func:`shared_pool`; default: one for this sweep.

    Returns:
        For each config the saved record, with ``config`` and what the trial returned.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers} is not 1 or more; omit it for one per core, or one on a GPU.")
    store = Files(folder) if isinstance(folder, Path) else folder
    store.load(configs)  # a file that cannot be read is better met now than after hours
    place = replica()
    missing = place.gather(store.missing(configs))[0]
    todo = deque(config for config, wanted in zip(configs, missing, strict=True) if wanted)
    if place.first:
        for config, wanted in zip(configs, missing, strict=True):
            if not wanted:  # it may have been killed just before it was settled
                settled(config)
    if todo:
        size = min(_most(workers, device), len(todo))
        progress = SweepView(label, configs, done=len(configs) - len(todo))
        with nullcontext(pool()) if pool else _started(size, workers, ray, device) as running, progress.shown(console):
            progress.size = running.size
            for config, result in _results(running, functools.partial(_measure, trial, ran or {}), todo, progress):
                if place.first:
                    store.save(config, result)
                    settled(config)
                place.gather(None)  # nobody goes on before it is there
    return store.load(configs)


@contextmanager
def shared_pool(
    workers: int | None = None, ray: str | None = None, device: str = "cpu"
) -> Iterator[Callable[[], Pool]]:
    """Give a function that starts a pool when it is first called, for sweeps that need not start processes each."""
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(_started(_most(workers, device), workers, ray, device)))


def _most(workers: int | None, device: str) -> int:
    return workers or (os.cpu_count() if device == "cpu" else 1) or 1  # a GPU may have room for one


def _started(size: int, workers: int | None, ray: str | None, device: str) -> AbstractContextManager[Pool]:
    if replica().count > 1:
        return together()
    return ray_cluster(ray, workers, device) if ray else processes(size)


def _results(
    pool: Pool, measure: Callable[..., Any], todo: deque[Any], progress: SweepView
) -> Iterator[tuple[Any, Any]]:
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
