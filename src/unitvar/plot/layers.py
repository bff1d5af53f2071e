"""One network, layer by layer in execution order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unitvar.plot.axes import COLOURS, STYLES, above, logarithmic, name_layers, new_axes, or_nan, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["by_depth", "flow", "ratio_by_layer", "scales", "shares"]


def by_depth(
    lines: Mapping[str, Sequence[float]],
    *,
    ax: Axes | None = None,
    legend: bool = True,
) -> Axes:
    """Draw second moments against depth on a logarithmic axis.

    Args:
        lines: label → one value for each layer.
        ax: where to draw; default: new axes.
        legend: whether to name the lines; once is enough when several calls draw the same labels.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    for i, (label, values) in enumerate(lines.items()):
        colour, style = COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)]
        ax.plot(range(1, len(values) + 1), values, color=colour, linestyle=style, linewidth=1.2, label=label)
    ax.set_yscale("log")
    ax.set_xlabel("layer")
    ax.set_ylabel("E z²")
    ax.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    ax.spines[["top", "right"]].set_visible(False)
    if not lines:
        say(ax, "none")
    elif legend:
        ax.legend(frameon=False, fontsize="small")
    return ax


def ratio_by_layer(
    low: Sequence[float],
    middle: Sequence[float],
    high: Sequence[float],
    names: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw new over old variance, layer by layer: the median channel, and a band of the others.

    Args:
        low: one ratio for each layer, the lower edge of the band.
        middle: the medians.
        high: the upper edge.
        names: of the layers; default: their numbers.
        ax: where to draw; default: new axes.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    from matplotlib.ticker import MaxNLocator

    layers = range(1, len(middle) + 1)
    ax.fill_between(layers, low, high, color=COLOURS[0], alpha=0.25, linewidth=0, label="5–95 % of channels")
    if len(middle) == 1:  # a band of no width shows nothing
        ax.vlines(layers, low, high, color=COLOURS[0], alpha=0.25, linewidth=8)
    ax.plot(layers, middle, color=COLOURS[0], marker="o", markersize=4, label="median channel")
    ax.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    ax.set(xlabel="BatchNorm, in execution order", ylabel="new / old variance")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if names is not None:
        name_layers(ax, list(names))
    logarithmic(ax)
    ax.spines[["top", "right"]].set_visible(False)
    above(ax, legend=True, columns=2)
    return ax


def flow(rows: Sequence[Mapping[str, Any]], *, ax: Axes | None = None, legend: bool = True, title: str = "") -> Axes:
    """Draw variance against depth on a logarithmic axis: measured as points, predicted as lines.

    Of gradients the picture shows what the verdict judges: the squared norm, E g² times the elements of the layer, over
    that of the last layer that has one. A pool or another width changes E g² without harm, and does not show.

    Args:
        rows: of a :class:`unitvar.VarianceReport`, one per layer.
        ax: where to draw; default: new axes.
        legend: whether to name what is drawn, above the axes.
        title: above everything, such as the verdict.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    from unitvar.flow.tally import labelled

    layers = range(1, len(rows) + 1)
    sizes = [row["size"] for row in rows]
    last = next((row["gradient"] * row["size"] for row in reversed(rows) if row["gradient"]), 1.0)
    kinds = (("variance", "signal E z²", "o", "-"), ("gradient", "squared gradient norm, relative", "^", "--"))
    for colour, (what, label, marker, style) in zip(COLOURS, kinds, strict=False):
        over = [size / last for size in sizes] if what == "gradient" else [1.0] * len(rows)
        predicted = [or_nan(row[f"predicted_{what}"]) * scale for row, scale in zip(rows, over, strict=True)]
        measured = [or_nan(row[what]) * scale for row, scale in zip(rows, over, strict=True)]
        ax.plot(layers, measured, color=colour, linestyle="", marker=marker, markersize=4, label=label,
                markerfacecolor="white" if what == "gradient" else colour)  # fmt: skip
        ax.plot(layers, predicted, color=colour, linestyle=style, linewidth=1.2, label="predicted")
    ax.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    ax.set_ylabel("mean square")
    logarithmic(ax)
    name_layers(ax, [labelled(row["name"], row["use"]) for row in rows])
    ax.spines[["top", "right"]].set_visible(False)
    above(ax, legend=legend, columns=2, title=title)
    return ax


def scales(rows: Sequence[Mapping[str, Any]], *, ax: Axes | None = None, legend: bool = True) -> Axes:
    """Draw what a plan finds and does, weight by weight on a logarithmic axis: E x² before it, and the scale it gets.

    Args:
        rows: of a :class:`unitvar.Plan`, one per weight.
        ax: where to draw; default: new axes.
        legend: whether to name what is drawn, above the axes.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    layers = range(1, len(rows) + 1)
    kinds = (("second", "E x² of its input", "o"), ("scale", "scale: norm of a row", "s"),
             ("predicted", "E z² of its output", "^"))  # fmt: skip
    for colour, style, (what, label, marker) in zip(COLOURS, STYLES, kinds, strict=False):
        face = "white" if what == "predicted" else colour
        ax.plot(layers, [or_nan(row[what]) for row in rows], color=colour, linestyle=style, linewidth=1.0,
                marker=marker, markersize=4, markerfacecolor=face, label=label)  # fmt: skip
    ax.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    ax.set_ylabel("mean square, norm")
    logarithmic(ax)
    name_layers(ax, [row["name"] for row in rows])
    ax.spines[["top", "right"]].set_visible(False)
    if not rows:
        say(ax, "the plan has no weights")
    above(ax, legend=legend and bool(rows), columns=2)
    return ax


def shares(rows: Sequence[Mapping[str, Any]], *, ax: Axes | None = None) -> Axes:
    """Draw what E z² is made of, layer by layer: common to all examples, telling them apart, noise of dropout masks.

    Args:
        rows: of a plan or of a report; lines show the prediction beside a measurement.
        ax: where to draw; default: new axes.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    from unitvar.flow.tally import labelled

    known = [row for row in rows if row.get("signal") is not None and row.get("noise") is not None]
    if not known:
        say(ax, "nothing to show: measure with 2 runs or more, on 2 examples or more")
        return ax
    depth = range(1, len(known) + 1)
    signal, noise = ([min(1.0, max(0.0, row[what])) for row in known] for what in ("signal", "noise"))
    common = [max(0.0, 1 - s - n) for s, n in zip(signal, noise, strict=True)]
    names = ("common to all examples", "tells examples apart", "noise of dropout masks")
    ax.stackplot(depth, common, signal, noise, labels=names, colors=("0.88", COLOURS[0], COLOURS[4]), alpha=0.9)
    if all(row.get("predicted_signal") is not None for row in known):
        lower = [1 - row["predicted_signal"] - row["predicted_noise"] for row in known]
        upper = [1 - row["predicted_noise"] for row in known]
        for edge, label in ((lower, "predicted"), (upper, None)):
            ax.plot(depth, edge, color="black", linewidth=1, linestyle="--", label=label)
    ax.set(ylabel="share of E z²", ylim=(0, 1), xlim=(1, max(2, len(known))))
    name_layers(ax, [labelled(row["name"], row.get("use", 1)) for row in known])
    ax.spines[["top", "right"]].set_visible(False)
    above(ax, legend=True, columns=2)
    return ax
