"""Dropout at test time: switched off, sampled, or integrated out in one pass.

Paper: dropout off. Its MNIST networks at keep 0.3 err on more than half of the test set that way.
Ours: eight trained networks with dropout: the paper's MLP at three keep rates, a VGG at two learning rates, a DenseNet,
a vision transformer, a U-Net. Error, log loss and calibration with dropout off, with 1, 10, 50 and 100 samples, and
with unitvar.expect; how well each way tells wrong answers and images of another data set. Short training, to compare
ways of asking one network, not networks. Some minutes a network on one core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from unitvar_reproduction import record
from unitvar_reproduction.experiments.expectation.tasks import TASKS
from unitvar_reproduction.experiments.expectation.trial import Trial, run_trial
from unitvar_reproduction.experiments.expectation.weights import cached
from unitvar_reproduction.statistics import Estimate, estimate

__all__ = ["Expectation", "summarised"]


@dataclass(frozen=True)
class Expectation:
    """Dropout at test time: switched off, sampled, or integrated out."""

    data_dir: Path | None = None
    """Folder that holds mnist, cifar-10-batches-bin and svhn; default: download them into the cache."""

    out: Path = record.OUT
    """Folder for expectation.json and a file for each network."""

    weights: Path | None = None
    """Folder for trained weights, so that a network is judged again without training; default: the cache."""

    tasks: tuple[str, ...] = tuple(TASKS)
    """Networks to train."""

    seeds: int = 3
    """Networks of each kind."""

    judged: int = 1000
    """Test images."""

    def run(self, console: Console) -> None:
        """Train what is not there yet, judge, print and save."""
        unknown = [task for task in self.tasks if task not in TASKS]
        if unknown:
            raise ValueError(f"tasks={unknown[0]!r} is not one of {', '.join(map(repr, TASKS))}.")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for seed in range(self.seeds):
                for task in self.tasks:
                    self._trial(Trial(task, seed, self.judged), console)
        finally:
            torch.set_num_threads(threads)
        trials = [record.load(path) for path in sorted((self.out / "expectation").glob("*.json"))]
        rows = summarised(trials)
        console.print(_table(rows))
        payload = {"experiment": "expectation", "rows": rows, "environment": record.combined(trials)}
        console.print(f"Saved {record.save(self.out / 'expectation.json', payload)}")

    def _trial(self, trial: Trial, console: Console) -> None:
        path = self.out / "expectation" / f"{trial.task}_{trial.seed}.json"
        if path.exists():
            return
        found = run_trial(trial, self.data_dir, self.weights or cached())
        record.save(path, found)
        console.print(f"{trial.task} {trial.seed}: {found['minutes']} minutes, {found['agreement']}")


def summarised(trials: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and confidence interval of every measure, for each network and each way of asking it."""
    rows: list[dict[str, Any]] = []
    for task in TASKS:
        own = [trial for trial in trials if trial["config"]["trial"]["task"] == task]
        for way in own[0]["ways"] if own else ():
            measures = [trial["ways"][way] for trial in own]
            means = {
                key: _entry(estimate([m[key] for m in measures]))
                for key in measures[0]
                if all(key in m for m in measures)
            }
            rows.append({"task": task, "way": way, "networks": len(own), **means})
        if own:
            agreement = {key: _entry(estimate([t["agreement"][key] for t in own])) for key in own[0]["agreement"]}
            rows.append({"task": task, "way": "logits against 100 samples", "networks": len(own), **agreement})
    return rows


def _entry(found: Estimate) -> dict[str, float | None]:
    half = float("nan") if found.half_width is None else found.half_width
    return record.finite({"mean": found.mean, "half_width": half})


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Dropout at test time", title_justify="left")
    heads = {
        "error": "error %",
        "log_loss": "log loss",
        "calibration_error": "ECE %",
        "other_by_entropy": "AUROC other",
    }
    for head in ("network", "way", *heads.values()):
        table.add_column(head, justify="left" if head in ("network", "way") else "right")
    for row in rows:
        if "error" in row:
            cells = [
                row[key]["mean"] * (100 if "%" in head else 1) if key in row else None for key, head in heads.items()
            ]
            table.add_row(row["task"], row["way"], *("" if c is None else f"{c:.3g}" for c in cells))
    return table
