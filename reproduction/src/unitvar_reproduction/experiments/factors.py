"""Factors: whether Table 1 holds inside a network at its initialisation, on real images.

Paper (§2.2): "the expectations are similar to the values in Table 1 for standardized input data, so computing
mini-batch statistics is needless".
Ours: E f² and E f'² of every hidden layer, measured on MNIST (or on the embedded digits), with dropout on, under the
paper's weights and under ours, for raw and standardised pixels. They hold only where E z² is one: for ReLU E f'² is 0.5
at any scale and E f² / E z² as well, but the paper's sum lets E z² fall, so that tanh, ELU and GELU drift to the slopes
they have at the origin. 5 draws of the weights, seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from unitvar import activation_moments
from unitvar_reproduction import data, figures, record
from unitvar_reproduction.experiments.comparison import NAMES
from unitvar_reproduction.experiments.mlp import Trial, network
from unitvar_reproduction.progress import steps
from unitvar_reproduction.training.loop import seeded

__all__ = ["Factors", "draw", "layer_factors"]

ACTIVATIONS = ("tanh", "relu", "elu", "gelu")
KEEPS = (1.0, 0.5)
INITS = ("paper", "forward")
INPUTS = ("standardised", "raw")


def layer_factors(model: nn.Sequential, images: Tensor) -> list[dict[str, float]]:
    """Return E z², E f² and E f'² of each activation in a network in training mode, in order."""
    found: list[dict[str, float]] = []
    h = images
    for module in model.train():
        if type(module).__module__.endswith("modules.activation"):
            z = h.detach().requires_grad_()
            f = module(z)
            (slope,) = torch.autograd.grad(f.sum(), z)
            found.append({key: v.square().mean().item() for key, v in (("z", z), ("f", f), ("slope", slope))})
        h = module(h).detach()
    return found


@dataclass(frozen=True)
class Factors:
    """E f² and E f'² inside a network at its initialisation, beside Table 1."""

    dataset: Literal["digits", "mnist"] = "digits"
    """digits need no download."""

    data_dir: Path | None = None
    """Folder that holds mnist/*.gz; default: download them into the cache."""

    out: Path = record.OUT
    """Folder for the summary and the picture."""

    seeds: int = 5
    """Draws of the weights."""

    examples: int = 1000
    """Images, as far as there are so many."""

    def run(self, console: Console) -> None:
        """Measure, print, draw and save."""
        raw = self._raw()
        images = {"raw": raw, "standardised": data.standardised(raw)[0]}
        settings = [*itertools.product(ACTIVATIONS, KEEPS, INPUTS, INITS)]
        rows = []
        for activation, keep, inputs, init in steps(settings, "factors", console):
            trial = Trial(self.dataset, activation, keep, init, 0.0, 0, inputs=inputs)
            layers = [self._measure(replace(trial, seed=s), images[inputs]) for s in range(self.seeds)]
            means = [
                {key: sum(run[i][key] for run in layers) / len(layers) for key in ("z", "f", "slope")}
                for i in range(trial.hidden)
            ]
            rows.append({"activation": activation, "keep": keep, "inputs": inputs, "init": init, "layers": means})
        console.print(_table(rows, self.dataset))
        config = {"dataset": self.dataset, "seeds": self.seeds, "examples": len(raw)}
        payload = {"experiment": "factors", "config": config, "rows": rows}
        path = record.save(self.out / "factors.json", payload)
        console.print(f"Saved {path} and {draw(payload, self.out)}")

    def _raw(self) -> data.Images:
        if self.dataset == "mnist":
            return data.mnist(self.data_dir)[0][: self.examples]
        images, _ = data.digits(0)
        low, high = images.images.min(), images.images.max()
        return data.Images((images.images - low) / (high - low), images.labels)[: self.examples]

    def _measure(self, trial: Trial, images: data.Images) -> list[dict[str, float]]:
        with seeded(trial.seed):
            return layer_factors(network(trial, images.images), images.images)


def _table(rows: Sequence[Mapping[str, Any]], dataset: str) -> Table:
    title = f"E f² and E f'² in the last hidden layer at initialisation, {dataset}, standardised"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("keep", justify="right")
    for head in ("E f² exact", "paper", "unitvar", "E f'² exact", "paper", "unitvar"):
        table.add_column(head, justify="right")
    for activation, keep in itertools.product(ACTIVATIONS, KEEPS):
        exact = activation_moments(activation)
        cells = []
        for key, value in (("f", exact.second), ("slope", exact.slope)):
            cells.append(f"{value:.3f}")
            for init in INITS:
                setting = activation, keep, "standardised", init
                row = next(r for r in rows if tuple(r[k] for k in ("activation", "keep", "inputs", "init")) == setting)
                cells.append(f"{row['layers'][-1][key]:.3g}")
        table.add_row(activation, f"{keep:g}", *cells, end_section=keep == KEEPS[-1])
    return table


def draw(payload: Mapping[str, Any], folder: Path) -> Path:
    """Draw the picture of a saved result: the factors by layer, over a range that holds all lines."""
    from matplotlib.lines import Line2D

    rows = payload["rows"]
    figure = figures.figure(11, 5.6)
    axes = figure.subplots(2, len(ACTIVATIONS), sharex=True)
    for (i, (key, label)), (j, activation) in itertools.product(
        enumerate((("f", "E f²"), ("slope", "E f'²"))), enumerate(ACTIVATIONS)
    ):
        ax = axes[i, j]
        own = [row for row in rows if row["activation"] == activation and row["keep"] == KEEPS[-1]]
        for row in own:
            colour = figures.COLOURS[INITS.index(row["init"])]
            style = "-" if row["inputs"] == "standardised" else ":"
            values = [layer[key] for layer in row["layers"]]
            ax.plot(range(1, len(values) + 1), values, style, color=colour, marker="o", markersize=3, clip_on=False)
        exact = activation_moments(activation)
        ax.axhline(exact.second if key == "f" else exact.slope, color="0.6", linewidth=1.2, zorder=0)
        ax.set_title(f"{activation}, keep rate {KEEPS[-1]:g}" if i == 0 else "", fontsize="medium")
        ax.set_ylabel(label if j == 0 else "")
        ax.set_ylim(bottom=0, top=1.05 * ax.get_ylim()[1])
        ax.set_xticks(range(1, 8))
        ax.spines[["top", "right"]].set_visible(False)
        if i:
            ax.set_xlabel("hidden layer")
    handles = [Line2D([], [], color=figures.COLOURS[INITS.index(init)], label=NAMES[init]) for init in INITS]
    handles += [
        Line2D([], [], color="0.2", linestyle="-", label="standardised pixels"),
        Line2D([], [], color="0.2", linestyle=":", label="raw pixels"),
        Line2D([], [], color="0.6", linewidth=1.2, label="Table 1, exact"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize="small")
    return figures.save(figure, folder / "factors.png")
