"""MNIST: a fully connected network under five initialisations, at the paper's full size.

Paper (§2.3.1, Figure 2): 8 layers of 256, 25 epochs, batch 64, Adam with its rate tuned over 1e-3, 1e-4, 1e-5 on 5,000
held-out images; keep rates 1, 0.5, 0.3. "Our initialization provides faster convergence at a dropout keep rate of 0.5
for activations like the ReLU and great gains when the dropout keep rate decreases further."
Ours: the same on raw pixels as in the authors' release, for tanh, ReLU, ELU and GELU, with the test error that the
paper does not print; then the corrected rules, more seeds at the tuned rate, and standardised inputs for ReLU.
Two CPU cores: two minutes a trial and core, 285 trials, some five hours; interrupt and resume as you like.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from unitvar.paper.mlp import Trial, run_trial
from unitvar.paper.sweep import finished, sweep

__all__ = ["Mnist", "grid", "repeats", "tuned"]

ACTIVATIONS = ("relu", "tanh", "elu", "gelu")
KEEPS = (0.5, 0.3, 1.0)
RATES = (1e-3, 1e-4, 1e-5)
RELEASED = ("paper", "xavier", "he")
CORRECTED = ("forward", "mean")


def grid(
    activations: Iterable[str],
    inits: Iterable[str],
    *,
    keeps: Iterable[float] = KEEPS,
    rates: Iterable[float] = RATES,
    inputs: str = "raw",
) -> list[Trial]:
    """Return every combination with seed 0, one panel of the figure after the other."""
    return [
        Trial("mnist", activation, keep, init, rate, seed=0, inputs=inputs)
        for activation, keep, init, rate in itertools.product(activations, keeps, tuple(inits), tuple(rates))
    ]


def tuned(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, of records that differ in their rate alone, the one with the best validation loss of its curve."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        key = tuple(value for name, value in record["config"].items() if name != "rate")
        if key not in best or _validation(record) < _validation(best[key]):
            best[key] = record
    return list(best.values())


def _validation(record: dict[str, Any]) -> float:
    return min((loss for loss in record["curve"]["validation"] if loss is not None), default=float("inf"))


def repeats(records: Sequence[dict[str, Any]], seeds: Iterable[int]) -> list[Trial]:
    """Return the trials of tuned records again, with other seeds: a seed at a time, so that each is soon complete."""
    return [replace(Trial(**record["config"]), seed=seed) for seed in seeds for record in tuned(records)]


@dataclass(frozen=True)
class Mnist:
    """MNIST under five initialisations: the paper's Figure 2, at full size, with test errors."""

    out: Path = Path("results")
    """Folder for one file a trial, in mnist/."""

    data_dir: Path | None = None
    """Folder that holds mnist/*.gz; default: download them into the cache."""

    seeds: int = 3
    """Networks of each kind at the tuned rate, for ReLU and tanh."""

    workers: int | None = None
    """Processes; default: one for each core."""

    def run(self, console: Console) -> None:
        """Train what has not been trained yet, the most telling trials first."""
        self._sweep(console, "the paper's grid", grid(ACTIVATIONS, RELEASED))
        self._sweep(console, "corrected rules", grid(ACTIVATIONS, CORRECTED))
        once = grid(("relu", "tanh"), RELEASED + CORRECTED)
        records = finished(once, self.out / "mnist")
        self._sweep(console, "more seeds", repeats(records, range(1, self.seeds)))
        self._sweep(console, "standardised", grid(("relu",), RELEASED + CORRECTED, inputs="standardised"))

    def _sweep(self, console: Console, label: str, trials: list[Trial]) -> None:
        trial = functools.partial(run_trial, data_dir=self.data_dir)
        sweep(trial, trials, self.out / "mnist", console, label=f"MNIST, {label}", workers=self.workers)
