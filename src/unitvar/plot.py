"""Pictures: every function takes an axes and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["by_depth", "ratio_by_layer"]

# Okabe and Ito's colours, which colour-blind readers can tell apart; the line styles serve print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")


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
    ax = _axes(ax)
    for i, (label, values) in enumerate(lines.items()):
        colour, style = _COLOURS[i % len(_COLOURS)], _STYLES[i % len(_STYLES)]
        ax.plot(range(1, len(values) + 1), values, color=colour, linestyle=style, linewidth=1.2, label=label)
    ax.set_yscale("log")
    ax.set_xlabel("layer")
    ax.set_ylabel("E z²")
    ax.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        ax.legend(frameon=False, fontsize="small")
    return ax


def ratio_by_layer(
    low: Sequence[float], middle: Sequence[float], high: Sequence[float], *, ax: Axes | None = None
) -> Axes:
    """Draw new over old variance, layer by layer: the median channel, and a band of the others.

    Args:
        low: one ratio for each layer, the lower edge of the band.
        middle: the medians.
        high: the upper edge.
        ax: where to draw; default: new axes.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    layers = range(1, len(middle) + 1)
    ax.fill_between(layers, low, high, color=_COLOURS[0], alpha=0.25, linewidth=0, label="5–95 % of channels")
    ax.plot(layers, middle, color=_COLOURS[0], marker="o", markersize=4, label="median channel")
    ax.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    ax.set(yscale="log", xlabel="BatchNorm, in execution order", ylabel="new / old variance")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small")
    return ax


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Drawing needs matplotlib: pip install 'unitvar[plot]'.") from error
    return plt.figure(figsize=(6, 4), layout="constrained").subplots()
