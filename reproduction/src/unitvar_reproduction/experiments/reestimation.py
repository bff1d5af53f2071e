"""BatchNorm re-estimation on the embedded digits, with the control that the paper lacks.

Paper (§3, on DenseNets at scale): re-estimating the variance with dropout off lowers the test error, half-way through
training and at its end.
Ours: a small DenseNet and an MLP on 8x8 digits, drop rate 0.5, 10 seeds, half-way (before the first rate drop) and at
the end, four variants: as trained; re-estimated with dropout *on*; variance only, dropout off (the paper); mean and
variance, dropout off (ours). The second variant shows what part of a gain is not dropout's but a fresh estimate's.
Then weight averaging, where BatchNorm must be recomputed anyway: torch's update_bn against ours, on the same weights.
Two CPU cores, minutes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

from unitvar import reestimated_bn
from unitvar_reproduction import data, networks, record
from unitvar_reproduction.statistics import Estimate, estimate
from unitvar_reproduction.sweep.run import sweep
from unitvar_reproduction.training.batchnorm import VARIANTS, Batches, in_every_variant
from unitvar_reproduction.training.loop import Schedule, evaluate, seeded, train

__all__ = ["Reestimation", "Trial", "run_trial"]

MOMENTS = ("halfway", "end")
METRICS = ("error", "log_loss")
AVERAGED = ("averaged: not recomputed", "averaged: update_bn", "averaged: ours")


@dataclass(frozen=True)
class Trial:
    """One network, trained once."""

    network: str
    seed: int
    dropout: float
    epochs: int


def build(trial: Trial) -> nn.Module:
    """Build the network of a trial, its weights drawn from the seed."""
    with seeded(trial.seed):
        if trial.network == "densenet":
            return networks.DenseNet(13, 8, trial.dropout, channels=1)
        return networks.mlp(64, trial.dropout)


def run_trial(trial: Trial) -> dict[str, object]:
    """Train one network and measure every variant half-way, at the end, and after averaging weights."""
    training, test = data.digits(trial.seed)
    batches = Batches(training)
    model = build(trial)
    schedule = Schedule(trial.epochs)
    measured: dict[str, dict[str, dict[str, float]]] = {}

    def after_epoch(epoch: int) -> None:
        moment = {trial.epochs // 2: "halfway", trial.epochs: "end"}.get(epoch)
        if moment:
            measured[moment] = in_every_variant(model, batches, lambda: evaluate(model, test))

    train(model, training, schedule, seed=trial.seed, after_epoch=after_epoch)
    measured["averaged"] = averaged(trial, training, test, batches)
    return {"measured": measured}


def averaged(trial: Trial, training: data.Images, test: data.Images, batches: Batches) -> dict[str, dict[str, float]]:
    """Average the weights of the last quarter's epochs of another run, and recompute BatchNorm in three ways."""
    model = build(trial)
    mean = AveragedModel(model)

    def after_epoch(epoch: int) -> None:
        if epoch > 0.75 * trial.epochs:
            mean.update_parameters(model)

    # Only one drop: averaging lives on a rate that still moves the weights.
    train(model, training, Schedule(trial.epochs, drops=(0.5,)), seed=trial.seed, after_epoch=after_epoch)
    before = {name: value.clone() for name, value in mean.state_dict().items()}
    found = {AVERAGED[0]: evaluate(mean, test)}
    with seeded(trial.seed):
        update_bn(batches, mean)
    found[AVERAGED[1]] = evaluate(mean, test)
    mean.load_state_dict(before)
    with reestimated_bn(mean, batches):
        found[AVERAGED[2]] = evaluate(mean, test)
    return found


@dataclass(frozen=True)
class Reestimation:
    """BatchNorm re-estimated in four ways, half-way and at the end of training, on the embedded digits."""

    out: Path = record.OUT
    """Folder for reestimation.json, reestimation.png and one file for each trial."""

    seeds: int = 10
    """Networks of each kind."""

    epochs: int = 40
    """Epochs of training."""

    dropout: float = 0.5
    """Drop probability."""

    workers: int | None = None
    """Trials at once; default: one for each core."""

    ray: str | None = None
    """Address of a Ray cluster to run the trials on, such as "auto"."""

    def run(self, console: Console) -> None:
        """Train, measure, print, draw and save."""
        trials = [
            Trial(network, seed, self.dropout, self.epochs)
            for network in ("densenet", "mlp")
            for seed in range(self.seeds)
        ]
        folder = self.out / "reestimation"
        if self.epochs < 2:
            raise ValueError(f"epochs={self.epochs} has no half-way point; train for 2 or more.")
        options = {"label": "reestimation", "workers": self.workers, "ray": self.ray}
        records = sweep(run_trial, trials, folder, console, **options)  # type: ignore[arg-type]
        rows = summarise(records)
        for network in ("densenet", "mlp"):
            console.print(_table(network, [row for row in rows if row["network"] == network], self))
        config = {key: value for key, value in asdict(self).items() if key not in ("out", "workers", "ray")}
        payload = {
            "experiment": "reestimation",
            "config": config,
            "rows": rows,
            "environment": record.combined(records),
        }
        path = record.save(self.out / "reestimation.json", payload)
        console.print(f"Saved {path} and {_draw(rows, self.out / 'reestimation.png')}")


def summarise(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each network, moment and variant, means with intervals and the paired difference to the first."""
    rows: list[dict[str, Any]] = []
    for network in dict.fromkeys(r["config"]["network"] for r in records):
        own = [r["measured"] for r in records if r["config"]["network"] == network]
        for moment, variants in (*((m, VARIANTS) for m in MOMENTS), ("averaged", AVERAGED)):
            for name in variants:
                row: dict[str, Any] = {"network": network, "moment": moment, "arm": name, "seeds": len(own)}
                for metric in METRICS:
                    values = [m[moment][name][metric] for m in own]
                    row[metric] = asdict(estimate(values))
                    for against in variants[: variants.index(name)]:
                        differences = [v - m[moment][against][metric] for v, m in zip(values, own, strict=True)]
                        row[f"{metric} minus {against}"] = asdict(estimate(differences))
                rows.append(row)
    return rows


def _table(network: str, rows: list[dict[str, Any]], experiment: Reestimation) -> Table:
    title = f"{network} on 8x8 digits, dropout {experiment.dropout:g}, {experiment.seeds} seeds, mean ± 95 % interval"
    table = Table(title=title, title_justify="left")
    for head in ("moment", "BatchNorm"):
        table.add_column(head)
    for head in ("test error, %", "log loss", "paired Δ error"):
        table.add_column(head, justify="right")
    for row in rows:
        first = (AVERAGED if row["moment"] == "averaged" else VARIANTS)[0]
        difference = row.get(f"error minus {first}")
        table.add_row(
            row["moment"],
            row["arm"].removeprefix("averaged: "),
            Estimate(**row["error"]).percent(),
            f"{Estimate(**row['log_loss']):.3f}",
            Estimate(**difference).percent() if difference else "–",
            end_section=row["arm"] in (VARIANTS[-1], AVERAGED[-1]),
        )
    return table


def _draw(rows: list[dict[str, Any]], path: Path) -> Path:
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(row["network"] for row in rows))
    figure = Figure(figsize=(9, 3.6), layout="constrained", dpi=150)
    axes = figure.subplots(1, len(kinds), squeeze=False)[0]
    for ax, network in zip(axes, kinds, strict=True):
        for offset, (moment, marker, colour) in enumerate((("halfway", "o", "#0072B2"), ("end", "s", "#D55E00"))):
            chosen = [row for row in rows if row["network"] == network and row["moment"] == moment]
            ax.errorbar(
                [i + 0.16 * (offset - 0.5) for i in range(len(chosen))],
                [100 * row["error"]["mean"] for row in chosen],
                yerr=[100 * (row["error"]["half_width"] or 0) for row in chosen],
                linestyle="",
                marker=marker,
                color=colour,
                capsize=3,
                label=moment,
            )
        ax.set_xticks(range(len(VARIANTS)), [name.replace(" ", "\n", 1) for name in VARIANTS], fontsize="small")
        ax.set_ylim(bottom=0)
        ax.set_ylabel("test error, %")
        ax.set_title(network, fontsize="medium")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False)
    figure.savefig(path)
    return path
