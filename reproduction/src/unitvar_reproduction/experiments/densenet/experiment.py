"""DenseNets with dropout: what re-estimating BatchNorm with dropout off is worth, and what of it is dropout's.

Paper (§3, Table 2): re-estimating the variance lowers the test error of every DenseNet, half-way (before the first drop
of the rate) and at the end: on CIFAR-10 from 6.37 to 6.07 % and from 5.62 to 5.38 %, on CIFAR-100 from 24.56 to 22.48 %
and from 23.91 to 22.48 % at keep rate 0.7, on SVHN from 5.18 to 4.19 % and from 1.92 to 1.85 %.
Ours: the same with ``--scale paper``, plus the control that the paper lacks (re-estimated with dropout on) and our
variant (mean and variance), and the error by the number and the size of the batches. SVHN without its extra images.
By default L = 22, k = 8, 10,000 images and 12 epochs; three networks of each kind on CIFAR-10, one on the others. Half
an hour a network and CPU core. ``--scale medium`` has the L = 40 and k = 12 of the paper's SVHN network on all images
of CIFAR-10 for six epochs, and on SVHN the small network for longer; both re-estimate from 10,000 images. Two hours a
network and core with ``--precision bfloat16``, twice that without.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from rich.console import Console

from unitvar_reproduction import record
from unitvar_reproduction.experiments.densenet.figures import draw_sensitivity, draw_variants
from unitvar_reproduction.experiments.densenet.summary import sensitivity_rows, summarise, tables
from unitvar_reproduction.experiments.densenet.trial import Trial, run_trial
from unitvar_reproduction.networks.architectures import layers_a_block
from unitvar_reproduction.sweep.staged import Stage, StagedSweep, resumable
from unitvar_reproduction.values import TABLE2

__all__ = ["Densenet", "plan"]

SMALL: dict[str, Any] = {"depth": 22, "growth": 8, "epochs": 12, "images": 10_000}
MEDIUM = (
    Trial("cifar10", 40, 12, 0.8, 0, epochs=6, reestimated=10_000),
    Trial("svhn", SMALL["depth"], SMALL["growth"], 0.8, 0, epochs=40, reestimated=10_000),
)
ROWS = (("cifar10", 0.8), ("cifar10", 0.7), ("cifar100", 0.8), ("cifar100", 0.7), ("svhn", 0.8))


def plan(scale: str, seeds: int, others: int, **sizes: Any) -> list[Trial]:
    """Return the trials, a seed at a time, CIFAR-10 first.

    Args:
        scale: ``small``, ``medium``, or ``paper`` for the networks of Table 2.
        seeds: networks of each kind on CIFAR-10.
        others: networks of each kind on the other data sets.
        sizes: fields of the trials to change.
    """
    if scale == "small":
        rows = [Trial(dataset, keep=keep, seed=0, **SMALL | sizes) for dataset, keep in ROWS]
    elif scale == "medium":
        rows = [replace(trial, **sizes) for trial in MEDIUM]
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
        replace(trial, seed=seed, sensitivity=scale != "medium" and trial.dataset == "cifar10" and trial.keep == 0.8)
        for seed in range(max(numbers.values()))
        for trial in rows
        if seed < numbers[trial]
    ]


@dataclass(frozen=True)
class Densenet(StagedSweep):
    """DenseNets whose BatchNorm is re-estimated in four ways: the paper's Table 2, with controls."""

    kind: ClassVar[str] = "densenet"
    title: ClassVar[str] = "DenseNet"

    scale: Literal["small", "medium", "paper"] = "small"
    """paper: the networks of Table 2, GPUs and days; small and medium: for two CPU cores, hours."""

    seeds: int = 3
    """Networks of each kind on CIFAR-10."""

    other_seeds: int = 1
    """Networks of each kind on CIFAR-100 and SVHN."""

    depth: int | None = None
    """Layers L = 3 n + 4; default: the table's, 40 and 22 at medium scale, 22 at small."""

    growth: int | None = None
    """Channels k that a layer adds; default: the table's, 12 and 8 at medium scale, 8 at small."""

    epochs: int | None = None
    """Epochs of training; default: 300 (40 for SVHN), 6 (40) at medium scale, 12 at small."""

    images: int | None = None
    """Images to train on; default: all, or 10,000 at small scale."""

    def stages(self) -> Iterator[Stage]:
        """Give all trials at once."""
        if self.depth is not None:
            layers_a_block(self.depth)  # which says what a depth can be, before data are read and workers started
        given = {name: getattr(self, name) for name in ("depth", "growth", "epochs", "images")}
        sizes = {name: value for name, value in given.items() if value is not None} | {"precision": self.precision}
        yield "all", plan(self.scale, self.seeds, self.other_seeds, **sizes)

    def runner(self) -> Callable[..., dict[str, Any]]:
        """Return the function that runs a trial and saves its training."""
        return functools.partial(resumable, run=run_trial, out=self.out.resolve())

    def conclude(self, planned: list[Trial], records: list[dict[str, Any]], console: Console) -> None:
        """Print, draw and save."""
        rows, by_batches = summarise(records), sensitivity_rows(records)
        lost = sum(r["diverged"] is not None for r in records)
        for table in tables(rows):
            console.print(table)
        if lost:
            console.print(f"{lost} of {len(records)} networks diverged; later numbers are of the others.")
        names = ("scale", "seeds", "other_seeds", "precision")
        config = {name: getattr(self, name) for name in names}
        done = {"trials": len(records), "planned": len(planned), "diverged": lost}
        found = {"rows": rows, "sensitivity": by_batches, "environment": record.combined(records)}
        payload = {"experiment": self.name, "config": config, "done": done, **found}
        path = record.save(self.out / f"{self.name}.json", payload)
        console.print(f"Saved {path}")
        if rows:
            console.print(f"Saved {draw_variants(rows, self.out / f'{self.name}_ways.png')}")
        if by_batches:
            console.print(f"Saved {draw_sensitivity(by_batches, self.out / f'{self.name}_batches.png')}")
