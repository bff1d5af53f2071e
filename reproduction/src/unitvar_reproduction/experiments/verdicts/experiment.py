"""Verdicts: whether `measure` calls healthy what trains, and nothing else.

Ours: 15 families at initialisation (PyTorch's default and `initialize_`) and after a short training, 17 networks built
to fail, and steps between the two, on the embedded 8x8 digits as rows, images or tokens. Whether a network trains is
found out by training it, with AdamW and SGD at two rates each. Reported are false alarms (a network that trains is not
called healthy) and misses (one that does not train is). One network each, minutes on two CPU cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from unitvar import VarianceReport
from unitvar.flow.verdict import FALLS, GROWS, LARGE, trend
from unitvar_reproduction import record
from unitvar_reproduction.progress import steps as shown

if TYPE_CHECKING:
    from unitvar_reproduction.experiments.verdicts.networks import Spec
    from unitvar_reproduction.experiments.verdicts.trial import Trial

__all__ = ["Verdicts", "rates", "summary"]

Case = tuple[str, str, "Spec", str]


@dataclass(frozen=True)
class Verdicts:
    """What `measure` says of networks that train and of networks that do not: false alarms and misses."""

    out: Path = record.OUT
    """Folder for verdicts.json and verdicts.png."""

    steps: int = 150
    """Steps of training for each optimiser and rate."""

    only: str = ""
    """Part of the names of the networks to judge; default: all."""

    def run(self, console: Console) -> None:
        """Judge, train, print, draw and save."""
        from unitvar_reproduction.experiments.verdicts.trial import run

        cases = [case for case in _cases() if self.only in case[1]]
        if not cases:
            raise ValueError(f"only={self.only!r} is part of no network's name.")
        rows: list[dict[str, Any]] = []
        for group, name, spec, fill in shown(cases, "verdicts", console):
            rows += _rows(group, run(name, spec, fill, steps=self.steps))
        console.print(_table(rows))
        for line in summary(rows):
            console.print(line, markup=False, highlight=False)
        config = {key: value for key, value in asdict(self).items() if key != "out"}
        limits = {"grows": GROWS, "falls": FALLS, "level": LARGE}
        payload = {"experiment": "verdicts", "config": config, "limits": limits, "rates": rates(rows), "rows": rows}
        path = record.save(self.out / "verdicts.json", payload)
        _draw(rows, self.out / "verdicts.png")
        console.print(f"Saved {path} and verdicts.png")


def _cases() -> Iterator[Case]:
    try:
        from unitvar_reproduction.experiments.verdicts import networks
    except ModuleNotFoundError as error:
        raise ValueError("Some models are in the folder zoo of a checkout: run this command from there.") from error

    for name, spec in networks.FAMILIES.items():
        for fill in ("PyTorch's default", "ours"):
            yield "family", name, spec, fill
    for group, specs in (("built to fail", networks.BUILT_TO_FAIL), ("graded", networks.GRADED)):
        for name, spec in specs.items():
            yield group, name, spec, "its own"


def _rows(group: str, trial: Trial) -> Iterator[dict[str, Any]]:
    """Give one flat record for each report of a network."""
    ends = [end for end in trial.ends.values() if math.isfinite(end)]
    for stage, report in (("initialised", trial.before), ("trained", trial.after)):
        if report is None:
            continue
        found = {"begins": trial.begins, "ends": min(ends, default=math.inf), **_numbers(report)}
        yield {
            "group": group, "name": trial.name, "fill": trial.fill, "stage": stage, "fails": trial.fails,
            "healthy": report.healthy, "verdict": report.verdict, **record.finite(found),
        }  # fmt: skip


def _numbers(report: VarianceReport) -> dict[str, float]:
    """Give what a verdict is made of: the trends in powers of ten, and the level."""
    signal = [x.variance for x in report if x.variance]
    norms = [x.gradient * x.size for x in report if x.gradient]
    last = report.layers[-1]
    level = min(x for x in (last.variance, last.predicted_variance, math.inf) if x is not None)
    return {"signal": _decades(signal), "gradient": _decades(norms[::-1]), "level": level}


def _decades(values: Sequence[float]) -> float:
    return math.log10(trend(values)[0]) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan


def rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Count what was judged wrongly, by what the networks are."""
    parts = {
        "families, initialised": [r for r in rows if r["group"] == "family" and r["stage"] == "initialised"],
        "families, trained": [r for r in rows if r["group"] == "family" and r["stage"] == "trained"],
        "built to fail": [r for r in rows if r["group"] == "built to fail"],
        "steps between": [r for r in rows if r["group"] == "graded"],
    }
    return {
        name: {
            "train": sum(not r["fails"] for r in part),
            "false alarms": sum(not r["fails"] and not r["healthy"] for r in part),
            "fail": sum(r["fails"] for r in part),
            "misses": sum(r["fails"] and r["healthy"] for r in part),
        }
        for name, part in parts.items()
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say the rates in words, and name every network that was judged wrongly."""
    lines = [
        f"{name}: {c['false alarms']} false alarms of {c['train']} that train, "
        f"{c['misses']} misses of {c['fail']} that fail"
        for name, c in rates(rows).items()
    ]
    wrong = [r for r in rows if bool(r["fails"]) == bool(r["healthy"])]
    return lines + [f"wrong: {r['name']}, {r['fill']}, {r['stage']}: {r['verdict']}" for r in wrong]


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="What measure says, and whether the network trains", title_justify="left")
    table.add_column("network", overflow="fold")
    for head in ("signal", "gradient", "level"):
        table.add_column(head, justify="right")
    for head in ("trains", "healthy"):
        table.add_column(head)
    for r in rows:
        numbers = ("-" if r[key] is None else f"{r[key]:.3g}" for key in ("signal", "gradient", "level"))
        words = ("no" if r["fails"] else "yes", "yes" if r["healthy"] else "no")
        table.add_row(f"{r['name']}, {r['fill']}, {r['stage']}", *numbers, *words)
    return table


def _draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw every report by its furthest trend and its level, with the limits between healthy and not."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained", dpi=150)
    ax = figure.subplots()
    for fails, colour, marker, label in ((False, "#0072B2", "o", "trains"), (True, "#D55E00", "x", "does not train")):
        part = [r for r in rows if r["fails"] == fails]
        trends = [_furthest(r) for r in part]
        levels = [min(max(r["level"] or 0.0, 1e-3), 1e6) for r in part]
        ax.scatter(trends, levels, s=22, c=colour, marker=marker, label=label, linewidths=1.0)
    for limit in (GROWS, FALLS):
        ax.axvline(math.log10(limit), color="0.5", linewidth=0.8)
    ax.axhline(LARGE, color="0.5", linewidth=0.8)
    for x, y, words, side in (
        (math.log10(FALLS), 0.95, "vanishing ", "right"),
        (math.log10(GROWS), 0.88, " exploding", "left"),
        ((math.log10(FALLS) + math.log10(GROWS)) / 2, 0.95, "too large", "center"),
        ((math.log10(FALLS) + math.log10(GROWS)) / 2, 0.02, "steady", "center"),
    ):
        ax.text(x, y, words, transform=ax.get_xaxis_transform(), ha=side, fontsize="small", color="0.35")
    ax.set(yscale="log", ylim=(2e-4, 4e6))
    ax.set(xlabel="trend over the depth of signal or gradient, whichever goes further, in powers of ten",
           ylabel="E z² of the output, measured\nor predicted, whichever is less")  # fmt: skip
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    figure.savefig(path)


def _furthest(row: Mapping[str, Any]) -> float:
    """Give the trend that goes further; of what is 0 at most layers, one off the scale."""
    if "is 0 at" in row["verdict"]:
        return -25.0
    return max((row[key] for key in ("signal", "gradient") if row[key] is not None), key=abs, default=0.0)
