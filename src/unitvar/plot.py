"""Pictures: every function takes an axes and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

__all__ = ["by_depth", "distributions", "flow", "over_steps", "ratio_by_layer", "scales", "shares"]

# Okabe and Ito's colours, which colour-blind readers can tell apart; the line styles serve print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_NAMED = 12  # layers whose names fit below an axis

T = TypeVar("T")


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
    if not lines:
        _say(ax, "none")
    elif legend:
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
    _above(ax, legend=True, columns=2)
    return ax


def flow(rows: Sequence[Mapping[str, Any]], *, ax: Axes | None = None, legend: bool = True, title: str = "") -> Axes:
    """Draw variance against depth on a logarithmic axis: measured as points, predicted as lines.

    Of gradients the picture shows what the verdict judges: the squared norm, E g² times the elements of the layer, over
    that of the last layer that has one. A pool or another width changes E g² without harm, and does not show.

    Args:
        rows: of a :class:`unitvar.VarianceReport`, one a layer.
        ax: where to draw; default: new axes.
        legend: whether to name what is drawn, above the axes.
        title: above everything, such as the verdict.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    from unitvar.flow.tally import labelled

    layers = range(1, len(rows) + 1)
    sizes = [row["size"] for row in rows]
    last = next((row["gradient"] * row["size"] for row in reversed(rows) if row["gradient"]), 1.0)
    kinds = (("variance", "signal E z²", "o", "-"), ("gradient", "squared gradient norm, relative", "^", "--"))
    for colour, (what, label, marker, style) in zip(_COLOURS, kinds, strict=False):
        over = [size / last for size in sizes] if what == "gradient" else [1.0] * len(rows)
        predicted = [_or_nan(row[f"predicted_{what}"]) * scale for row, scale in zip(rows, over, strict=True)]
        measured = [_or_nan(row[what]) * scale for row, scale in zip(rows, over, strict=True)]
        ax.plot(layers, measured, color=colour, linestyle="", marker=marker, markersize=4, label=label,
                markerfacecolor="white" if what == "gradient" else colour)  # fmt: skip
        ax.plot(layers, predicted, color=colour, linestyle=style, linewidth=1.2, label="predicted")
    ax.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    ax.set(yscale="log", ylabel="mean square")
    _name_layers(ax, [labelled(row["name"], row["use"]) for row in rows])
    ax.spines[["top", "right"]].set_visible(False)
    _above(ax, legend=legend, columns=2, title=title)
    return ax


def scales(rows: Sequence[Mapping[str, Any]], *, ax: Axes | None = None, legend: bool = True) -> Axes:
    """Draw what a plan finds and does, weight by weight on a logarithmic axis: E x² before it, and the scale it gets.

    Args:
        rows: of a :class:`unitvar.Plan`, one a weight.
        ax: where to draw; default: new axes.
        legend: whether to name what is drawn, above the axes.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    layers = range(1, len(rows) + 1)
    kinds = (("second", "E x² of what reaches it", "o"), ("scale", "scale: norm of a row", "s"),
             ("predicted", "E z² of what leaves it", "^"))  # fmt: skip
    for colour, style, (what, label, marker) in zip(_COLOURS, _STYLES, kinds, strict=False):
        face = "white" if what == "predicted" else colour
        ax.plot(layers, [_or_nan(row[what]) for row in rows], color=colour, linestyle=style, linewidth=1.0,
                marker=marker, markersize=4, markerfacecolor=face, label=label)  # fmt: skip
    ax.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    ax.set(yscale="log", ylabel="mean square, norm")
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, 0.3), max(high, 3.0))  # what differs by a few per cent should not look wild
    _name_layers(ax, [row["name"] for row in rows])
    ax.spines[["top", "right"]].set_visible(False)
    if not rows:
        _say(ax, "no weight is planned")
    _above(ax, legend=legend and bool(rows), columns=2)
    return ax


def shares(rows: Sequence[Mapping[str, Any]], *, ax: Axes | None = None) -> Axes:
    """Draw what E z² is made of, layer by layer: common to all examples, telling them apart, noise of dropout masks.

    Args:
        rows: of a plan or of a report; lines show the prediction beside a measurement.
        ax: where to draw; default: new axes.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    from matplotlib.ticker import MaxNLocator

    known = [row for row in rows if row.get("signal") is not None and row.get("noise") is not None]
    if not known:
        _say(ax, "nothing to show: run twice or more, on two examples or more")
        return ax
    depth = range(1, len(known) + 1)
    signal, noise = ([min(1.0, max(0.0, row[what])) for row in known] for what in ("signal", "noise"))
    common = [max(0.0, 1 - s - n) for s, n in zip(signal, noise, strict=True)]
    names = ("common to all examples", "tells examples apart", "noise of dropout masks")
    ax.stackplot(depth, common, signal, noise, labels=names, colors=("0.88", _COLOURS[0], _COLOURS[4]), alpha=0.9)
    if all(row.get("predicted_signal") is not None for row in known):
        lower = [1 - row["predicted_signal"] - row["predicted_noise"] for row in known]
        upper = [1 - row["predicted_noise"] for row in known]
        for edge, label in ((lower, "predicted"), (upper, None)):
            ax.plot(depth, edge, color="black", linewidth=1, linestyle="--", label=label)
    ax.set(xlabel="weight, in execution order", ylabel="share of E z²", ylim=(0, 1), xlim=(1, max(2, len(known))))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize="small")
    return ax


def over_steps(rows: Sequence[Mapping[str, Any]], what: str, *, ax: Axes | None = None, legend: bool = True) -> Axes:
    """Draw a quantity over training steps on a logarithmic axis, one line a layer, from dark (first) to light (last).

    Args:
        rows: of a :class:`unitvar.History`, one a layer and observed step.
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
    ax = _axes(ax)
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    from unitvar.flow.tally import labelled

    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        label = labelled(row["name"], row["use"])
        lines.setdefault(label, []).append((row["step"], _or_nan(row[what])))
    # Dark to light reads in grey, too, and viridis' yellow end is too light for paper.
    shades = colormaps["viridis"]
    told = _spread(list(lines), 8)
    for i, (label, points) in enumerate(lines.items()):
        colour = shades(0.85 * i / max(1, len(lines) - 1))
        steps, values = zip(*points, strict=True)
        ax.plot(steps, values, color=colour, linestyle=_STYLES[i % len(_STYLES)], linewidth=1.2,
                label=label if label in told else "_", marker="." if len(points) < 3 else "")  # fmt: skip
    ax.set(yscale="log", xlabel="step", ylabel=names[what])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.spines[["top", "right"]].set_visible(False)
    if not lines:
        _say(ax, "no step was observed")
    elif legend:
        some = f"{len(told)} of {len(lines)} weights" if len(told) < len(lines) else None
        ax.legend(frameon=False, fontsize="small", title=some, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def distributions(
    model: nn.Module,
    batch: Any,
    layers: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    legend: bool = True,
) -> Axes:
    """Draw how inputs and outputs of some weights are distributed: the paper's first figure, for a model of your own.

    One band a layer, the first on top: the density of the logarithm of absolute values, so that a shift to the right
    is growth and one to the left decay. Values that dropout or an activation has set to
    zero are left out, as in the paper; the grey line is where a standard normal output would be.
    The model runs once, in train mode, and comes out as it went in.

    Args:
        model: any module.
        batch: as in :func:`unitvar.measure`.
        layers: names of weights; default: up to five, evenly spread over the depth.
        ax: where to draw; default: new axes.
        legend: whether to name what is drawn.

    Returns:
        The axes.
    """
    import numpy as np

    from unitvar.flow.run import sample
    from unitvar.flow.tally import labelled

    densities: dict[str, tuple[Any, Any]] = {}

    def see(layer: Any, x: Tensor, z: Tensor) -> None:
        densities[labelled(layer.name, layer.use)] = _density(x), _density(z)

    sample(model, batch, see)
    for name in layers or ():
        if name not in densities:
            raise ValueError(f"layers has {name!r}, which is not one of {', '.join(map(repr, densities))}.")
    chosen = list(layers) if layers else _spread(list(densities), 5)
    ax = _axes(ax)
    edges = _edges()
    middle = (edges[1:] + edges[:-1]) / 2
    normal = np.log(10) * 2 * 10**middle * np.exp(-(10 ** (2 * middle)) / 2) / np.sqrt(2 * np.pi)
    for i, name in enumerate(chosen):
        floor = len(chosen) - 1 - i
        x, z = densities[name]
        first = i == 0
        scale = 0.8 / max(1.5, x.max(), z.max())
        ax.plot(middle, floor + scale * normal, color="0.6", linewidth=0.8, label="|N(0, 1)|" if first else "_")
        ax.fill_between(middle, floor, floor + scale * z, color=_COLOURS[0], alpha=0.35, linewidth=0)
        ax.plot(middle, floor + scale * z, color=_COLOURS[0], linewidth=1.2, label="output z" if first else "_")
        ax.plot(middle, floor + scale * x, color=_COLOURS[1], linewidth=1.2, linestyle="--",
                label="input x, zeros left out" if first else "_")  # fmt: skip
    held = [m for x, z in (densities[n] for n in chosen) for d in (x, z) for m in middle[d > 0.02]]
    ax.set_xlim(min([-3.0, *held]), max([1.0, *held]))
    ax.set(xlabel="log10 |value|", yticks=range(len(chosen)), yticklabels=chosen[::-1])
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    if legend:
        ax.legend(frameon=False, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return ax


def _name_layers(ax: Axes, names: list[str]) -> None:
    """Write the names of layers below the axes: all of a few, else some, evenly spread."""
    chosen = _spread(list(range(len(names))), _NAMED)
    ax.set_xticks([i + 1 for i in chosen], [names[i] for i in chosen], rotation=40, ha="right", rotation_mode="anchor")
    ax.tick_params(axis="x", labelsize="small")


def _above(ax: Axes, *, legend: bool, columns: int, title: str = "") -> None:
    """Put legend and title above the axes, where no data is."""
    if legend:
        ax.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns)
    if title:
        import textwrap

        rows = 0 if not legend else -(-len(ax.get_legend_handles_labels()[1]) // columns)
        ax.set_title(textwrap.fill(title, 70), fontsize="small", loc="left", pad=8 + 14 * rows)


def _edges() -> Any:
    import numpy as np

    return np.linspace(-12, 12, 481)


def _density(x: Tensor) -> Any:
    """Return the density of log10 |x|, zeros left out."""
    import numpy as np

    values = x.double().abs().flatten()
    logs = values[values > 0].log10().cpu().numpy()
    counts, edges = np.histogram(logs, _edges())
    step = edges[1] - edges[0]
    # As wide as Silverman's rule would have it: the logarithm of a normal number has a spread of 0.4 or so.
    width = max(1.0, 0.36 * max(1, len(logs)) ** -0.2 / step)
    reach = np.arange(-int(4 * width) - 1, int(4 * width) + 2)
    kernel = np.exp(-((reach / width) ** 2) / 2)
    return np.convolve(counts, kernel / kernel.sum(), "same") / max(1, len(logs)) / step


def _spread(names: list[T], most: int) -> list[T]:
    """Choose some, evenly from the first to the last."""
    if len(names) <= most:
        return names
    return [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]


def _or_nan(x: float | None) -> float:
    return float("nan") if x is None else x


def _say(ax: Axes, words: str) -> None:
    """Say in the middle of empty axes why they are."""
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="bottom", color="0.5")


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Drawing needs matplotlib: pip install 'unitvar[plot]'.") from error
    return plt.figure(figsize=(6, 4), layout="constrained").subplots()
