"""The pictures of the study: loss against rate, and against gain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitvar_reproduction import figures
from unitvar_reproduction.experiments.training.families import FAMILIES, MLPS, ours
from unitvar_reproduction.experiments.training.words import OPTIMISERS, title

__all__ = ["draw_gains", "draw_rates"]

Saved = Sequence[Mapping[str, Any]]
STYLES = {
    "default": figures.COLOURS[1],
    "usual": figures.COLOURS[4],
    "lsuv": figures.COLOURS[3],
    "ours": figures.COLOURS[0],
    "unit": figures.COLOURS[5],
    "gain-0.5": figures.COLOURS[2],
}
COLUMNS = 4
ACTIVATIONS = {"relu": figures.COLOURS[0], "gelu": figures.COLOURS[1], "tanh": figures.COLOURS[2]}
MARKERS = {"2": "v", "4": "o", "8": "s", "12": "^", "16": "D", "24": "P"}  # by depth
DASHES = {"0.0": "-", "0.1": "-", "0.2": "-.", "0.3": "--", "0.4": "-.", "0.5": ":"}  # by dropout
ENOUGH_GAINS = 4  # of one network, for the best to mean something


def draw_rates(saved: Saved, optimiser: str, path: Path) -> Path | None:
    """Draw the tuning loss against the learning rate, a panel a family; return None if there is nothing to draw."""
    own = [row for row in saved if row["optimiser"] == optimiser and row["family"] not in MLPS]
    families = list(dict.fromkeys(row["family"] for row in own))
    if not families:
        return None
    lines = math.ceil((len(families) + 1) / COLUMNS)  # one more for the legend
    figure = figures.figure(3.3 * COLUMNS, 2.5 * lines + 0.3)
    axes = list(figure.subplots(lines, COLUMNS, squeeze=False).flat)
    for ax, family in zip(axes, families, strict=False):
        for name, colour in STYLES.items():
            init = {"usual": FAMILIES[family].usual, "ours": ours(family)}.get(name, name)
            for row in own:
                if row["family"] == family and row["init"] == init:
                    _curve(ax, row, colour)
        ax.set_title(FAMILIES[family].title, fontsize="small")
        ax.set_xscale("log")
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize="x-small")
    for ax in axes[len(families) :]:
        ax.axis("off")
    for name, colour in STYLES.items():
        axes[-1].plot([], [], color=colour, marker="o", markersize=3, label=_legend(name))
    axes[-1].legend(
        loc="center", fontsize="small", frameon=False, title=f"{OPTIMISERS[optimiser]}, rate chosen: large dot"
    )
    figure.supxlabel("learning rate", fontsize="small")
    figure.supylabel("log loss, tuning set", fontsize="small")
    return figures.save(figure, path)


def _legend(name: str) -> str:
    return {"usual": "the family's usual one", "ours": "initialize_"}.get(name) or title(name)


def _curve(ax: Any, row: Mapping[str, Any], colour: str) -> None:
    points = sorted((float(rate), loss) for rate, loss in row["tuning"].items() if loss is not None)
    ax.plot(*zip(*points, strict=True), color=colour, linewidth=1, marker="o", markersize=2)
    best = row["tuning"][f"{row['rate']:g}"]
    if best is not None:
        ax.plot([row["rate"]], [best], color=colour, marker="o", markersize=5)


def draw_gains(found: Saved, path: Path) -> Path | None:
    """Draw, for the plain dense networks, loss against gain, and the best gain against the share of signal."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    optimisers = [name for name in OPTIMISERS if any(row["optimiser"] == name for row in found)]
    if not optimisers:
        return None
    figure = figures.figure(5.2 * len(optimisers), 7)
    axes = figure.subplots(2, len(optimisers), squeeze=False)
    for (above, below), name in zip(axes.T, optimisers, strict=True):
        own = [row for row in found if row["optimiser"] == name]
        for row in own:
            _gain_curve(above, row)
            if len(row["points"]) >= ENOUGH_GAINS:
                _best_gain(below, row)
        above.set_title(OPTIMISERS[name], fontsize="small")
        above.set_xlabel("gain of a hidden layer", fontsize="small")
        above.set_ylabel("log loss at its tuned rate", fontsize="small")
        above.legend(fontsize="x-small", frameon=False)
        above.axvline(1, color="0.8", linewidth=0.8, zorder=0)
        below.set_xlabel("predicted share of signal in the last layer", fontsize="small")
        below.set_ylabel("gain with the lowest loss", fontsize="small")
        for ax in (above, below):
            ax.set_xscale("log")
            ax.spines[["top", "right"]].set_visible(False)
            ax.tick_params(labelsize="x-small", which="both")
        figures.log_losses(above)
        above.xaxis.set_major_locator(FixedLocator([0.25, 0.35, 0.5, 0.7, 1.0, 1.4]))
        above.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        above.xaxis.set_minor_locator(NullLocator())
        below.margins(x=0.25, y=0.2)
        if not any(len(row["points"]) >= ENOUGH_GAINS for row in own):
            below.text(0.5, 0.5, "not run yet", transform=below.transAxes, ha="center", color="0.5")
    return figures.save(figure, path)


def _gain_curve(ax: Any, row: Mapping[str, Any]) -> None:
    _, activation, depth, dropout = row["family"].split("-")
    gains, losses = zip(*((point["gain"], point["loss"]) for point in row["points"]), strict=True)
    label = f"{activation}, {depth} layers, dropout {dropout}"
    style = {"color": ACTIVATIONS[activation], "linestyle": DASHES.get(dropout, "-"), "linewidth": 1}
    ax.plot(gains, losses, label=label, marker=MARKERS.get(depth, "o"), markersize=4, **style)


def _best_gain(ax: Any, row: Mapping[str, Any]) -> None:
    _, activation, depth, dropout = row["family"].split("-")
    ax.plot(row["signal"], row["best"], color=ACTIVATIONS[activation], marker=MARKERS.get(depth, "o"), markersize=4)
    words = f"{depth} layers,\ndropout {dropout}"
    ax.annotate(words, (row["signal"], row["best"]), (4, 4), textcoords="offset points", fontsize="x-small")
