"""Initialisations compared: grids of trials, rates tuned on validation, tables and panels of curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from unitvar_reproduction import figures
from unitvar_reproduction.experiments.mlp import POINTS, Trial
from unitvar_reproduction.statistics import Estimate, estimate

__all__ = ["draw_panels", "grid", "repeats", "summarise", "table", "tuned"]

NAMES = {
    "paper": "paper",
    "paper-half": "paper, first 0.5",
    "xavier": "Xavier",
    "he": "He",
    "forward": "unitvar, forward",
    "mean": "unitvar, mean",
    "default": "torch's default",
}


def grid(
    base: Trial,
    *,
    activations: Iterable[str],
    keeps: Iterable[float],
    inits: Iterable[str],
    rates: Iterable[float],
) -> list[Trial]:
    """Return every combination, one panel of the figure after the other, and in it one rate after the other."""
    return [
        replace(base, activation=activation, keep=keep, init=init, rate=rate)
        for activation, keep, rate, init in itertools.product(activations, keeps, rates, inits)
    ]


def tuned(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return, of records that differ in their rate alone, the one with the best validation loss of its curve."""
    best: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for record in records:
        key = tuple(value for name, value in record["config"].items() if name != "rate")
        if key not in best or _validation(record) < _validation(best[key]):
            best[key] = record
    return list(best.values())


def _validation(record: Mapping[str, Any]) -> float:
    return min((loss for loss in record["curve"]["validation"] if loss is not None), default=float("inf"))


def repeats(records: Sequence[Mapping[str, Any]], seeds: Iterable[int]) -> list[Trial]:
    """Return the trials of tuned records again, with other seeds: a seed at a time, so that each is soon complete."""
    return [replace(Trial(**record["config"]), seed=seed) for seed in seeds for record in tuned(records)]


def summarise(records: Sequence[Mapping[str, Any]], target: float) -> list[dict[str, Any]]:
    """Return a row for each kind of network: its rate, tuned on the first seed, and what it reached, over all seeds.

    Args:
        records: finished trials, in any number: rows say how many seeds and rates they rest on.
        target: a validation log loss, for the epochs that it takes to reach it.

    Returns:
        For each, the error at the point of the best validation loss, in the mean over seeds and seed by seed; the
        epochs to the target, None if a seed never reached it; the best validation loss, None if a seed had none; the
        curve of the first seed, and between which values all seeds lie.
    """
    rows = []
    for kind, own in _kinds(records).items():
        first = min(r["config"]["seed"] for r in own)
        alternatives = [r for r in own if r["config"]["seed"] == first]
        (best,) = tuned(alternatives)
        chosen = [r for r in own if r["config"]["rate"] == best["config"]["rate"]]
        epochs = [_epochs_to(r, target) for r in chosen]
        losses = [_validation(r) for r in chosen]
        rows.append(
            {
                **dict(kind),
                "rate": best["config"]["rate"],
                "rates": len(alternatives),
                "seeds": len(chosen),
                "diverged": sum(r["diverged"] is not None for r in chosen),
                "error": asdict(estimate([r["test"]["best"]["error"] for r in chosen])),
                "error_at_end": asdict(estimate([r["test"]["end"]["error"] for r in chosen])),
                "validation": asdict(estimate(losses)) if all(map(math.isfinite, losses)) else None,
                "epochs_to_target": asdict(estimate([e for e in epochs if e is not None])) if all(epochs) else None,
                "target": target,
                "by_seed": {str(r["config"]["seed"]): r["test"]["best"]["error"] for r in chosen},
                "epochs_by_seed": {str(r["config"]["seed"]): e for r, e in zip(chosen, epochs, strict=True)},
                "epochs": best["config"]["epochs"],
                "curve": best["curve"],
                "band": {name: _band([r["curve"][name] for r in chosen]) for name in ("training", "validation")},
            }
        )
    return rows


def _kinds(records: Sequence[Mapping[str, Any]]) -> dict[tuple[tuple[str, Any], ...], list[Mapping[str, Any]]]:
    """Group records by what distinguishes networks, but not rates and seeds."""
    kinds: dict[tuple[tuple[str, Any], ...], list[Mapping[str, Any]]] = {}
    for record in records:
        kind = tuple((name, record["config"][name]) for name in ("activation", "keep", "init", "inputs", "batchnorm"))
        kinds.setdefault(kind, []).append(record)
    return kinds


def _band(curves: Sequence[Sequence[float | None]]) -> dict[str, list[float]] | None:
    """Return the lowest and the highest value of several curves at each point that all of them reach."""
    points = [[v for v in values if v is not None] for values in zip(*curves, strict=False)]
    whole = list(itertools.takewhile(lambda values: len(values) == len(curves), points))
    return {"low": [min(v) for v in whole], "high": [max(v) for v in whole]} if len(curves) > 1 else None


def _epochs_to(record: Mapping[str, Any], target: float) -> float | None:
    """Return the epochs after which the validation loss was first at the target."""
    reached = (i for i, loss in enumerate(record["curve"]["validation"], 1) if loss is not None and loss <= target)
    first = next(reached, None)
    return None if first is None else first / POINTS


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Lay out the rows of a summary."""
    drawn = Table(title=title, title_justify="left")
    for head in ("", "keep", "init"):
        drawn.add_column(head)
    target = rows[0]["target"] if rows else 0.0
    for head in ("rate", "seeds", "test error, %", f"epochs to {target:g}"):
        drawn.add_column(head, justify="right")
    for i, row in enumerate(rows):
        panel = row["activation"], row["keep"], row["inputs"], row["batchnorm"]
        following = rows[i + 1] if i + 1 < len(rows) else None
        ends = following is None or panel != tuple(following[k] for k in ("activation", "keep", "inputs", "batchnorm"))
        epochs = row["epochs_to_target"]
        drawn.add_row(
            row["activation"] + (" BN" if row["batchnorm"] else ""),
            f"{row['keep']:g}",
            NAMES[row["init"]],
            f"{row['rate']:g}",
            f"{row['seeds']}",
            Estimate(**row["error"]).percent(),
            f"{Estimate(**epochs):.2f}" if epochs else "–",
            end_section=ends,
        )
    return drawn


def draw_panels(
    rows: Sequence[Mapping[str, Any]], path: Path, *, activations: Sequence[str], keeps: Sequence[float]
) -> Path:
    """Draw a panel for each activation and keep rate: training log loss solid, validation dashed, seeds as a band."""
    from matplotlib.lines import Line2D

    figure = figures.figure(3.6 * len(keeps), 2.7 * len(activations) + 0.9)
    axes = figure.subplots(len(activations), len(keeps), squeeze=False, sharex=True)
    for (i, activation), (j, keep) in itertools.product(enumerate(activations), enumerate(keeps)):
        ax = axes[i, j]
        own = [row for row in rows if row["activation"] == activation and row["keep"] == keep]
        for row in own:
            colour = figures.COLOURS[list(NAMES).index(row["init"])]
            for name, style in (("training", "-"), ("validation", "--")):
                _line(ax, row["curve"][name], color=colour, linewidth=1.2 if style == "-" else 1.0, linestyle=style)
                band = row["band"][name]
                if band:
                    x = [k / POINTS for k in range(1, len(band["low"]) + 1)]
                    ax.fill_between(x, band["low"], band["high"], color=colour, alpha=0.18, linewidth=0)
        ax.set_title(f"{activation}, keep rate {keep:g}", fontsize="medium")
        figures.log_losses(ax)
        ax.spines[["top", "right"]].set_visible(False)
        if not own:
            ax.text(0.5, 0.5, "not run yet", transform=ax.transAxes, ha="center", color="0.5")
    for ax in axes[-1]:
        ax.set_xlabel("epoch")
    for ax in axes[:, 0]:
        ax.set_ylabel("log loss")
    shown = [init for init in NAMES if any(row["init"] == init for row in rows)]
    handles = [Line2D([], [], color=figures.COLOURS[list(NAMES).index(init)], label=NAMES[init]) for init in shown]
    handles += [
        Line2D([], [], color="0.3", label="training, dropout on"),
        Line2D([], [], color="0.3", linestyle="--", label="validation, dropout off"),
    ]
    if any(row["band"]["training"] for row in rows):
        handles.append(Line2D([], [], color="0.3", alpha=0.25, linewidth=6, label="range of the seeds"))
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize="small")
    return figures.save(figure, path)


def _line(ax: Any, losses: Sequence[float | None], **style: Any) -> None:
    ax.plot(
        [i / POINTS for i in range(1, len(losses) + 1)], [float("nan") if v is None else v for v in losses], **style
    )
