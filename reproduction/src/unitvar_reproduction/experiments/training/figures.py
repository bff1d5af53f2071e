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
DEPTHS = {"4": figures.COLOURS[0], "8": figures.COLOURS[1], "12": figures.COLOURS[2], "16": figures.COLOURS[3]}
MARKERS = {"relu": "o", "gelu": "s", "tanh": "^"}
DASHES = {"0.0": "-", "0.1": "-", "0.2": "-.", "0.3": "--", "0.4": "-.", "0.5": ":"}  # by dropout
SPREAD = 4  # layers that a dropout of one would move a point by, so that those of one depth stand apart
ENOUGH_GAINS = 4  # of one network, for the best to mean something


def draw_rates(saved: Saved, optimiser: str, path: Path) -> Path | None:
    """Draw the tuning loss against the learning rate, one panel per family; return None if there is nothing to draw."""
    own = [row for row in saved if row["optimiser"] == optimiser and row["family"] not in MLPS]
    families = list(dict.fromkeys(row["family"] for row in own))
    if not families:
        return None
    lines = math.ceil((len(families) + 1) / COLUMNS)  # one more for the legend
    figure = figures.figure(3.3 * COLUMNS, 2.5 * lines + 0.3)
    axes = list(figure.subplots(lines, COLUMNS, squeeze=False).flat)
    for ax, family in zip(axes, families, strict=False):
        for place, (name, colour) in enumerate(STYLES.items()):
            init = {"usual": FAMILIES[family].usual, "ours": ours(family)}.get(name, name)
            for row in own:
                if row["family"] == family and row["init"] == init:
                    _curve(ax, row, colour)
                    _crosses(ax, row, colour, 0.98 - 0.05 * place)
        ax.set_title(FAMILIES[family].title, fontsize="small")
        ax.set_xscale("log")
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize="x-small")
    for ax in axes[len(families) :]:
        ax.axis("off")
    drawn = {row["init"] for row in own}
    usual = {FAMILIES[family].usual for family in families}
    for name, colour in STYLES.items():
        if name != "ours" and not drawn & (usual if name == "usual" else {name}):
            continue
        axes[-1].plot([], [], color=colour, marker="o", markersize=3, label=_legend(name))
    if any(None in row["tuning"].values() for row in own):
        axes[-1].plot([], [], color="0.3", marker="x", markersize=4, linestyle="", label="diverged")
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


def _crosses(ax: Any, row: Mapping[str, Any], colour: str, height: float) -> None:
    """Mark the rates at which training diverged, at a height of the panel of its own for each colour."""
    rates = [float(rate) for rate, loss in row["tuning"].items() if loss is None]
    where = ax.get_xaxis_transform()
    ax.plot(rates, [height] * len(rates), color=colour, marker="x", markersize=4, linestyle="", transform=where)


def draw_gains(found: Saved, path: Path) -> Path | None:
    """Draw, for the plain dense networks, loss against gain, and the best gain against depth and share of signal."""
    optimisers = [name for name in OPTIMISERS if any(row["optimiser"] == name for row in found)]
    if not optimisers:
        return None
    figure = figures.figure(5.2 * len(optimisers), 9)
    axes = figure.subplots(3, len(optimisers), squeeze=False)
    for (curves, by_depth, by_signal), name in zip(axes.T, optimisers, strict=True):
        own = [row for row in found if row["optimiser"] == name]
        told = [row for row in own if len(row["points"]) >= ENOUGH_GAINS]
        for row in (row for row in own if len(row["points"]) > 1):
            _gain_curve(curves, row)
        for row in told:
            _, _, depth, dropout = row["family"].split("-")
            by_depth.plot(int(depth) + SPREAD * (float(dropout) - 0.3), row["best"], **_style(row["family"]))
            by_signal.plot(row["signal"], row["best"], **_style(row["family"]))
        _finish_gains(curves, by_depth, by_signal)
        curves.set_title(OPTIMISERS[name], fontsize="small")
        if not told:
            by_depth.text(0.5, 0.5, "not run yet", transform=by_depth.transAxes, ha="center", color="0.5")
    lines = {line.get_label(): line for ax in axes[0] for line in ax.get_lines() if line.get_label()[0] != "_"}
    figure.legend(lines.values(), lines, loc="outside upper center", ncols=3, fontsize="x-small", frameon=False)
    return figures.save(figure, path)


def _finish_gains(curves: Any, by_depth: Any, by_signal: Any) -> None:
    """Label the axes of one optimiser, and draw the gain that leaves 3 % of a signal's size."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    curves.axvline(1, color="0.8", linewidth=0.8, zorder=0)
    depths = [depth / 10 for depth in range(30, 181)]
    by_depth.plot(depths, [0.03 ** (1 / depth) for depth in depths], color="0.5", linewidth=1, zorder=0)
    by_depth.annotate(
        "0.03^(1/layers)", (10, 0.03 ** (1 / 10)), (-20, 10), textcoords="offset points", fontsize="x-small"
    )
    curves.set_xscale("log")
    by_signal.set_xscale("log")
    for ax, across, up in (
        (curves, "gain of a hidden layer", "log loss at its tuned rate"),
        (by_depth, "layers (of one depth: dropout 0.1 at the left to 0.5 at the right)", "gain with the lowest loss"),
        (by_signal, "predicted share of signal in the last layer", "gain with the lowest loss"),
    ):
        ax.set_xlabel(across, fontsize="small")
        ax.set_ylabel(up, fontsize="small")
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize="x-small", which="both")
    figures.log_losses(curves)
    curves.xaxis.set_major_locator(FixedLocator([0.25, 0.35, 0.5, 0.7, 1.0, 1.4]))
    curves.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    curves.xaxis.set_minor_locator(NullLocator())
    by_depth.xaxis.set_major_locator(FixedLocator([4, 8, 12, 16]))
    for ax in (by_depth, by_signal):
        ax.set_ylim(0.25, 1.1)
    by_signal.margins(x=0.25)


def _style(family: str) -> dict[str, Any]:
    _, activation, depth, _ = family.split("-")
    return {"color": DEPTHS[depth], "marker": MARKERS[activation], "markersize": 4}


def _gain_curve(ax: Any, row: Mapping[str, Any]) -> None:
    _, activation, depth, dropout = row["family"].split("-")
    gains, losses = zip(*((point["gain"], point["loss"]) for point in row["points"]), strict=True)
    label = f"{activation}, {depth} layers, dropout {dropout}"
    ax.plot(gains, losses, label=label, linestyle=DASHES.get(dropout, "-"), linewidth=1, **_style(row["family"]))
