"""MNIST: a fully connected network under six initialisations, at the paper's full size.

Paper (§2.3.1, Figure 2): 8 layers of 256, 25 epochs, batch 64, Adam with its rate tuned over 1e-3, 1e-4, 1e-5 on 5,000
held-out images; keep rates 1, 0.5, 0.3. "Our initialization provides faster convergence at a dropout keep rate of 0.5
for activations like the ReLU and great gains when the dropout keep rate decreases further."
Ours: the same on raw pixels as in the authors' release, for tanh, ReLU, ELU and GELU, with the test error that the
paper does not print; then the corrected rules and torch's default, three seeds at the tuned rate of each, and
standardised inputs for ReLU. ``forward`` is what ``initialize_`` does by default.
Two CPU cores: one to four minutes a trial and core, 417 trials, some eight hours; interrupt and resume as you like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from rich.console import Console

from unitvar_reproduction import record
from unitvar_reproduction.experiments import comparison
from unitvar_reproduction.experiments.comparison import grid, repeats, tuned
from unitvar_reproduction.experiments.mlp import Trial, run_trial
from unitvar_reproduction.sweep.staged import Stage, StagedSweep

__all__ = ["Mnist", "stages"]

BASE = Trial("mnist", "relu", 0.5, "paper", 1e-3, seed=0)
ACTIVATIONS = ("relu", "tanh", "elu", "gelu")
KEEPS = (0.5, 0.3, 1.0)
RATES = (1e-3, 1e-4, 1e-5)
RELEASED = ("paper", "xavier", "he")
OTHERS = ("forward", "mean", "default")
TARGET = 0.2  # validation log loss


def stages(base: Trial, scale: str, seeds: int, done: Callable[[list[Trial]], list[dict[str, Any]]]) -> Iterator[Stage]:
    """Give the trials in stages, the most telling first; later ones build on the records of earlier ones."""
    inits = RELEASED + OTHERS
    if scale == "small":
        yield "ReLU", grid(base, activations=("relu",), keeps=(0.5, 0.3), inits=inits, rates=RATES[:1])
        return
    planned: set[Trial] = set()

    def new(label: str, trials: list[Trial]) -> Stage:
        fresh = [trial for trial in trials if trial not in planned]
        planned.update(fresh)
        return label, fresh

    def once(activations: tuple[str, ...], own: tuple[str, ...]) -> list[dict[str, Any]]:
        return done(grid(base, activations=activations, keeps=KEEPS, inits=own, rates=RATES))

    def best(activations: tuple[str, ...], own: tuple[str, ...]) -> list[Trial]:
        return [Trial(**r["config"]) for r in tuned(once(activations, own))]

    def more_seeds(activations: tuple[str, ...], own: tuple[str, ...]) -> list[Trial]:
        return repeats(once(activations, own), range(1, seeds))

    def at_rates(rates: tuple[float, ...]) -> list[Trial]:
        return grid(base, activations=ACTIVATIONS, keeps=KEEPS, inits=OTHERS, rates=rates)

    yield new("the paper's grid", grid(base, activations=ACTIVATIONS, keeps=KEEPS, inits=RELEASED, rates=RATES))
    # At the rate that is best for the paper's weights, or on raw pixels; the other rates come later.
    at_papers = best(ACTIVATIONS, ("paper",))
    yield new("corrected rules", [replace(trial, init=init) for trial in at_papers for init in OTHERS])
    halved = [replace(trial, init="paper-half") for trial in at_papers if trial.activation == "relu"]
    yield new("the first layer's factor", halved)
    yield new("more seeds, ReLU and tanh", more_seeds(("relu", "tanh"), RELEASED))
    yield new("standardised inputs", [replace(trial, inputs="standardised") for trial in best(("relu",), inits)])
    yield new("other rates", at_rates(RATES[:2]))
    yield new("more seeds", more_seeds(ACTIVATIONS, inits))
    standardised = replace(base, inputs="standardised")
    rest = at_rates(RATES[2:]) + grid(standardised, activations=("relu",), keeps=KEEPS, inits=inits, rates=RATES)
    yield new("the lowest rate, and all rates on standardised inputs", rest)


@dataclass(frozen=True)
class Mnist(StagedSweep):
    """MNIST under six initialisations: the paper's Figure 2, with test errors."""

    kind: ClassVar[str] = "mnist"
    title: ClassVar[str] = "MNIST"

    scale: Literal["small", "paper"] = "small"
    """paper: all of it, hours; small: ReLU for 3 epochs, minutes."""

    seeds: int = 3
    """Networks of each kind at the tuned rate."""

    @property
    def base(self) -> Trial:
        """What all trials have in common."""
        return replace(BASE, precision=self.precision, epochs=3 if self.scale == "small" else BASE.epochs)

    def stages(self) -> Iterator[Stage]:
        """Give the trials in stages."""
        return stages(self.base, self.scale, self.seeds, self.done)

    def runner(self) -> Callable[..., dict[str, Any]]:
        """Return the function that runs a trial, which is too short to need checkpoints."""
        return run_trial

    def conclude(self, planned: list[Trial], records: list[dict[str, Any]], console: Console) -> None:
        """Print, draw and save."""
        rows = comparison.summarise(records, TARGET)
        raw = [row for row in rows if row["inputs"] == "raw"]
        console.print(comparison.table(raw, f"MNIST, raw pixels, {len(records)} of {len(planned)} trials"))
        other = [row for row in rows if row["inputs"] != "raw"]
        if other:
            console.print(comparison.table(other, "MNIST, standardised pixels"))
        config = {"scale": self.scale, "seeds": self.seeds, "base": asdict(self.base)}
        done = {"trials": len(records), "planned": len(planned)}
        ran = record.combined(records)
        payload = {"experiment": self.name, "config": config, "done": done, "rows": rows, "environment": ran}
        path = record.save(self.out / f"{self.name}.json", payload)
        panels = [row for row in raw if row["init"] != "paper-half"]
        keeps = sorted({trial.keep for trial in planned}, reverse=True)
        activations = [a for a in ("tanh", "relu", "elu", "gelu") if any(t.activation == a for t in planned)]
        picture = comparison.draw_panels(panels, self.out / f"{self.name}.png", activations=activations, keeps=keeps)
        console.print(f"Saved {path} and {picture}")
