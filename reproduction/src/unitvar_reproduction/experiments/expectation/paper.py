"""The paper's own networks with dropout integrated out: the column that its MNIST table lacks.

Paper (§2.3.1): MNIST, 8 layers of 256, keep rates 0.5 and 0.3, judged with dropout off; ReLU at 0.3 gains most.
Ours: the same networks, trained again from the same seeds with the paper's weights and the rate that suits them best,
and judged by all test images with dropout off, sampled and integrated out, at the point of the best validation loss.
Then the VGG of §2.3.2 at a quarter of its width under Adam at 0.0001: a small rate, at which it errs less with dropout
left on. Four minutes a network on one core for MNIST, half an hour for the VGG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from unitvar_reproduction import record
from unitvar_reproduction.data.images import Images
from unitvar_reproduction.experiments import mlp
from unitvar_reproduction.experiments.expectation.trial import answers, judged
from unitvar_reproduction.experiments.vgg import trial as vgg
from unitvar_reproduction.statistics import estimate
from unitvar_reproduction.training.loop import seeded

__all__ = ["NETWORKS", "Integrated", "summarised"]

_RATES = {("relu", 0.3): 1e-4}  # elsewhere 1e-3 is the best for the paper's weights

NETWORKS: dict[str, mlp.Trial | vgg.Trial] = {
    **{
        f"{activation}-{keep}": mlp.Trial("mnist", activation, keep, "paper", _RATES.get((activation, keep), 1e-3), 0)
        for keep in (0.3, 0.5)
        for activation in ("relu", "tanh", "elu", "gelu")
    },
    "vgg": vgg.Trial("adam", 1e-4, "paper", 0, width=16, epochs=12, batch=64),
}


@dataclass(frozen=True)
class Integrated:
    """The paper's MNIST networks and a VGG with dropout off, sampled, and integrated out."""

    data_dir: Path | None = None
    """Folder that holds mnist and cifar-10-batches-bin; default: download them into the cache."""

    out: Path = record.OUT
    """Folder for integrated.json and a file for each network."""

    networks: tuple[str, ...] = ("relu-0.3", "relu-0.5")
    """Networks to train: activation and keep rate, or vgg."""

    seeds: int = 3
    """Networks of each kind."""

    def run(self, console: Console) -> None:
        """Train what is not there yet, judge, print and save."""
        unknown = [name for name in self.networks if name not in NETWORKS]
        if unknown:
            raise ValueError(f"networks={unknown[0]!r} is not one of {', '.join(map(repr, NETWORKS))}.")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for name in self.networks:
                for seed in range(self.seeds):
                    self._trial(name, seed, console)
        finally:
            torch.set_num_threads(threads)
        trials = [record.load(path) for path in sorted((self.out / "integrated").glob("*.json"))]
        rows = summarised(trials)
        console.print(_table(rows))
        payload = {"experiment": "integrated", "rows": rows, "environment": record.combined(trials)}
        console.print(f"Saved {record.save(self.out / 'integrated.json', payload)}")

    def _trial(self, name: str, seed: int, console: Console) -> None:
        path = self.out / "integrated" / f"{name}_{seed}.json"
        if path.exists():
            return
        found = run_trial(name, seed, self.data_dir)
        record.save(path, found)
        console.print(f"{name} {seed}: " + ", ".join(f"{w} {100 * m['error']:.2f} %" for w, m in found["ways"].items()))


def run_trial(name: str, seed: int, data_dir: Path | None = None) -> dict[str, Any]:
    """Train one of the paper's networks, and judge it with dropout off, sampled and integrated out."""
    trial = replace(NETWORKS[name], seed=seed)
    found: dict[str, dict[str, float]] = {}

    def judge(model: nn.Module, test: Images) -> None:
        with seeded(1000 + seed), torch.no_grad():
            found.update({way: judged(answer, test.labels) for way, answer in answers(model, test.images)})

    if isinstance(trial, mlp.Trial):
        whole = mlp.run_trial(trial, data_dir=data_dir, judge=judge)
    else:
        whole = vgg.run_trial(trial, data_dir=data_dir, judge=judge)
    return {
        "config": {"network": name, "trial": asdict(trial)},
        "ways": found,
        "seconds": whole["seconds"],
        "environment": record.environment(),
    }


def summarised(trials: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and confidence interval of every measure, for each network and each way of asking it."""
    rows: list[dict[str, Any]] = []
    for name in NETWORKS:
        own = [trial["ways"] for trial in trials if trial["config"]["network"] == name]
        for way in own[0] if own else ():
            row: dict[str, Any] = {"network": name, "way": way, "networks": len(own)}
            for key in own[0][way]:
                found = estimate([ways[way][key] for ways in own])
                row[key] = record.finite({"mean": found.mean, "half_width": found.half_width or float("nan")})
            rows.append(row)
    return rows


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="The paper's networks at test time", title_justify="left")
    for head in ("network", "way", "error %", "log loss"):
        table.add_column(head, justify="left" if head in ("network", "way") else "right")
    for row in rows:
        table.add_row(row["network"], row["way"], f"{100 * row['error']['mean']:.3g}", f"{row['log_loss']['mean']:.3g}")
    return table
