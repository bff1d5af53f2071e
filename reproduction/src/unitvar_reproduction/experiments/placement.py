"""Where dropout stands decides what re-estimating BatchNorm is worth.

Li et al. (CVPR 2019), Table 3: with dropout 0.5 before every BatchNorm, statistics re-estimated on the training set
lower the test error in 16 of 16 networks (CIFAR-100, DenseNet: 31.45 → 26.98 %). They advise to put dropout after the
last BatchNorm, where nothing has to be re-estimated.
Ours: a small ResNet and a small DenseNet on the embedded 8x8 digits; dropout directly before every BatchNorm, after it
(BN-ReLU-dropout-conv), or only before the head; rates from 0 to 0.5; error and log loss as trained, re-estimated with
dropout on (the control) and with dropout off (ours), on the same weights; the largest ratio of stored to actual
variance beside what a plan predicts of it before training. Seconds a network on one core.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from unitvar import plan, reestimated_bn
from unitvar_reproduction import data, record
from unitvar_reproduction.networks.placed import NETWORKS, PLACES, placed
from unitvar_reproduction.statistics import Estimate, estimate
from unitvar_reproduction.sweep.run import sweep
from unitvar_reproduction.training.batchnorm import Batches, variant
from unitvar_reproduction.training.loop import Schedule, evaluate, seeded, train

__all__ = ["Placement", "Trial", "run_trial", "summarise"]

STATISTICS = ("as trained", "dropout on", "mean and variance")
METRICS = ("error", "log_loss")
NOWHERE = "no dropout"


@dataclass(frozen=True)
class Trial:
    """One network, trained once."""

    network: str
    place: str
    dropout: float
    seed: int
    epochs: int


def run_trial(trial: Trial) -> dict[str, object]:
    """Train one network; return what it is worth with each kind of statistics, and how far its variances were off."""
    training, test = data.digits(trial.seed)
    with seeded(trial.seed):
        model = placed(trial.network, PLACES[0] if trial.place == NOWHERE else trial.place, trial.dropout)
    train(model, training, Schedule(trial.epochs), seed=trial.seed)
    batches = Batches(training)
    found = {}
    for name in STATISTICS:
        with variant(name, model, batches):
            found[name] = evaluate(model, test)
    with reestimated_bn(model, batches) as report:
        ratios = [float(layer.old_var.mean() / layer.new_var.mean()) for layer in report]
    return {"measured": found, "largest_variance_ratio": max(ratios)}


@dataclass(frozen=True)
class Placement:
    """What re-estimation is worth with dropout before BatchNorm, after it or only before the head, on the digits."""

    out: Path = record.OUT
    """Folder for placement.json, placement.png and one file for each trial."""

    seeds: int = 10
    """Networks of each kind."""

    epochs: int = 20
    """Epochs of training."""

    rates: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5)
    """Drop probabilities."""

    workers: int | None = None
    """Trials at once; default: one for each core."""

    ray: str | None = None
    """Address of a Ray cluster to run the trials on, such as "auto"."""

    def run(self, console: Console) -> None:
        """Train, re-estimate, print, draw and save."""
        trials = [
            Trial(network, place, rate, seed, self.epochs)
            for seed in range(self.seeds)
            for network in NETWORKS
            for rate in self.rates
            for place in (PLACES if rate else (NOWHERE,))
        ]
        options = {"label": "placement", "workers": self.workers, "ray": self.ray}
        records = sweep(run_trial, trials, self.out / "placement", console, **options)  # type: ignore[arg-type]
        rows = [row | {"predicted_variance_ratio": predicted(row)} for row in summarise(records)]
        for network in NETWORKS:
            console.print(_table(network, [row for row in rows if row["network"] == network], self.seeds))
        config = {key: value for key, value in asdict(self).items() if key not in ("out", "workers", "ray")}
        payload = {"experiment": "placement", "config": config, "rows": rows, "environment": record.combined(records)}
        path = record.save(self.out / "placement.json", payload)
        console.print(f"Saved {path} and {_draw(rows, self.out / 'placement.png')}")


def predicted(row: dict[str, Any]) -> float:
    """Return the largest variance with dropout on over that with dropout off, at any BatchNorm, before training."""
    place = PLACES[0] if row["place"] == NOWHERE else row["place"]
    shifts = plan(placed(row["network"], place, row["dropout"]), torch.zeros(2, 1, 8, 8)).shifts
    return max(shifts.values(), default=1.0)


def summarise(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each network, place and rate, means with intervals, and paired differences to *as trained*."""
    kinds = dict.fromkeys(tuple(r["config"][key] for key in ("network", "place", "dropout")) for r in records)
    rows = []
    for kind in kinds:
        own = [r for r in records if tuple(r["config"][key] for key in ("network", "place", "dropout")) == kind]
        row: dict[str, Any] = dict(zip(("network", "place", "dropout"), kind, strict=True)) | {"seeds": len(own)}
        row["largest_variance_ratio"] = asdict(estimate([r["largest_variance_ratio"] for r in own]))
        for metric in METRICS:
            values = {name: [r["measured"][name][metric] for r in own] for name in STATISTICS}
            row[metric] = {name: asdict(estimate(found)) for name, found in values.items()}
            row[f"{metric} minus as trained"] = {
                name: asdict(estimate([a - b for a, b in zip(values[name], values[STATISTICS[0]], strict=True)]))
                for name in STATISTICS[1:]
            }
        rows.append(row)
    return rows


def _table(network: str, rows: list[dict[str, Any]], seeds: int) -> Table:
    table = Table(title=f"{network} on 8x8 digits, {seeds} seeds, mean ± 95 % interval", title_justify="left")
    table.add_column("dropout")
    for head in ("error, %", "Δ re-estimated", "log loss", "Δ re-estimated", "Δ dropout on", "var ratio", "planned"):
        table.add_column(head, justify="right")
    for row in sorted(rows, key=lambda row: (*PLACES, NOWHERE).index(row["place"])):
        errors, losses = row["error minus as trained"], row["log_loss minus as trained"]
        table.add_row(
            f"{row['dropout']:g} {row['place']}" if row["dropout"] else NOWHERE,
            Estimate(**row["error"][STATISTICS[0]]).percent(),
            Estimate(**errors[STATISTICS[2]]).percent(),
            f"{Estimate(**row['log_loss'][STATISTICS[0]]):.3f}",
            f"{Estimate(**losses[STATISTICS[2]]):.3f}",
            f"{Estimate(**losses[STATISTICS[1]]):.3f}",
            f"{row['largest_variance_ratio']['mean']:.2f}",
            f"{row['predicted_variance_ratio']:.2f}",
        )
    return table


def _draw(rows: list[dict[str, Any]], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained", dpi=150)
    axes = figure.subplots(1, len(NETWORKS), squeeze=False, sharey=True)[0]
    for ax, network in zip(axes, NETWORKS, strict=True):
        for i, place in enumerate(PLACES):
            own = [row for row in rows if row["network"] == network and row["place"] in (place, NOWHERE)]
            found = [Estimate(**row["log_loss minus as trained"][STATISTICS[2]]) for row in own]
            ax.errorbar(
                [row["dropout"] + 0.006 * (i - 1) for row in own],
                [e.mean for e in found],
                yerr=[e.half_width or 0 for e in found],
                marker="os^"[i],
                color=("#D55E00", "#0072B2", "#009E73")[i],
                capsize=3,
                label=f"dropout {place}",
            )
        ax.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        ax.set_title(network, fontsize="medium")
        ax.set_xlabel("drop probability")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("log loss, re-estimated − as trained")
    axes[0].legend(frameon=False, fontsize="small")
    figure.savefig(path)
    return path
