"""What all pictures share: colours, axes, names of layers, ticks, and legends that cover no data."""

from __future__ import annotations

import textwrap
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "COLOURS",
    "STYLES",
    "above",
    "logarithmic",
    "name_layers",
    "new_axes",
    "or_nan",
    "say",
    "shortened",
    "spread",
]

# Okabe and Ito's colours, which colour-blind readers can tell apart; the line styles serve print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
_NAMED = 12  # layers whose names fit below an axis
_LONGEST = 30  # characters of a name that leave room for the picture
_DECADE = 10.0

T = TypeVar("T")


def new_axes(ax: Axes | None) -> Axes:
    """Return the axes that were passed, else new ones."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Drawing needs matplotlib: pip install 'unitvar[plot]'.") from error
    return plt.figure(figsize=(6, 4), layout="constrained").subplots()


def logarithmic(ax: Axes) -> None:
    """Make the vertical axis logarithmic, a decade long at least, with plain numbers where they are few.

    What differs by a few per cent should not look wild, and 6 × 10⁻¹ is 0.6.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high < _DECADE * low:
        middle = (low * high) ** 0.5
        low, high = middle / _DECADE**0.5, middle * _DECADE**0.5
        ax.set_ylim(low, high)
    if high < _DECADE**3 * low:
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())


def name_layers(ax: Axes, names: list[str]) -> None:
    """Write the names of layers below the axes: all of a few, else every second or third, and the last."""
    chosen = _strided(len(names), _NAMED)
    labels = [shortened(names[i]) for i in chosen]
    ax.set_xticks([i + 1 for i in chosen], labels, rotation=40, ha="right", rotation_mode="anchor")
    ax.tick_params(axis="x", labelsize="small")


def above(ax: Axes, *, legend: bool, columns: int, title: str = "") -> None:
    """Put legend and title above the axes, where no data is."""
    if legend:
        ax.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns)
    if title:
        rows = 0 if not legend else -(-len(ax.get_legend_handles_labels()[1]) // columns)
        ax.set_title(textwrap.fill(title, 70), fontsize="small", loc="left", pad=8 + 14 * rows)


def say(ax: Axes, words: str) -> None:
    """Write in the middle of empty axes why they are empty."""
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="bottom", color="0.5")


def shortened(name: str) -> str:
    """Leave out the middle of a long name: its beginning says which block, its end which weight."""
    if len(name) <= _LONGEST:
        return name
    parts = name.split(".")
    end = _joined(parts[::-1], _LONGEST // 2)[::-1]
    begin = _joined(parts, _LONGEST - 1 - len(".".join(end)))
    if begin and end:
        return f"{'.'.join(begin)}…{'.'.join(end)}"
    half = (_LONGEST - 1) // 2
    return f"{name[:half]}…{name[half + 1 - _LONGEST :]}"


def _joined(parts: list[str], room: int) -> list[str]:
    """Choose as many of the first parts as have room, with dots between them."""
    lengths = accumulate(len(part) + 1 for part in parts)
    return [part for part, length in zip(parts, lengths, strict=True) if length - 1 <= room]


def spread(names: list[T], most: int) -> list[T]:
    """Choose some, evenly from the first to the last."""
    if len(names) <= most:
        return names
    return [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]


def or_nan(x: float | None) -> float:
    """Return a number that is not drawn in the place of None."""
    return float("nan") if x is None else x


def _strided(count: int, most: int) -> list[int]:
    """Choose indices at equal distances, at most so many, and the last one."""
    step = max(1, -(-(count - 1) // (most - 1)))
    chosen = list(range(0, count, step))
    if chosen and chosen[-1] != count - 1:
        if 2 * (count - 1 - chosen[-1]) <= step:  # too near to stand beside it
            chosen.pop()
        chosen.append(count - 1)
    return chosen
