"""Error against rate, a panel for each optimiser and data set; and the first steps at full width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitvar_reproduction import figures
from unitvar_reproduction.experiments.trainability.summary import OPTIMISERS
from unitvar_reproduction.experiments.trainability.trial import DATASETS, INITS, NAMES

__all__ = ["TITLES", "draw_rates", "draw_starts"]

APART = 0.025  # decades between the points of two initialisations
TITLES = {"mnist": "MNIST", "svhn": "SVHN", "cifar10": "CIFAR-10"}


def draw_rates(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw the validation error against the rate: a point for each seed, a line through their means.

    Where training diverged the error is that of guessing, which a dotted line marks.
    """
    optimisers = [name for name in OPTIMISERS if any(row["optimiser"] == name for row in rows)]
    datasets = [name for name in DATASETS if any(row["dataset"] == name for row in rows)]
    figure = figures.figure(4.3 * len(datasets) + 1.4, 3.0 * len(optimisers) + 0.3)
    axes = figure.subplots(len(optimisers), len(datasets), squeeze=False, sharex=True, sharey="col")
    for i, optimiser in enumerate(optimisers):
        for j, dataset in enumerate(datasets):
            ax = axes[i, j]
            own = [row for row in rows if (row["optimiser"], row["dataset"]) == (optimiser, dataset)]
            for row in own:
                _error(ax, row)
            if own:
                ax.axhline(100 * own[0]["chance"], color="0.6", linewidth=0.8, linestyle=":", zorder=0)
            ax.set_title(f"{TITLES[dataset]}, {OPTIMISERS[optimiser]}", fontsize="medium")
            ax.set_xscale("log")
            ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[-1]:
        ax.set_xlabel("learning rate")
    for ax in axes[:, 0]:
        ax.set_ylabel("validation error, %")
    for init in INITS:
        if any(row["init"] == init for row in rows):
            axes[0, 0].plot([], [], color=_colour(init), marker="o", markersize=3, label=NAMES[init])
    for label, style in (("one seed", {"color": "0.3"}), ("not every seed trains", {"color": "0.3", "mfc": "none"})):
        axes[0, 0].plot([], [], "o", markersize=3, label=label, **style)
    axes[0, 0].plot([], [], color="0.6", linewidth=0.8, linestyle=":", label="guessing")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize="small")
    return figures.save(figure, path)


def _error(ax: Any, row: Mapping[str, Any]) -> None:
    beside = 10 ** (APART * (INITS.index(row["init"]) - (len(INITS) - 1) / 2))  # so that no point hides another
    rates = [found["rate"] * beside for found in row["rates"]]
    seeds = [
        [100 * (row["chance"] if error is None else error) for error in found["validation"].values()]
        for found in row["rates"]
    ]
    colour = _colour(row["init"])
    ax.plot(rates, [sum(errors) / len(errors) for errors in seeds], color=colour, linewidth=0.8)
    for rate, found, errors in zip(rates, row["rates"], seeds, strict=True):
        filled = colour if all(found["trained"].values()) else "none"  # hollow where a seed does not train
        ax.plot([rate] * len(errors), errors, "o", markersize=3, color=colour, markerfacecolor=filled)


def draw_starts(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw two panels against the step: the training loss and the first layer's gradient, a line for each network."""
    figure = figures.figure(9.6, 3.4)
    for ax, (name, label) in zip(
        figure.subplots(1, 2),
        (("training", "training loss"), ("gradient", "gradient of the first layer, RMS")),
        strict=True,
    ):
        for i, row in enumerate(rows):
            values = [float("nan") if value is None else value for value in row["curve"][name]]
            spacing = row["steps"] / row["points"]
            fresh = all(row["init"] != other["init"] for other in rows[:i])
            ax.plot(
                [spacing * (k + 1) for k in range(len(values))],
                values,
                color=_colour(row["init"]),
                linewidth=1.2,
                label=NAMES[row["init"]] if fresh else None,
            )
        ax.set_xlabel("step")
        ax.set_ylabel(label)
        ax.spines[["top", "right"]].set_visible(False)
    figures.log_losses(figure.axes[0])
    figure.axes[1].set_yscale("log")
    figure.axes[0].legend(frameon=False, fontsize="small")
    return figures.save(figure, path)


def _colour(init: str) -> str:
    return figures.COLOURS[INITS.index(init)]
