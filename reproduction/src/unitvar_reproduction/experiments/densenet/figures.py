"""What each way to re-estimate is worth, and what it loses with fewer batches and with smaller ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitvar_reproduction import figures

__all__ = ["draw_sensitivity", "draw_variants"]

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}
MOMENTS = {"halfway": "half-way", "end": "at the end"}
LABELS = {
    "dropout on": "both, dropout on (control)",
    "variance only": "variance, dropout off (paper)",
    "mean and variance": "both, dropout off (reestimate_bn_)",
}


def draw_variants(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw the error of each way to re-estimate minus that of the network as trained, paired, a panel a moment.

    A bar is the 95 % interval over networks; a hollow point is one network, which has none.
    """
    shown = [row for row in rows if row["arm"] in LABELS and row["against"]["as trained"]["error"]]
    kinds = list(dict.fromkeys(map(_kind, shown)))
    figure = figures.figure(8.4, 1.5 + 0.55 * len(kinds))
    axes = figure.subplots(1, len(MOMENTS), sharey=True)
    for ax, (moment, title) in zip(axes, MOMENTS.items(), strict=True):
        ax.axvline(0, color="0.7", linewidth=0.8, zorder=0)
        for row in (row for row in shown if row["moment"] == moment):
            place = list(LABELS).index(row["arm"])
            difference = row["against"]["as trained"]["error"]
            alone = difference["half_width"] is None
            ax.errorbar(
                100 * difference["mean"],
                kinds.index(_kind(row)) + 0.22 * (place - 1),
                xerr=None if alone else 100 * difference["half_width"],
                color=figures.COLOURS[place],
                marker="o",
                markersize=4,
                markerfacecolor="white" if alone else None,
                capsize=2,
            )
        ax.set_title(title, fontsize="medium")
        ax.set_xlabel("error minus as trained, points", fontsize="small")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(kinds)), [f"{TITLES[d]}, L = {depth}, keep {keep:g}" for d, depth, keep in kinds])
    axes[0].set_ylim(len(kinds) - 0.5, -0.5)  # the first at the top
    for place, label in enumerate(LABELS.values()):
        axes[0].plot([], [], color=figures.COLOURS[place], marker="o", markersize=4, label=label)
    figures.legend(figure, axes[0])
    return figures.save(figure, path)


def _kind(row: Mapping[str, Any]) -> tuple[str, int, float]:
    return row["dataset"], row["depth"], row["keep"]


def draw_sensitivity(rows: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> Path:
    """Draw two panels: the error minus that with all batches of 64, each with the interval of that difference.

    Differences, not errors: networks differ among themselves by more than the number of batches matters.
    """
    figure = figures.figure(8.4, 3.4)
    axes = figure.subplots(1, 2, sharey=True)
    trained = rows["as trained"][0]["error minus all"]
    for ax, what, key, label in (
        (axes[0], "batches", "batches", "batches of 64 used"),
        (axes[1], "sizes", "size", "batch size, all images used"),
    ):
        ax.axhline(0, color="0.7", linewidth=0.8, zorder=0)
        differences = [row["error minus all"] for row in rows[what]]
        ax.errorbar(
            [row[key] for row in rows[what]],
            [100 * d["mean"] for d in differences],
            yerr=[100 * (d["half_width"] or 0.0) for d in differences],
            color=figures.COLOURS[0],
            marker="o",
            capsize=3,
            label="re-estimated, dropout off",
        )
        if trained["half_width"]:
            low, high = (100 * (trained["mean"] + sign * trained["half_width"]) for sign in (-1, 1))
            ax.axhspan(low, high, color=figures.COLOURS[1], alpha=0.12, linewidth=0, label="as trained, 95 % interval")
        ax.axhline(100 * trained["mean"], color=figures.COLOURS[1], linestyle="--", label="as trained")
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel(label)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test error minus all batches of 64,\npercentage points, 95 % interval", fontsize="small")
    figures.legend(figure, axes[1])
    return figures.save(figure, path)
