"""How inputs and outputs of a network's weights are distributed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unitvar.plot.axes import COLOURS, new_axes, shortened, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

__all__ = ["distributions"]


def distributions(
    model: nn.Module,
    batch: Any,
    layers: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    legend: bool = True,
) -> Axes:
    """Draw how inputs and outputs of some weights are distributed: the paper's first figure, for a model of your own.

    One band per layer, the first on top: the density of the logarithm of absolute values, so that a shift to the right
    is growth and one to the left decay. Values that dropout or an activation has set to
    zero are left out, as in the paper; the grey line is where a standard normal output would be.
    The model runs once, in train mode, and is left unchanged.

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
    chosen = list(layers) if layers else spread(list(densities), 5)
    ax = new_axes(ax)
    edges = _edges()
    middle = (edges[1:] + edges[:-1]) / 2
    normal = np.log(10) * 2 * 10**middle * np.exp(-(10 ** (2 * middle)) / 2) / np.sqrt(2 * np.pi)
    for i, name in enumerate(chosen):
        floor = len(chosen) - 1 - i
        x, z = densities[name]
        first = i == 0
        scale = 0.8 / max(1.5, x.max(), z.max())
        ax.plot(middle, floor + scale * normal, color="0.6", linewidth=0.8, label="|N(0, 1)|" if first else "_")
        ax.fill_between(middle, floor, floor + scale * z, color=COLOURS[0], alpha=0.35, linewidth=0)
        ax.plot(middle, floor + scale * z, color=COLOURS[0], linewidth=1.2, label="output z" if first else "_")
        ax.plot(middle, floor + scale * x, color=COLOURS[1], linewidth=1.2, linestyle="--",
                label="input x, zeros left out" if first else "_")  # fmt: skip
    held = [m for x, z in (densities[n] for n in chosen) for d in (x, z) for m in middle[d > 0.02]]
    ax.set_xlim(min([-3.0, *held]), max([1.0, *held]))
    ax.set(xlabel="log10 |value|", yticks=range(len(chosen)), yticklabels=[shortened(name) for name in chosen[::-1]])
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    if legend:
        ax.legend(frameon=False, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return ax


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
