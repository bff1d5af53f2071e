"""How the VGGs converge, and the gradient of their first layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitvar_reproduction import figures
from unitvar_reproduction.experiments.vgg.trial import INITS, NAMES, POINTS

__all__ = ["draw_convergence", "draw_gradients", "draw_start", "epoch_means"]

TITLES = {"nesterov": "Nesterov momentum", "adam": "Adam"}


def draw_convergence(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw a panel for each optimiser: training log loss dark, test log loss faint."""
    figure, panels = _panels(rows)
    for ax, own in panels:
        for row in own:
            colour = figures.COLOURS[INITS.index(row["init"])]
            training, test = row["curve"]["training"], row["curve"]["test"]
            ax.plot(_epochs(training, POINTS), _numbers(training), color=colour, linewidth=1.2, label=_label(row))
            ax.plot(_epochs(test, 1), _numbers(test), color=colour, linewidth=1.2, alpha=0.35)
        ax.set_ylabel("log loss")
        ax.legend(frameon=False, fontsize="small", title="training (faint: test), rate", title_fontsize="small")
    return figures.save(figure, path)


def draw_gradients(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw a panel for each optimiser: the root mean square of the first layer's gradient, in the mean of an epoch."""
    figure, panels = _panels(rows)
    for ax, own in panels:
        for row in own:
            colour = figures.COLOURS[INITS.index(row["init"])]
            gradient = _numbers(row["curve"]["gradient"])
            ax.plot(_epochs(gradient, POINTS), gradient, color=colour, linewidth=0.6, alpha=0.35)
            means = epoch_means(row["curve"]["gradient"])
            ax.plot([i + 0.5 for i in range(len(means))], means, color=colour, linewidth=1.4, label=_label(row))
        ax.set_yscale("log")
        ax.set_ylabel("gradient of the first layer, RMS")
        ax.legend(frameon=False, fontsize="small", title="init, rate", title_fontsize="small")
    return figures.save(figure, path)


def draw_start(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw two panels: E z² by layer before training, with dropout on and with dropout off."""
    figure = figures.figure(9.2, 3.2)
    starts = {row["init"]: row["start"] for row in rows if row["start"]}  # no matter which optimiser follows
    for ax, mode in zip(figure.subplots(1, 2, sharey=True), ("on", "off"), strict=True):
        for init, start in starts.items():
            second = _numbers(start[mode])
            colour = figures.COLOURS[INITS.index(init)]
            ax.plot(range(1, len(second) + 1), second, color=colour, marker=".", linewidth=1.2, label=NAMES[init])
        ax.axhline(1, color="0.8", linewidth=0.8, zorder=0)
        ax.set_yscale("log")
        ax.set_title(f"before training, dropout {mode}", fontsize="medium")
        ax.set_xlabel("layer")
        ax.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("E z²")
    if starts:
        figure.axes[1].legend(frameon=False, fontsize="small")
    return figures.save(figure, path)


def epoch_means(values: Sequence[float | None]) -> list[float]:
    """Return the mean over each epoch of what was measured at POINTS points of it."""
    whole = [_numbers(values[i : i + POINTS]) for i in range(0, len(values), POINTS)]
    return [sum(part) / len(part) for part in whole]


def _panels(rows: Sequence[Mapping[str, Any]]) -> tuple[Any, list[tuple[Any, list[Mapping[str, Any]]]]]:
    optimisers = [name for name in TITLES if any(row["optimiser"] == name for row in rows)]
    figure = figures.figure(4.6 * len(optimisers), 3.4)
    axes = figure.subplots(1, len(optimisers), squeeze=False)[0]
    for ax, name in zip(axes, optimisers, strict=True):
        ax.set_title(TITLES[name], fontsize="medium")
        ax.set_xlabel("epoch")
        ax.spines[["top", "right"]].set_visible(False)
    own = [[row for row in rows if row["optimiser"] == name] for name in optimisers]
    return figure, list(zip(axes, own, strict=True))


def _label(row: Mapping[str, Any]) -> str:
    return f"{NAMES[row['init']]}, {row['rate']:g}"


def _epochs(values: Sequence[Any], points: int) -> list[float]:
    return [i / points for i in range(1, len(values) + 1)]


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
