"""How many batches re-estimation needs: stopping by its own standard error, on CIFAR-10.

Paper: feeds the whole training set forward (its code five times).
Ours: tolerance=0.01 stops when the worst channel's variance is known to 1 %. A small DenseNet with dropout, trained on
part of CIFAR-10; for each tolerance, over several shuffles, the share of the 50,000 images that was used, how far the
variances are from those of the full pass, and how far the test error is. Two CPU cores, ten minutes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from unitvar import BatchNormReport, reestimated_bn
from unitvar_reproduction import data, networks, record
from unitvar_reproduction.progress import steps
from unitvar_reproduction.statistics import Estimate, estimate
from unitvar_reproduction.training.batchnorm import Batches
from unitvar_reproduction.training.loop import Schedule, evaluate, seeded, train

__all__ = ["Tolerance"]


@dataclass(frozen=True)
class Tolerance:
    """How much of CIFAR-10 re-estimation needs when it stops by its own standard error."""

    data_dir: Path | None = None
    """Folder that holds cifar-10-batches-bin; default: download it into the cache."""

    out: Path = record.OUT
    """Folder for tolerance.json."""

    tolerances: tuple[float, ...] = (0.1, 0.03, 0.01)
    """Relative standard errors at which to stop."""

    shuffles: int = 5
    """Orders of the data for each."""

    images: int = 10_000
    """Images to train on; re-estimation may use all 50,000."""

    epochs: int = 6
    """Epochs of training."""

    batch: int = 64
    """Batch size of training and of re-estimation."""

    dropout: float = 0.2
    """Drop probability."""

    def run(self, console: Console) -> None:
        """Train, measure, print and save."""
        everything, test = data.standardised(*data.cifar10(self.data_dir))
        with seeded(0):
            model = networks.DenseNet(16, 8, self.dropout)

        def after_epoch(epoch: int) -> None:
            console.print(f"epoch {epoch}/{self.epochs}: test error {100 * evaluate(model, test)['error']:.1f} %")

        train(model, everything[: self.images], Schedule(self.epochs), seed=0, after_epoch=after_epoch)
        trained = evaluate(model, test)
        with reestimated_bn(model, Batches(everything, self.batch, 0)) as full:
            complete = evaluate(model, test)
        trials: list[dict[str, Any]] = []
        settings = [(t, s) for t in self.tolerances for s in range(1, self.shuffles + 1)]
        for tolerance, seed in steps(settings, "tolerance", console):
            with reestimated_bn(model, Batches(everything, self.batch, seed), tolerance=tolerance) as report:
                found = evaluate(model, test)
            trials.append(
                {
                    "tolerance": tolerance,
                    "seed": seed,
                    "batches": report.batches,
                    "share": report.batches / full.batches,
                    "variance_deviation": _deviation(report, full),
                    "error_difference": found["error"] - complete["error"],
                    "log_loss_difference": found["log_loss"] - complete["log_loss"],
                }
            )
        console.print(_table(trials, self.tolerances))
        console.print(
            f"Test error {100 * trained['error']:.2f} % as trained, {100 * complete['error']:.2f} % after a full pass "
            f"of {full.batches} batches."
        )
        config = {key: value for key, value in asdict(self).items() if key not in ("out", "data_dir")}
        payload = {"experiment": "tolerance", "config": config, "as_trained": trained, "full_pass": complete}
        path = record.save(self.out / "tolerance.json", {**payload, "trials": trials})
        console.print(f"Saved {path}")


def _deviation(report: BatchNormReport, full: BatchNormReport) -> float:
    """Return the largest relative difference of a variance, over channels and layers."""
    return max(
        (ours.new_var / theirs.new_var - 1).abs().max().item() for ours, theirs in zip(report, full, strict=True)
    )


def _table(trials: list[dict[str, Any]], tolerances: tuple[float, ...]) -> Table:
    table = Table(title="Re-estimation that stops by its standard error, CIFAR-10", title_justify="left")
    for head in ("tolerance", "batches", "share of 50,000", "worst variance off by", "Δ error, % points"):
        table.add_column(head, justify="right")
    for tolerance in tolerances:
        own = [trial for trial in trials if trial["tolerance"] == tolerance]

        def over(key: str, own: list[dict[str, Any]] = own) -> Estimate:
            return estimate([trial[key] for trial in own])

        table.add_row(
            f"{tolerance:g}",
            f"{over('batches').mean:.0f}",
            f"{100 * over('share').mean:.1f} %",
            f"{100 * over('variance_deviation').mean:.1f} %",
            over("error_difference").percent(),
        )
    return table
