"""The error by the number of batches that re-estimation sees, and by their size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitvar_reproduction import figures

__all__ = ["draw_sensitivity"]


def draw_sensitivity(rows: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> Path:
    """Draw two panels: error by the number of batches, and by their size, with what it is as trained."""
    figure = figures.figure(8.4, 3.2)
    axes = figure.subplots(1, 2, sharey=True)
    trained = 100 * rows["as trained"][0]["error"]["mean"]
    for ax, what, key, label in (
        (axes[0], "batches", "batches", "batches used"),
        (axes[1], "sizes", "size", "batch size, all images"),
    ):
        values = rows[what]
        spread = [row["error minus all"]["half_width"] for row in values]
        ax.errorbar(
            [row[key] for row in values],
            [100 * row["error"]["mean"] for row in values],
            # Of the difference to all batches: networks differ more among themselves than any of this matters.
            yerr=[100 * (s or 0.0) for s in spread],
            color=figures.COLOURS[0],
            marker="o",
            capsize=3,
            label="mean and variance, dropout off",
        )
        ax.axhline(trained, color=figures.COLOURS[1], linestyle="--", label="as trained")
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel(label)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test error, %")
    axes[0].legend(frameon=False, fontsize="small")
    return figures.save(figure, path)
