"""Independent trials in local processes: one JSON a trial, written when it is done, so that a sweep can resume."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import Progress

from unitvar.paper import record

__all__ = ["finished", "sweep", "trial_path"]

Config = TypeVar("Config")


def trial_path(folder: Path, config: Any) -> Path:
    """Return where the result of a trial belongs: a name made of its experiment and the hash of its config."""
    text = json.dumps({"kind": type(config).__name__, **asdict(config)}, sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def finished(configs: Sequence[Any], folder: Path) -> list[dict[str, Any]]:
    """Return the saved records of those trials that have one, in order."""
    paths = [trial_path(folder, config) for config in configs]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def sweep(
    trial: Callable[[Config], Mapping[str, object]],
    configs: Sequence[Config],
    folder: Path,
    console: Console,
    *,
    label: str,
    workers: int | None = None,
) -> list[dict[str, Any]]:
    """Run every trial that has no result yet, in processes of one thread each, and return all results in order.

    Args:
        trial: what to run; a module-level function, since it goes to other processes.
        configs: frozen dataclasses, one for each trial.
        folder: where the results are and go.
        console: where to show progress.
        label: what to call the sweep there.
        workers: processes; default: one for each core.

    Returns:
        For each config the saved record, with ``config`` and what the trial returned.
    """
    missing = [config for config in configs if not trial_path(folder, config).exists()]
    # Not fork: torch's thread pools do not survive it.
    context = multiprocessing.get_context("spawn")
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(label, total=len(configs), completed=len(configs) - len(missing))
        if missing:
            count = min(workers or os.cpu_count() or 1, len(missing))
            with ProcessPoolExecutor(count, mp_context=context, initializer=_prepare) as pool:
                running = [pool.submit(_run, trial, config, folder) for config in missing]
                try:
                    for done in as_completed(running):
                        done.result()
                        progress.advance(bar)
                        if not console.is_terminal:  # a log has no bar
                            console.print(f"{label}: {sum(f.done() for f in running)} of {len(missing)}")
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
    return finished(configs, folder)


def _prepare() -> None:
    """Set up a worker: one thread, and an end with its parent, even one that is killed."""
    torch.set_num_threads(1)
    # Dying units leave Adam with denormal moments, on which some processors are a hundred times slower.
    torch.set_flush_denormal(True)
    record.environment()  # which remembers the commit that the worker's code is of
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _run(trial: Callable[[Any], Mapping[str, object]], config: Any, folder: Path) -> None:
    result = trial(config)
    record.save(trial_path(folder, config), {"config": asdict(config), **result})
