"""Healthy: one deep network with dropout under four initialisations, before and during training.

Paper: shows densities at initialisation (its Figure 1) and gradients of a VGG during training.
Ours: 20 dense ReLU layers of 256, drop rate 0.2, on the embedded 8x8 digits. `measure` tells before the first step
which of PyTorch's default, Xavier, He and ours lets signal and gradient through; `watch` shows what becomes of it. Each
trains at every rate of a small grid, and is shown at the one with the lowest training loss. Two CPU cores, minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import unitvar
from unitvar import History, VarianceReport, plot
from unitvar_reproduction import data, record
from unitvar_reproduction.arguments import AtLeast
from unitvar_reproduction.progress import steps
from unitvar_reproduction.training.loop import Schedule, evaluate, train

__all__ = ["FILLS", "Healthy", "network"]


def network(*, depth: int, width: int, dropout: float) -> nn.Sequential:
    """Build a plain network for 8x8 images: no norms, no shortcuts."""
    layers: list[nn.Module] = [nn.Flatten()]
    for i in range(depth - 1):
        layers += [nn.Linear(64 if i == 0 else width, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def _each(fill: Callable[[Tensor], object]) -> Callable[[nn.Module, Tensor], object]:
    def filled(model: nn.Module, batch: Tensor) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                _ = fill(parameter) if parameter.dim() > 1 else parameter.zero_()

    return filled


FILLS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "PyTorch's default": lambda model, batch: None,
    "Xavier": _each(nn.init.xavier_uniform_),
    "He": _each(lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu")),
    "unitvar": partial(unitvar.initialize_, inputs="standard"),  # as recorded
}


@dataclass(frozen=True)
class _Trial:
    """One network trained at one rate."""

    fill: str
    rate: float
    seed: int
    train_loss: float
    test_error: float
    history: History = field(repr=False, compare=False)


@dataclass(frozen=True)
class Healthy:
    """A 20-layer network with dropout under four initialisations: what flows before training and during it."""

    out: Path = record.OUT
    """Folder for healthy.json, healthy.png and healthy-training.png."""

    depth: Annotated[int, AtLeast(2)] = 20
    """Weights."""

    width: int = 256
    """Units in a layer."""

    dropout: float = 0.2
    """Drop probability after every activation."""

    epochs: int = 40
    """Epochs of 1,000 images."""

    seeds: int = 3
    """Networks for each initialisation and rate."""

    rates: tuple[float, ...] = (0.03, 0.01, 0.003)
    """Learning rates to choose from, by the mean training loss."""

    every: int = 20
    """Steps from one observation to the next."""

    def run(self, console: Console) -> None:
        """Measure, train, print, draw and save."""
        reports = {fill: self._measured(fill) for fill in FILLS}
        cases = [(fill, rate, seed) for fill in FILLS for rate in self.rates for seed in range(self.seeds)]
        trials = [self._trained(*case) for case in steps(cases, "healthy", console)]
        best = {fill: self._best([t for t in trials if t.fill == fill]) for fill in FILLS}
        for fill, report in reports.items():
            console.print(f"{fill}: {report.verdict}", markup=False, highlight=False)
        console.print(_table(best))
        config = {key: value for key, value in asdict(self).items() if key != "out"}
        kept = [{k: v for k, v in vars(t).items() if k != "history"} for t in trials]
        payload: dict[str, Any] = {
            "experiment": "healthy",
            "config": config,
            "verdicts": {fill: report.verdict for fill, report in reports.items()},
            "layers": {fill: report.rows for fill, report in reports.items()},
            "trials": kept,
            "history": {fill: _norms(chosen[0].history) for fill, chosen in best.items()},
        }
        path = record.save(self.out / "healthy.json", payload)
        self._draw_flow(reports)
        self._draw_training(best)
        console.print(f"Saved {path}, healthy.png and healthy-training.png")

    def _built(self, fill: str, seed: int) -> tuple[nn.Sequential, data.Images, data.Images]:
        train_set, test_set = data.digits(seed)
        torch.manual_seed(seed)
        model = network(depth=self.depth, width=self.width, dropout=self.dropout)
        FILLS[fill](model, train_set.images[:64])
        return model, train_set, test_set

    def _measured(self, fill: str) -> VarianceReport:
        model, train_set, _ = self._built(fill, 0)
        return unitvar.measure(model, train_set.images[:500])

    def _trained(self, fill: str, rate: float, seed: int) -> _Trial:
        model, train_set, test_set = self._built(fill, seed)
        with unitvar.watch(model, every=self.every) as history:
            train(model, train_set, Schedule(self.epochs, rate), seed=seed)
        loss = evaluate(model, train_set)["log_loss"]
        return _Trial(fill, rate, seed, loss, evaluate(model, test_set)["error"], history)

    def _best(self, trials: list[_Trial]) -> list[_Trial]:
        """Choose the rate with the lowest mean training loss; what is not a number loses."""
        by_rate = [[t for t in trials if t.rate == rate] for rate in self.rates]
        losses = [_mean([t.train_loss for t in ts]) for ts in by_rate]
        return by_rate[min(range(len(losses)), key=lambda i: (math.isnan(losses[i]), losses[i]))]

    def _draw_flow(self, reports: dict[str, VarianceReport]) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(14, 6.6), layout="constrained", dpi=150)
        axes = figure.subplots(2, len(reports), sharey="row", sharex="row")
        for i, (fill, report) in enumerate(reports.items()):
            plot.flow(report.rows, ax=axes[0, i], legend=False)
            axes[0, i].set_title(fill)
            model, train_set, _ = self._built(fill, 0)
            plot.distributions(model, train_set.images[:500], ax=axes[1, i], legend=False)
            axes[0, i].set_ylabel("mean square" if i == 0 else "")
        axes[1, 0].set_xlim(-4, 4)
        above, below = (
            dict(zip(("handles", "labels"), ax.get_legend_handles_labels(), strict=True)) for ax in axes[:, 0]
        )
        figure.legend(**above, loc="outside upper center", ncols=4, frameon=False, fontsize="small")
        figure.legend(**below, loc="outside lower center", ncols=4, frameon=False, fontsize="small")
        figure.savefig(self.out / "healthy.png")

    def _draw_training(self, best: dict[str, list[_Trial]]) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(14, 3.6), layout="constrained", dpi=150)
        axes = figure.subplots(1, len(best), sharey=True)
        for i, (fill, trials) in enumerate(best.items()):
            plot.over_steps(trials[0].history.rows, "weight_gradient_norm", ax=axes[i], legend=i == len(best) - 1)
            axes[i].set_title(f"{fill}, rate {trials[0].rate:g}")
            axes[i].set_ylabel(axes[i].get_ylabel() if i == 0 else "")
        figure.savefig(self.out / "healthy-training.png")


def _norms(history: History) -> dict[str, list[float | None]]:
    """Keep what is drawn: the norms of each weight's gradient, one for each observed step."""
    norms: dict[str, list[float | None]] = {}
    for row in history.rows:
        norm = row["weight_gradient_norm"]
        norms.setdefault(str(row["name"]), []).append(float(f"{norm:.4g}") if isinstance(norm, float) else None)
    return norms


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _table(best: dict[str, list[_Trial]]) -> Table:
    seeds = len(next(iter(best.values())))
    table = Table(title=f"At each one's best rate, mean (lowest … highest) of {seeds} seeds", title_justify="left")
    table.add_column("initialisation")
    for head in ("rate", "training loss", "test error"):
        table.add_column(head, justify="right")
    for fill, trials in best.items():
        losses, errors = [t.train_loss for t in trials], [100 * t.test_error for t in trials]
        cells = (f"{_mean(x):.3g} ({min(x):.3g} … {max(x):.3g})" for x in (losses, errors))
        table.add_row(fill, f"{trials[0].rate:g}", *(f"{c} %" if i else c for i, c in enumerate(cells)))
    return table
