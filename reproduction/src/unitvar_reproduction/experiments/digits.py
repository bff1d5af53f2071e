"""Digits: the MNIST comparison at a size that runs anywhere, and two of the paper's smaller claims.

Paper: at keep rates of 0.5 and below its initialisation converges faster; "the practical difference [of the first
layer's factor, 1.0 or 0.5] is miniscule"; BatchNorm removes "the need for a weight initialization which corrects for
dropout variance".
Ours: the network of the MNIST experiment, 128 wide, on the 8x8 digits that scikit-learn embeds: 800 to train on, 200 to
tune on, 797 to test on. Each claim with paired differences over seeds. Two CPU cores, a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from unitvar_reproduction import record
from unitvar_reproduction.experiments import comparison
from unitvar_reproduction.experiments.comparison import NAMES, grid, repeats
from unitvar_reproduction.experiments.mlp import Trial, run_trial
from unitvar_reproduction.statistics import Estimate, estimate
from unitvar_reproduction.sweep.run import finished, shared_pool, sweep

__all__ = ["Digits", "paired", "stages"]

BASE = Trial(
    "digits", "relu", 0.5, "paper", 1e-3, 0, inputs="standardised", epochs=60, batch=32, held_out=200, width=128
)
TARGET = 0.5  # validation log loss
SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "activations": ("relu",),
        "keeps": (1.0, 0.5),
        "inits": ("paper", "xavier", "he", "forward"),
        "rates": (3e-3, 1e-3),
    },
    "paper": {
        "activations": ("tanh", "relu"),
        "keeps": (1.0, 0.5, 0.3),
        "inits": ("paper", "xavier", "he", "forward", "mean"),
        "rates": (3e-3, 1e-3),
    },
}


def stages(
    scale: str, seeds: int, done: Callable[[list[Trial]], list[dict[str, Any]]]
) -> Iterator[tuple[str, list[Trial]]]:
    """Give the trials in stages: rates tuned on the first seed, other seeds at that rate, then the smaller claims."""
    everything = grid(BASE, **SIZES[scale])
    yield "tuning", everything
    again = repeats(done(everything), range(1, seeds))
    yield "more seeds", again
    # All at one rate, whatever was tuned: nothing but the initialisation differs.
    variants = [replace(BASE, init=init) for init in ("paper", "paper-half", "he", "forward")]
    variants += [replace(BASE, init=init, batchnorm=True) for init in ("paper", "he", "forward")]
    yield "smaller claims", [replace(trial, seed=seed) for seed in range(seeds) for trial in variants]


@dataclass(frozen=True)
class Digits:
    """The comparison of initialisations on the embedded digits, and two smaller claims of the paper."""

    scale: Literal["small", "paper"] = "small"
    """paper: tanh and ReLU at the keep rates of the paper; small: ReLU at keep rates 1 and 0.5."""

    out: Path = record.OUT
    """Folder for the summary, the picture and one file a trial."""

    seeds: int = 3
    """Networks of each kind."""

    workers: int | None = None
    """Trials at once; default: one for each core."""

    ray: str | None = None
    """Address of a Ray cluster to run the trials on, such as "auto"."""

    epochs: int = BASE.epochs
    """Epochs of training."""

    def run(self, console: Console) -> None:
        """Train, print, draw and save."""
        folder = self.out / "digits"

        def at_length(trials: list[Trial]) -> list[Trial]:
            return [replace(trial, epochs=self.epochs) for trial in trials]

        records: dict[str, list[dict[str, Any]]] = {}
        with shared_pool(self.workers, self.ray) as pool:
            for label, trials in stages(self.scale, self.seeds, lambda trials: finished(at_length(trials), folder)):
                options = {"label": f"digits, {label}", "workers": self.workers, "pool": pool}
                records[label] = sweep(run_trial, at_length(trials), folder, console, **options)  # type: ignore[arg-type]
        rows = comparison.summarise(records["tuning"] + records["more seeds"], TARGET)
        claims = paired(records["smaller claims"])
        console.print(comparison.table(rows, "8x8 digits: each initialisation at its tuned rate"))
        console.print(_claims_table(claims))
        config = {"scale": self.scale, "seeds": self.seeds, "base": asdict(replace(BASE, epochs=self.epochs))}
        ran = record.combined([r for part in records.values() for r in part])
        payload = {"experiment": "digits", "config": config, "rows": rows, "claims": claims, "environment": ran}
        path = record.save(self.out / "digits.json", payload)
        sizes = SIZES[self.scale]
        picture = comparison.draw_panels(
            rows, self.out / "digits.png", activations=sizes["activations"], keeps=sizes["keeps"]
        )
        console.print(f"Saved {path} and {picture}")


def paired(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each variant's error and log loss, and how they differ from the paper's initialisation, seed by seed."""
    errors: dict[tuple[str, bool], dict[int, Mapping[str, float]]] = {}
    for r in records:
        errors.setdefault((r["config"]["init"], r["config"]["batchnorm"]), {})[r["config"]["seed"]] = r["test"]["best"]
    rows = []
    for (init, batchnorm), own in errors.items():
        against = errors["paper", batchnorm]
        row: dict[str, Any] = {"init": init, "batchnorm": batchnorm, "seeds": len(own)}
        for metric in ("error", "log_loss"):
            row[metric] = asdict(estimate([own[seed][metric] for seed in own]))
            row[f"{metric} minus paper"] = asdict(estimate([own[s][metric] - against[s][metric] for s in own]))
        rows.append(row)
    return sorted(rows, key=lambda row: row["batchnorm"])


def _claims_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    title = f"ReLU, keep {BASE.keep:g}, rate {BASE.rate:g}: paired with the paper's initialisation"
    table = Table(title=title, title_justify="left")
    table.add_column("network")
    table.add_column("init")
    for head in ("test error, %", "Δ error, % points"):
        table.add_column(head, justify="right")
    for i, row in enumerate(rows):
        difference = "–" if row["init"] == "paper" else Estimate(**row["error minus paper"]).percent()
        last = i + 1 < len(rows) and rows[i + 1]["batchnorm"] != row["batchnorm"]
        network = "with BatchNorm" if row["batchnorm"] else "plain"
        table.add_row(network, NAMES[row["init"]], Estimate(**row["error"]).percent(), difference, end_section=last)
    return table
