"""What re-estimation loses with fewer batches, and with smaller ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitvar_reproduction import figures

__all__ = ["draw_sensitivity"]


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
