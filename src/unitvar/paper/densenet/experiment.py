"""DenseNets with dropout: what re-estimating BatchNorm with dropout off is worth, and what of it is dropout's.

Paper (§3, Table 2): re-estimating the variance lowers the test error of every DenseNet, half-way (before the first drop
of the rate) and at the end: on CIFAR-10 from 6.37 to 6.07 % and from 5.62 to 5.38 %, on CIFAR-100 from 24.56 to 22.48 %
and from 23.91 to 22.48 % at keep rate 0.7, on SVHN from 5.18 to 4.19 % and from 1.92 to 1.85 %.
Ours: the same with ``--scale paper``, plus the control that the paper lacks (re-estimated with dropout on) and our
variant (mean and variance), and the error by the number and the size of the batches. SVHN without its extra images.
By default L = 22, k = 8, 10,000 images and 20 epochs; three networks of each kind on CIFAR-10, one on the others.
Two CPU cores: half an hour a network and core.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from rich.console import Console

from unitvar.paper import data, record
from unitvar.paper.densenet.figures import draw_sensitivity
from unitvar.paper.densenet.summary import sensitivity_rows, summarise, table
from unitvar.paper.densenet.trial import Trial, run_trial
from unitvar.paper.pools import check_device
from unitvar.paper.replicas import replica
from unitvar.paper.sweep import checkpoint_path, finished, forget_checkpoint, sweep
from unitvar.paper.values import TABLE2

__all__ = ["Densenet", "plan"]

SMALL: dict[str, Any] = {"depth": 22, "growth": 8, "epochs": 20, "images": 10_000}
ROWS = (("cifar10", 0.8), ("cifar10", 0.7), ("cifar100", 0.8), ("cifar100", 0.7), ("svhn", 0.8))


def plan(scale: str, seeds: int, others: int, **sizes: Any) -> list[Trial]:
    """Return the trials, a seed at a time, CIFAR-10 first.

    Args:
        scale: ``small``, or ``paper`` for the networks of Table 2.
        seeds: networks of each kind on CIFAR-10.
        others: networks of each kind on the other data sets.
        sizes: fields of the trials to change.
    """
    if scale == "small":
        rows = [Trial(dataset, keep=keep, seed=0, **SMALL | sizes) for dataset, keep in ROWS]
    else:
        rows = [
            Trial(
                row.dataset,
                row.depth,
                row.growth,
                row.keep,
                0,
                **{"epochs": 40 if row.dataset == "svhn" else 300} | sizes,
            )
            for row in TABLE2
        ]
    rows.sort(key=lambda trial: trial.dataset != "cifar10")
    numbers = {trial: seeds if trial.dataset == "cifar10" else others for trial in rows}
    return [
        Trial(**{**asdict(trial), "seed": seed, "sensitivity": trial.dataset == "cifar10" and trial.keep == 0.8})
        for seed in range(max(numbers.values()))
        for trial in rows
        if seed < numbers[trial]
    ]


@dataclass(frozen=True)
class Densenet:
    """DenseNets whose BatchNorm is re-estimated in four ways: the paper's Table 2, with controls."""

    parallel: ClassVar[bool] = True  # torchrun trains one network in all of its processes

    scale: Literal["small", "paper"] = "small"
    """paper: the networks of Table 2, GPUs and days; small: for two CPU cores, hours."""

    out: Path = Path("results")
    """Folder for the summary, the picture, one file a trial, and checkpoints of those that run."""

    data_dir: Path | None = None
    """Folder that holds cifar-10-batches-bin, cifar-100-binary and svhn; default: download them into the cache."""

    seeds: int = 3
    """Networks of each kind on CIFAR-10."""

    other_seeds: int = 1
    """Networks of each kind on CIFAR-100 and SVHN."""

    depth: int | None = None
    """Layers L = 3 n + 4; default: the table's, or 22 at small scale."""

    growth: int | None = None
    """Channels k that a layer adds; default: the table's, or 8 at small scale."""

    epochs: int | None = None
    """Epochs of training; default: 300 (40 for SVHN), or 20 at small scale."""

    images: int | None = None
    """Images to train on; default: all, or 10,000 at small scale."""

    workers: int | None = None
    """Trials at once; default: one for each core."""

    ray: str | None = None
    """Address of a Ray cluster to run the trials on, such as "auto"."""

    device: str = "cpu"
    """Where to train: cpu, cuda, …"""

    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: convolutions in half the bits, by autocast; these are other trials."""

    compiled: bool = False
    """Compile the network first."""

    train: bool = True
    """Train what has not been trained yet; otherwise summarise what is there."""

    def run(self, console: Console) -> None:
        """Train, print, draw and save."""
        trials = self._trials()
        if self.train:
            if self.ray is None:  # else the nodes of the cluster have device and data
                check_device(self.device)
                data.check(dict.fromkeys(trial.dataset for trial in trials), self.data_dir, console)
            trial = functools.partial(
                _run_saved, out=self.out, data_dir=self.data_dir, device=self.device, compiled=self.compiled
            )
            settled = functools.partial(forget_checkpoint, self.out)
            options = {"label": "DenseNet", "workers": self.workers, "ray": self.ray, "device": self.device}
            sweep(trial, trials, self._folder, console, settled=settled, **options)  # type: ignore[arg-type]
        if replica().first:
            self._conclude(trials, console)

    def _trials(self) -> list[Trial]:
        given = {name: getattr(self, name) for name in ("depth", "growth", "epochs", "images")}
        sizes = {name: value for name, value in given.items() if value is not None} | {"precision": self.precision}
        return plan(self.scale, self.seeds, self.other_seeds, **sizes)

    @property
    def _name(self) -> str:
        return "densenet" if self.scale == "paper" else "densenet_small"

    @property
    def _folder(self) -> Path:
        return self.out / self._name

    def _conclude(self, trials: list[Trial], console: Console) -> None:
        """Summarise the trials that are done, a part of the plan or all."""
        records = finished(trials, self._folder)
        if not records:
            raise ValueError(f"No trial of this plan is in {self._folder}. Run it without --no-train.")
        rows, by_batches = summarise(records), sensitivity_rows(records)
        for drawn in self._tables(rows):
            console.print(drawn)
        config = {"scale": self.scale, "seeds": self.seeds, "other_seeds": self.other_seeds}
        done = {"trials": len(records), "planned": len(trials)}
        found = {"rows": rows, "sensitivity": by_batches, "environment": record.combined(records)}
        payload = {"experiment": self._name, "config": config, "done": done, **found}
        path = record.save(self.out / f"{self._name}.json", payload)
        console.print(f"Saved {path}")
        if by_batches:
            console.print(f"Saved {draw_sensitivity(by_batches, self.out / f'{self._name}_batches.png')}")

    def _tables(self, rows: list[dict[str, Any]]) -> Iterator[Any]:
        for dataset in dict.fromkeys(row["dataset"] for row in rows):
            yield table([row for row in rows if row["dataset"] == dataset], dataset)


def _run_saved(trial: Trial, *, out: Path, **options: Any) -> dict[str, Any]:
    return run_trial(trial, checkpoint=checkpoint_path(out, trial), **options)
