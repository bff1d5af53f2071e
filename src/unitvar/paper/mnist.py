"""MNIST: a fully connected network under five initialisations, at the paper's full size.

Paper (§2.3.1, Figure 2): 8 layers of 256, 25 epochs, batch 64, Adam with its rate tuned over 1e-3, 1e-4, 1e-5 on 5,000
held-out images; keep rates 1, 0.5, 0.3. "Our initialization provides faster convergence at a dropout keep rate of 0.5
for activations like the ReLU and great gains when the dropout keep rate decreases further."
Ours: the same on raw pixels as in the authors' release, for tanh, ReLU, ELU and GELU, with the test error that the
paper does not print; then the corrected rules, more seeds at the tuned rate, and standardised inputs for ReLU.
Two CPU cores: two minutes a trial and core, 288 trials, some five hours; interrupt and resume as you like.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from unitvar.paper import comparison, data, record
from unitvar.paper.comparison import grid, repeats
from unitvar.paper.mlp import Trial, run_trial
from unitvar.paper.pools import check_device
from unitvar.paper.sweep import finished, sweep

__all__ = ["Mnist", "stages"]

BASE = Trial("mnist", "relu", 0.5, "paper", 1e-3, seed=0)
ACTIVATIONS = ("relu", "tanh", "elu", "gelu")
KEEPS = (0.5, 0.3, 1.0)
RATES = (1e-3, 1e-4, 1e-5)
RELEASED = ("paper", "xavier", "he")
CORRECTED = ("forward", "mean")
TARGET = 0.2  # validation log loss

Stage = tuple[str, list[Trial]]


def stages(base: Trial, scale: str, seeds: int, done: Callable[[list[Trial]], list[dict[str, Any]]]) -> Iterator[Stage]:
    """Give the trials in stages, the most telling first; later ones build on the records of earlier ones."""
    inits = RELEASED + CORRECTED
    if scale == "small":
        yield "ReLU", grid(base, activations=("relu",), keeps=(0.5, 0.3), inits=inits, rates=RATES[:1])
        return
    yield "the paper's grid", grid(base, activations=ACTIVATIONS, keeps=KEEPS, inits=RELEASED, rates=RATES)
    # The lowest rate has never been the best so far: what needs it only for completeness comes last.
    likely, rest = RATES[:2], RATES[2:]
    standardised = replace(base, inputs="standardised")

    def corrected(rates: tuple[float, ...]) -> list[Trial]:
        return grid(base, activations=ACTIVATIONS, keeps=KEEPS, inits=CORRECTED, rates=rates)

    def other_inputs(rates: tuple[float, ...]) -> list[Trial]:
        return grid(standardised, activations=("relu",), keeps=KEEPS, inits=inits, rates=rates)

    yield "corrected rules", corrected(likely)
    once = done(grid(base, activations=("relu", "tanh"), keeps=KEEPS, inits=inits, rates=RATES))
    yield "more seeds", repeats(once, range(1, seeds))
    yield "standardised inputs", other_inputs(likely)
    yield "the first layer's factor", [replace(base, init="paper-half", keep=keep) for keep in KEEPS]
    yield "the lowest rate", corrected(rest) + other_inputs(rest)


@dataclass(frozen=True)
class Mnist:
    """MNIST under five initialisations: the paper's Figure 2, with test errors."""

    scale: Literal["small", "paper"] = "small"
    """paper: all of it, hours; small: ReLU for 3 epochs, minutes."""

    out: Path = Path("results")
    """Folder for the summary, the picture and one file a trial."""

    data_dir: Path | None = None
    """Folder that holds mnist/*.gz; default: download them into the cache."""

    seeds: int = 3
    """Networks of each kind at the tuned rate, for ReLU and tanh."""

    workers: int | None = None
    """Trials at once; default: one for each core."""

    ray: str | None = None
    """Address of a Ray cluster to run the trials on, such as "auto"."""

    device: str = "cpu"
    """Where to train: cpu, cuda, …"""

    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: matrix products in half the bits, by autocast; these are other trials."""

    compiled: bool = False
    """Compile the network first, which pays on large GPUs only."""

    train: bool = True
    """Train what has not been trained yet; otherwise summarise what is there."""

    def run(self, console: Console) -> None:
        """Train, print, draw and save."""
        if self.train:
            if self.ray is None:  # else the nodes of the cluster have device and data
                check_device(self.device)
                data.check(["mnist"], self.data_dir, console)
            options = {"data_dir": self.data_dir, "device": self.device, "compiled": self.compiled}
            trial = functools.partial(run_trial, **options)  # type: ignore[arg-type]
            for label, trials in self._stages():
                label = f"MNIST, {label}"
                where = {"workers": self.workers, "ray": self.ray, "device": self.device}
                sweep(trial, trials, self._folder, console, label=label, **where)  # type: ignore[arg-type]
        self._conclude(console)

    def _stages(self) -> Iterator[Stage]:
        return stages(self._base, self.scale, self.seeds, lambda trials: finished(trials, self._folder))

    @property
    def _base(self) -> Trial:
        return replace(BASE, precision=self.precision, epochs=3 if self.scale == "small" else BASE.epochs)

    @property
    def _folder(self) -> Path:
        return self.out / self._name

    @property
    def _name(self) -> str:
        return "mnist" if self.scale == "paper" else "mnist_small"

    def _conclude(self, console: Console) -> None:
        """Summarise the trials that are done, a part of the plan or all."""
        planned = [trial for _, trials in self._stages() for trial in trials]
        records = finished(planned, self._folder)
        if not records:
            raise ValueError(f"No trial of this plan is in {self._folder}. Run it without --no-train.")
        rows = comparison.summarise(records, TARGET)
        raw = [row for row in rows if row["inputs"] == "raw"]
        console.print(comparison.table(raw, f"MNIST, raw pixels, {len(records)} of {len(planned)} trials"))
        other = [row for row in rows if row["inputs"] != "raw"]
        if other:
            console.print(comparison.table(other, "MNIST, standardised pixels"))
        config = {"scale": self.scale, "seeds": self.seeds, "base": asdict(self._base)}
        done = {"trials": len(records), "planned": len(planned)}
        ran = record.combined(records)
        payload = {"experiment": self._name, "config": config, "done": done, "rows": rows, "environment": ran}
        path = record.save(self.out / f"{self._name}.json", payload)
        panels = [row for row in raw if row["init"] != "paper-half"]
        keeps = sorted({trial.keep for trial in planned}, reverse=True)
        activations = [a for a in ("tanh", "relu", "elu", "gelu") if any(t.activation == a for t in planned)]
        picture = comparison.draw_panels(panels, self.out / f"{self._name}.png", activations=activations, keeps=keeps)
        console.print(f"Saved {path} and {picture}")
