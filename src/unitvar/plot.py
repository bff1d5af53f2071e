"""Pictures: every function takes an axes and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["by_depth"]

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
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.figure(figsize=(6, 4), layout="constrained").subplots()
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
