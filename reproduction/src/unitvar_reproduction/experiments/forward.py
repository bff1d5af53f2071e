"""Figure 1: what twenty layers do to the signal, under three initialisations.

Paper: rows on a sphere with the forward correction keep the distribution of a neuron's input at any depth, with dropout
and without; Xavier's lets it decay and He's, which is right without dropout, lets it explode with it.
Ours: the same network at full size, ReLU, keep rates 1 and 0.6, dropped values removed; and every other activation, for
which chi says whether one is a stable second moment. 5 seeds, seconds on two CPU cores.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from unitvar import activation_moments
from unitvar.activations.names import canonical
from unitvar_reproduction import figures, record
from unitvar_reproduction.experiments.synthetic import SHOWN, Histogram, feed, growth
from unitvar_reproduction.progress import steps

__all__ = ["KEEPS", "OTHERS", "Forward", "draw"]

KEEPS = (1.0, 0.6)
INITS = {"forward": "unitvar, forward", "xavier": "Xavier", "he": "He"}
OTHERS = (
    *("tanh", "softsign", "hardtanh", "relu6", "selu", "elu", "softplus", "relu", "leaky_relu"),
    *("mish", "gelu", "silu", "hardswish"),
)


@dataclass(frozen=True)
class Forward:
    """Figure 1: densities of the signal through twenty layers, with and without dropout."""

    out: Path = record.OUT
    """Folder for forward.json and two pictures."""

    seeds: int = 5
    """Networks of each kind; the densities are those of the first."""

    activations: tuple[str, ...] = OTHERS
    """Other activations than ReLU to try."""

    @torch.no_grad()
    def run(self, console: Console) -> None:
        """Measure, print, draw and save."""
        names = [*map(canonical, self.activations)]
        settings = [*itertools.product(KEEPS, INITS)]
        relu = [self._relu(keep, init) for keep, init in steps(settings, "forward", console)]
        pairs = [*itertools.product(names, KEEPS)]
        others = [self._other(name, keep) for name, keep in steps(pairs, "others", console)]
        console.print(_table(relu, self.seeds))
        console.print(_others_table(others))
        payload = {
            "experiment": "forward",
            "config": {"seeds": self.seeds, "activations": names},
            "relu": relu,
            "others": others,
        }
        path = record.save(self.out / "forward.json", payload)
        pictures = draw(payload, self.out)
        console.print(f"Saved {path}, {pictures[0]} and {pictures[1]}")

    def _relu(self, keep: float, init: str) -> dict[str, Any]:
        """Measure one panel of the figure."""
        runs = [feed(init, "relu", keep, seed) for seed in range(self.seeds)]
        shown = {i: runs[0][i] for i in SHOWN}
        return {
            "keep": keep,
            "init": init,
            "second": [growth([layer.z for layer in layers]) for layers in runs],
            "inputs": {i: asdict(Histogram.of(layer.z[layer.kept])) for i, layer in shown.items()},
            "outputs": {i: asdict(Histogram.of(layer.out[layer.kept])) for i, layer in shown.items()},
        }

    def _other(self, name: str, keep: float) -> dict[str, Any]:
        seconds = [growth([layer.z for layer in feed("forward", name, keep, seed)]) for seed in range(self.seeds)]
        return {"activation": name, "keep": keep, "chi": activation_moments(name).chi, "second": seconds}


def _mean(runs: Sequence[Sequence[float]], layer: int) -> float:
    return sum(run[layer] for run in runs) / len(runs)


def _table(rows: Sequence[Mapping[str, Any]], seeds: int) -> Table:
    table = Table(title=f"Figure 1: E z² in layers of ReLU, mean of {seeds} networks", title_justify="left")
    table.add_column("keep", justify="right")
    table.add_column("init")
    for i in SHOWN:
        table.add_column(f"layer {i}", justify="right")
    for row in rows:
        values = (f"{_mean(row['second'], i):.3g}" for i in SHOWN)
        table.add_row(f"{row['keep']:g}", INITS[row["init"]], *values, end_section=row["init"] == "he")
    return table


def _others_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        title="unitvar, forward, other activations: E z² at layer 20, lowest … highest network", title_justify="left"
    )
    for head in ("activation", "chi", *(f"keep {keep:g}" for keep in KEEPS)):
        table.add_column(head, justify="left" if head == "activation" else "right")
    for name in dict.fromkeys(row["activation"] for row in rows):
        own = [row for row in rows if row["activation"] == name]
        ends = [sorted(run[-1] for run in row["second"]) for row in own]
        table.add_row(name, f"{own[0]['chi']:.3f}", *(f"{e[0]:.3g} … {e[-1]:.3g}" for e in ends))
    return table


def draw(payload: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Draw both pictures of a saved result."""
    return (
        _draw(payload["relu"], folder / "forward.png"),
        _draw_others(payload["others"], folder / "forward_others.png"),
    )


def _draw(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    figure = figures.figure(10, 11)
    axes = figure.subplots(2 * len(KEEPS), len(INITS), sharex="row", sharey="row")
    for (i, keep), (j, init) in itertools.product(enumerate(KEEPS), enumerate(INITS)):
        row = next(row for row in rows if row["keep"] == keep and row["init"] == init)
        for k, side in enumerate(("inputs", "outputs")):
            ax = axes[2 * i + k, j]
            shown = {f"layer {layer}": Histogram(**h) for layer, h in row[side].items()}
            figures.densities(ax, shown, range_from=shown.values() if init == "forward" else ())
            ax.set_xlabel(f"neuron {side}, keep rate {keep:g}", fontsize="small")
        figures.corner(axes[2 * i, j], f"E z² at layer {SHOWN[-1]}: {_mean(row['second'], SHOWN[-1]):.2g}")
        axes[2 * i, j].set_title(INITS[init])
    for ax in axes[:, 0]:
        ax.set_ylabel("density", fontsize="small")
    figures.legend(figure, axes[0, 0])
    return figures.save(figure, path)


def _draw_others(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw a small panel for each activation, by chi: in one panel, lines that stay at one would hide each other."""
    names = sorted({row["activation"]: row["chi"] for row in rows}.items(), key=lambda item: item[1])
    columns = min(5, max(1, len(names)))
    lines = -(-len(names) // columns) or 1
    figure = figures.figure(2.1 * columns + 0.6, 1.75 * lines + 0.5)
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for ax, (name, chi) in zip(axes, names, strict=False):
        ax.axhline(1, color="0.7", linewidth=0.8, zorder=0)
        for keep, colour in zip(KEEPS, figures.COLOURS, strict=False):
            for run in (
                run for row in rows if (row["activation"], row["keep"]) == (name, keep) for run in row["second"]
            ):
                ax.plot(range(len(run)), run, color=colour, linewidth=0.9, alpha=0.8)
        ax.set_yscale("log")
        ax.set_title(
            f"{name}, chi {chi:.2f}", fontsize="small", color="black" if chi <= 1 + 1e-9 else figures.COLOURS[1]
        )
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize="x-small")
    for ax in axes[len(names) :]:
        ax.set_axis_off()
    figure.supxlabel("layer", fontsize="small")
    figure.supylabel("E z²", fontsize="small")
    keeps = [(f"keep rate {keep:g}", colour) for keep, colour in zip(KEEPS, figures.COLOURS, strict=False)]
    figures.colour_legend(figure, keeps)
    return figures.save(figure, path)
