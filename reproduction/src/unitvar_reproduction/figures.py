"""What the pictures of the experiments have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unitvar_reproduction.experiments.synthetic import Histogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "colour_legend", "corner", "densities", "figure", "legend", "log_losses", "save"]

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#999999",
)  # Okabe and Ito's, and grey


def figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=130)


def save(drawn: Figure, path: Path) -> Path:
    """Write a figure; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path)
    return path


def log_losses(ax: Axes) -> Axes:
    """Make the vertical axis logarithmic; over few decades, with plain numbers at 1, 2 and 5 between the powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high / low < 1000:
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_locator(NullLocator())
    return ax


def densities(ax: Axes, histograms: Mapping[str, Histogram], *, range_from: Iterable[Histogram] = ()) -> Axes:
    """Draw densities as outlines, on a logarithmic axis so that wide and narrow ones can be seen at once.

    Args:
        ax: where to draw.
        histograms: a density for each label.
        range_from: densities whose range, a half wider, the axes show, and all axes that share it.
    """
    for (label, histogram), colour in zip(histograms.items(), COLOURS, strict=False):
        x, y = histogram.steps()
        ax.plot(x, y, color=colour, linewidth=1, label=label)
    ax.set_yscale("log")
    edges = [abs(edge) for histogram in range_from for edge in (histogram.low, histogram.high)]
    if edges:
        reach = 1.5 * max(edges)
        ax.set_xlim(-reach, reach)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize="small")
    ax.locator_params(axis="x", nbins=5)
    return ax


def corner(ax: Axes, text: str) -> None:
    """Write a number into the upper left corner of a panel."""
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
    ax.text(0.02, 0.98, text, transform=ax.transAxes, ha="left", va="top", fontsize="x-small", bbox=box)


def legend(figure: Figure, ax: Axes) -> None:
    """Explain the lines of one panel above all of them."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize="small")


def colour_legend(figure: Figure, names: Sequence[tuple[str, str]]) -> None:
    """Explain colours above all panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, label=name) for name, colour in names]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(names), frameon=False, fontsize="small")
