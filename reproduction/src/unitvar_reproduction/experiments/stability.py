"""Stability: where a second moment of one is a fixed point of depth, and where it is a stable one.

Paper: says nothing of it; its own activation, the GELU, is unstable.
Ours: chi = E[z f f'] / E[f²] is the factor by which one layer multiplies a small relative deviation. At chi ≤ 1 (ReLU,
ELU, SELU, tanh) a hundred layers stay near one; at chi > 1 (Mish, GELU, SiLU, Hardswish) every example drifts away from
one, those that began below it to nothing and those above it to infinity, and the mean with the latter. 100 layers of
500, 5 seeds, no dropout, seconds on two CPU cores.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from unitvar import activation_moments, plot
from unitvar.activations import NAMES
from unitvar.init import gain, sphere_
from unitvar_reproduction import record
from unitvar_reproduction.progress import steps

__all__ = ["Stability", "mean_field", "measured"]

STABLE = ("relu", "elu", "selu", "tanh")
UNSTABLE = ("mish", "gelu", "silu", "hardswish")


def mean_field(name: str, start: float, depth: int) -> list[float]:
    """Return E z² layer by layer in a network of infinite width: q ← s² E f(√q x)², x ~ N(0, 1)."""
    scale, q = gain(name) ** 2, [start]
    while len(q) < depth:
        q.append(scale * activation_moments(name, std=q[-1] ** 0.5).second)
    return q


@torch.no_grad()
def measured(name: str, *, width: int, depth: int, examples: int, seed: int) -> tuple[list[float], list[float]]:
    """Feed a real network, whose rows lie on spheres of the forward gain.

    Returns:
        E z² layer by layer, and the 5th, 50th and 95th percentile over examples of each one's own at the last layer.
    """
    generator = torch.Generator().manual_seed(seed)
    activation = NAMES[name]
    z = torch.randn(examples, width, generator=generator)
    z = z @ sphere_(torch.empty(width, width), "identity", generator=generator).T
    q = [z.square().mean().item()]
    weight = torch.empty(width, width)
    while len(q) < depth:
        z = activation(z) @ sphere_(weight, name, generator=generator).T
        q.append(z.square().mean().item())
    return q, z.square().mean(dim=1).quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()


@dataclass(frozen=True)
class Stability:
    """The second moment through 100 layers, for activations with chi below and above one."""

    out: Path = record.OUT
    """Folder for stability.json and stability.png."""

    width: int = 500
    """Units in a layer."""

    depth: int = 100
    """Layers."""

    examples: int = 200
    """Standard normal inputs."""

    seeds: int = 5
    """Networks for each activation."""

    def run(self, console: Console) -> None:
        """Measure, print, draw and save."""
        names = (*STABLE, *UNSTABLE)
        sizes = {"width": self.width, "depth": self.depth, "examples": self.examples}
        runs = {
            name: [measured(name, seed=seed, **sizes) for seed in range(self.seeds)]
            for name in steps(names, "stability", console)
        }
        trials = {name: [q for q, _ in runs[name]] for name in names}
        examples = {name: [percentiles for _, percentiles in runs[name]] for name in names}
        depths = [d for d in (10, 30, 100) if d <= self.depth]
        table = Table(title=f"E z² at depth, over {self.seeds} networks of width {self.width}", title_justify="left")
        table.add_column("activation")
        table.add_column("chi", justify="right")
        for d in depths:
            table.add_column(f"layer {d}", justify="right")
        for name in names:
            ends = [sorted(q[d - 1] for q in trials[name]) for d in depths]
            spans = (f"{low[0]:.3g} … {low[-1]:.3g}" for low in ends)
            table.add_row(name, f"{activation_moments(name).chi:.3f}", *spans)
        console.print(table)
        config = {key: value for key, value in asdict(self).items() if key != "out"}
        chi = {name: activation_moments(name).chi for name in names}
        path = record.save(
            self.out / "stability.json",
            {"experiment": "stability", "config": config, "chi": chi, "second": trials, "examples_5_50_95": examples},
        )
        figure = self._draw(trials)
        console.print(f"Saved {path} and {figure}")

    def _draw(self, trials: dict[str, list[list[float]]]) -> Path:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.8), layout="constrained", dpi=150)
        axes = figure.subplots(1, 2, sharey=True)
        for ax, names, title in zip(
            axes, (STABLE, UNSTABLE), ("chi ≤ 1: one is stable", "chi > 1: one is unstable"), strict=True
        ):
            for seed in range(self.seeds):
                plot.by_depth({_label(name): trials[name][seed] for name in names}, ax=ax, legend=seed == 0)
            ax.set_title(title, fontsize="medium")
        path = self.out / "stability.png"
        figure.savefig(path)
        return path


def _label(name: str) -> str:
    return f"{name}, chi {activation_moments(name).chi:.2f}"
