"""How the scale of the weights of a plain dense network decides what it learns, and what survives of its input.

In a network of equal dense layers every initialisation is a gain: the length of a hidden row over the length that keeps
E z² at one with this activation and this dropout. torch's default, He's, Xavier's and the paper's sum are gains too.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

import unitvar
from unitvar_reproduction.experiments.training.families import FAMILIES, MLPS, ours
from unitvar_reproduction.experiments.training.search import START

__all__ = ["advised", "effective_gain", "gain_rows"]

Saved = Sequence[Mapping[str, Any]]
ADVICE = {"adamw": r"AdamW gain=([\d.]+)", "nesterov": r"SGD, try gain=([\d.]+)"}
"""Optimiser → how the plan's advice names a gain for it."""


def effective_gain(family: str, init: str) -> float | None:
    """Return the length of a hidden row over that of unit variance; None for what is not a scale alone."""
    _, activation, _, dropout = family.split("-")
    unit = unitvar.init.gain(activation, float(dropout))
    if init.startswith("gain-"):
        return float(init.removeprefix("gain-"))
    lengths = {
        "scaled": unit,
        "paper": unitvar.init.gain(activation, float(dropout), mode="paper"),
        "default": math.sqrt(1 / 3),  # uniform on ±1/√n
        "xavier": 1.0,
        "he": math.sqrt(2),
    }
    return lengths[init] / unit if init in lengths else None


@functools.cache
def plan_of(family: str) -> unitvar.Plan:
    """Return the plan that a user would read before training."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return unitvar.plan(FAMILIES[family].make(), torch.randn(64, 1, 28, 28))


def advised(family: str, optimiser: str) -> str:
    """Return the initialisation that the plan advises: with a gain, or without options."""
    found = re.search(ADVICE[optimiser], " ".join(plan_of(family).advice))
    return f"gain-{found[1]}" if found else ours(family)


def gain_rows(saved: Saved) -> list[dict[str, Any]]:
    """Return for each dense network and optimiser what the plan predicts and advises, and each gain with its losses."""
    found = []
    for family, optimiser in itertools.product(MLPS, START):
        points = sorted(_points(saved, family, optimiser), key=lambda point: float(point["gain"]))
        if points:
            best = min(points, key=lambda point: float(point["tuning"]))
            last = plan_of(family).layers[-1]
            row = {"family": family, "optimiser": optimiser, "signal": last.signal, "noise": last.noise}
            found.append({**row, "advised": advised(family, optimiser), "best": best["gain"], "points": points})
    return found


def _points(saved: Saved, family: str, optimiser: str) -> Iterator[dict[str, Any]]:
    for row in saved:
        if (row["family"], row["optimiser"]) == (family, optimiser) and row["loss"]:
            gain = effective_gain(family, row["init"])
            if gain is not None:
                tuning = row["tuning"][f"{row['rate']:g}"]
                yield {"init": row["init"], "gain": gain, "tuning": tuning, "loss": row["loss"]["mean"]}
