"""One network over training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unitvar.plot.axes import STYLES, logarithmic, new_axes, or_nan, say, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["over_steps"]


def over_steps(rows: Sequence[Mapping[str, Any]], what: str, *, ax: Axes | None = None, legend: bool = True) -> Axes:
    """Draw a quantity over training steps on a logarithmic axis, one line per layer, from dark (first) to light (last).

    Args:
        rows: of a :class:`unitvar.History`, one per layer and observed step.
        what: ``"weight_gradient_norm"``, ``"update_ratio"``, ``"gradient"`` or ``"variance"``.
        ax: where to draw; default: new axes.
        legend: whether to name the lines.

    Returns:
        The axes.
    """
    names = {
        "weight_gradient_norm": "norm of the weight's gradient",
        "update_ratio": "norm of the update over that of the weight",
        "gradient": "E g²",
        "variance": "E z²",
    }
    if what not in names:
        raise ValueError(f"what={what!r} is not one of {', '.join(map(repr, names))}.")
    ax = new_axes(ax)
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    from unitvar.flow.tally import labelled

    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        label = labelled(row["name"], row["use"])
        lines.setdefault(label, []).append((row["step"], or_nan(row[what])))
    # Dark to light reads in grey, too, and viridis' yellow end is too light for paper.
    shades = colormaps["viridis"]
    shown = spread(list(lines), 8)
    for i, (label, points) in enumerate(lines.items()):
        colour = shades(0.85 * i / max(1, len(lines) - 1))
        steps, values = zip(*points, strict=True)
        ax.plot(steps, values, color=colour, linestyle=STYLES[i % len(STYLES)], linewidth=1.2,
                label=label if label in shown else "_", marker="." if len(points) < 3 else "")  # fmt: skip
    ax.set(xlabel="step", ylabel=names[what])
    logarithmic(ax)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.spines[["top", "right"]].set_visible(False)
    if not lines:
        say(ax, "no step was observed")
    elif legend:
        some = f"{len(shown)} of {len(lines)} weights" if len(shown) < len(lines) else None
        ax.legend(frameon=False, fontsize="small", title=some, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax
