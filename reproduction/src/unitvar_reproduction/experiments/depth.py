"""Depth: plain networks of 100 dense or 50 convolutional layers with dropout in each, scaled by the engine.

Paper: its correction makes deep networks with dropout trainable; it shows 20 dense ReLU layers.
Ours: `initialize_` keeps E z² within [1/4, 4] for ReLU, ELU and tanh at every rate, borders of the images included,
where kaiming_normal_ explodes and xavier_uniform_ vanishes or settles elsewhere. GELU and SiLU (chi > 1) drift away
whatever the scales; `method="measured"` holds them on its own batch, not on another. 500 units and 256 channels,
5 seeds, train mode, dropout on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import unitvar
from unitvar import plot
from unitvar_reproduction import record
from unitvar_reproduction.progress import steps

__all__ = ["CASES", "FILLS", "Case", "Depth", "chain", "second_moments"]

BAND = 0.25, 4.0
SHOWN = 0.3  # the drop rate of the figure; the table has them all
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A plain network: its kind, the activation and the drop rate of every layer."""

    network: str
    activation: str
    dropout: float

    def __str__(self) -> str:
        return f"{self.network}, {self.activation}, dropout {self.dropout:g}"


CASES = tuple(
    Case(network, activation, dropout)
    for network in ("dense", "conv")
    for activation, rates in (
        ("relu", (0.3, 0.5)), ("elu", (0.1, 0.3, 0.5)), ("tanh", (0.1, 0.3, 0.5)), ("gelu", (0.3,)), ("silu", (0.3,)),
    )
    for dropout in rates
)  # fmt: skip


def chain(case: Case, *, depth: int, width: int) -> nn.Sequential:
    """Build weight, activation, dropout, over and over: no norms, no shortcuts, no biases."""
    layers: list[nn.Module] = []
    for i in range(depth):
        dense, before = case.network == "dense", 3 if i == 0 else width
        layers.append(
            nn.Linear(width, width, bias=False) if dense else nn.Conv2d(before, width, 3, padding=1, bias=False)
        )
        layers += [ACTIVATIONS[case.activation](), nn.Dropout(case.dropout)]
    return nn.Sequential(*layers)


def _each(fill: Callable[[Tensor], object]) -> Callable[[nn.Module, Tensor], None]:
    def filled(model: nn.Module, batch: Tensor) -> None:
        for weight in model.parameters():
            fill(weight)

    return filled


FILLS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "initialize_": partial(unitvar.initialize_, inputs="standard"),  # as the inputs are drawn
    "initialize_, measured": partial(unitvar.initialize_, method="measured", inputs="standard"),
    "kaiming_normal_": _each(nn.init.kaiming_normal_),
    "xavier_uniform_": _each(nn.init.xavier_uniform_),
    "orthogonal_": _each(nn.init.orthogonal_),
}


@torch.no_grad()
def second_moments(net: nn.Sequential, x: Tensor) -> list[float]:
    """Return E z² of every weight's output, in train mode."""
    found = []
    for module in net.train():
        x = module(x)
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            found.append(x.double().square().mean().item())
    return found


@dataclass(frozen=True)
class Depth:
    """E z² through 100 dense and 50 convolutional layers, beside torch's own initialisers."""

    out: Path = record.OUT
    """Folder for depth.json and depth.png."""

    seeds: int = 5
    """Networks for each case and initialisation."""

    dense: tuple[int, int] = (100, 500)
    """Layers and units of the dense networks."""

    conv: tuple[int, int] = (50, 256)
    """Layers and channels of the convolutional networks."""

    examples: tuple[int, int] = (256, 4)
    """Standard normal inputs of the dense networks, and 12×12 images of the convolutional ones."""

    def run(self, console: Console) -> None:
        """Measure, print, draw and save."""
        trials: dict[Case, dict[str, list[list[float]]]] = {}
        for case in steps(CASES, "depth", console):
            trials[case] = {fill: [self._trial(case, fill, seed) for seed in range(self.seeds)] for fill in FILLS}
        console.print(self._table(trials))
        rows = [
            {**asdict(case), "fill": fill, "seed": seed, "second": [float(f"{q:.4g}") for q in second]}
            for case, fills in trials.items()
            for fill, seconds in fills.items()
            for seed, second in enumerate(seconds)
        ]
        config = {key: value for key, value in asdict(self).items() if key != "out"}
        path = record.save(self.out / "depth.json", {"experiment": "depth", "config": config, "trials": rows})
        console.print(f"Saved {path} and {self._draw(trials)}")

    def _trial(self, case: Case, fill: str, seed: int) -> list[float]:
        torch.manual_seed(seed)
        layers, width = self.dense if case.network == "dense" else self.conv
        net = chain(case, depth=layers, width=width)
        shape = (self.examples[0], width) if case.network == "dense" else (self.examples[1], 3, 12, 12)
        FILLS[fill](net, torch.randn(shape))
        # Another batch and other masks than those that a measured pass has fitted.
        torch.manual_seed(self.seeds + seed)
        return second_moments(net, torch.randn(shape))

    def _table(self, trials: dict[Case, dict[str, list[list[float]]]]) -> Table:
        title = f"E z² furthest from one, of all layers of {self.seeds} networks; [bold]within [1/4, 4][/bold]"
        table = Table(title=title, title_justify="left")
        table.add_column("dropout")
        for fill in FILLS:
            table.add_column(fill.rpartition(", ")[2].partition("_")[0], justify="right")
        for case, fills in trials.items():
            worst = (_furthest([q for one in seconds for q in one]) for seconds in fills.values())
            table.add_row(f"{case.network} {case.activation} {case.dropout:g}", *worst)
        return table

    def _draw(self, trials: dict[Case, dict[str, list[list[float]]]]) -> Path:
        from matplotlib.figure import Figure

        shown = [case for case in trials if case.dropout == SHOWN]
        figure = Figure(figsize=(13, 5.2), layout="constrained", dpi=150)
        axes = figure.subplots(2, len(shown) // 2, sharey=True, sharex="row")
        for ax, case in zip(axes.flat, shown, strict=True):
            ax.axhspan(*BAND, color="0.9", zorder=0)
            for seed in range(self.seeds):
                plot.by_depth({fill: trials[case][fill][seed] for fill in FILLS}, ax=ax, legend=False)
            ax.set_title(str(case), fontsize="small")
            ax.set(ylim=(1e-8, 1e8), ylabel="E z²" if ax in axes[:, 0] else "")
        lines = {str(line.get_label()): line for line in axes[0, 0].get_lines()}
        figure.legend(
            [lines[fill] for fill in FILLS], list(FILLS), loc="outside lower center", ncols=len(FILLS), frameon=False
        )
        path = self.out / "depth.png"
        figure.savefig(path)
        return path


def _furthest(values: list[float]) -> str:
    worst = max(values, key=lambda q: abs(math.log(q)) if 0 < q < math.inf else math.inf)
    return f"[bold]{worst:.2g}[/bold]" if BAND[0] <= worst <= BAND[1] else f"{worst:.2g}"
