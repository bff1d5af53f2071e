"""A trainability map of the paper's VGG: error against learning rate, by initialisation, optimiser and data set.

Paper (§2.3.2): with Nesterov momentum and Adam over rates in [1e-5, 1e-1], the paper's weights end at a lower error
than He's, train at more rates (He's are "untrainable" at Nesterov 0.01), and He's first layer may wait for "dozens of
epochs … due to vanishing gradients".
Ours: the paper's depth, dropout, optimisers and penalty on tasks that the network learns in minutes, MNIST and SVHN
besides CIFAR-10: a quarter of the width, batches of 32, 3,000 steps at one rate, no augmentation; nine rates, eight
initialisations, two seeds at every rate and a third near the best. A network whose training loss has not moved after
half of the steps is stopped there. And the first steps of the network at full width on CIFAR-10
at Nesterov 0.01, where the claim was made.
One CPU core: 40 to 80 seconds a trial, 1,008 trials, and some minutes for each of the 16 at full width.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from unitvar_reproduction import record
from unitvar_reproduction.experiments.pages import refreshed
from unitvar_reproduction.experiments.trainability.claims import claims
from unitvar_reproduction.experiments.trainability.figures import draw_rates, draw_starts
from unitvar_reproduction.experiments.trainability.section import generated
from unitvar_reproduction.experiments.trainability.summary import OPTIMISERS, best_rate, starts, summarise
from unitvar_reproduction.experiments.trainability.trial import DATASETS, INITS, NAMES, Trial, run_trial
from unitvar_reproduction.sweep.staged import Stage, StagedSweep, resumable

__all__ = ["RATES", "Trainability", "near", "stages"]

RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
LIKELY = {"nesterov": 1e-2, "adam": 3e-4}  # from where the others are tried, outwards: the telling ones first
NEAR = 3  # rates around the best that get a third seed
SIZES: dict[str, dict[str, Any]] = {
    "small": {"width": 16, "epochs": 12, "batch": 32, "images": 8000, "judged": 2000, "patience": 6},
    "paper": {"epochs": 30},
}
FULL = Trial("cifar10", "nesterov", 1e-2, "paper", 0, epochs=2, images=6400, judged=1000, points=10)
FULL_SEEDS = 2

Records = Sequence[dict[str, Any]]


def outwards(optimiser: str) -> list[float]:
    """Return all rates, the likely one first, then its neighbours on either side, and so on."""
    middle = RATES.index(LIKELY[optimiser])
    return sorted(RATES, key=lambda rate: abs(RATES.index(rate) - middle))


def near(rate: float) -> list[float]:
    """Return the NEAR rates around one, itself first; at an end of the range those next to it."""
    middle = min(max(RATES.index(rate), NEAR // 2), len(RATES) - 1 - NEAR // 2)
    around = RATES[middle - NEAR // 2 : middle + NEAR // 2 + 1]
    return sorted(around, key=lambda r: abs(RATES.index(r) - RATES.index(rate)))


def stages(base: Trial, done: Callable[[list[Trial]], Records]) -> Iterator[Stage]:
    """Give the trials in stages, the most telling first; a third seed where the first two were best."""
    for dataset in DATASETS:
        grids = [_grid(replace(base, dataset=dataset, seed=seed)) for seed in (0, 1)]
        yield f"{dataset}, one seed", grids[0]
        yield f"{dataset}, a second seed", grids[1]
        found = done(grids[0] + grids[1])
        again = []
        for optimiser, init in itertools.product(OPTIMISERS, INITS):
            own = [r for r in found if (r["config"]["optimiser"], r["config"]["init"]) == (optimiser, init)]
            best = best_rate(own)
            if best is not None:
                trial = replace(base, dataset=dataset, optimiser=optimiser, init=init, seed=2)
                again += [replace(trial, rate=rate) for rate in near(best)]
        yield f"{dataset}, a third seed near the best rate", again
        if dataset == DATASETS[0]:
            yield "first steps at full width", _first_steps(base)


def _grid(base: Trial) -> list[Trial]:
    """Return every optimiser, rate and initialisation, the telling rates of both optimisers first."""
    return [
        replace(base, optimiser=optimiser, rate=rate, init=init)
        for rates in zip(*map(outwards, OPTIMISERS), strict=True)
        for optimiser, rate in zip(OPTIMISERS, rates, strict=True)
        for init in INITS
    ]


def possible(base: Trial) -> list[Trial]:
    """Return every trial that any course of the stages can ask for.

    Which rate is best changes as trials come in; a third seed that was run at another rate is evidence all the same.
    """
    grids = [_grid(replace(base, dataset=dataset, seed=seed)) for dataset in DATASETS for seed in range(3)]
    return [trial for grid in grids for trial in grid] + _first_steps(base)


def _first_steps(base: Trial) -> list[Trial]:
    full = replace(FULL, precision=base.precision)
    return [replace(full, init=init, seed=seed) for seed in range(FULL_SEEDS) for init in INITS]


def planned_trials() -> int:
    """Return how many trials all stages have, before it is known which."""
    kinds = len(DATASETS) * len(OPTIMISERS) * len(INITS)
    return kinds * (2 * len(RATES) + NEAR) + FULL_SEEDS * len(INITS)


@dataclass(frozen=True)
class Trainability(StagedSweep):
    """Where the paper's VGG trains: eight initialisations, nine rates, two optimisers, three data sets."""

    kind: ClassVar[str] = "trainability"
    title: ClassVar[str] = "trainability"

    scale: Literal["small", "paper"] = "small"
    """paper: full width, 45,000 images, 30 epochs: GPUs; small: a quarter of the width, 3,000 steps."""

    tasks: tuple[Literal["mnist", "svhn", "cifar10"], ...] = DATASETS  # type: ignore[assignment]
    """Train on these only; the summary has all that is done."""

    optimisers: tuple[Literal["nesterov", "adam"], ...] = tuple(OPTIMISERS)  # type: ignore[arg-type]
    """Train by these only."""

    inits: tuple[Literal[*INITS], ...] = INITS  # type: ignore[valid-type]
    """Train from these only; scaled: ``initialize_`` without options; advised: with the gain that its plan advises."""

    rates: tuple[float, ...] = RATES
    """Train at these only."""

    page: Path | None = None
    """Page of the docs to write the tables into, between its marks."""

    @property
    def base(self) -> Trial:
        """What all trials of the map have in common."""
        return Trial(DATASETS[0], "nesterov", 1e-2, "paper", 0, precision=self.precision, **SIZES[self.scale])

    def stages(self) -> Iterator[Stage]:
        """Give the trials in stages, those that are asked for."""
        for rate in self.rates:
            if rate not in RATES:
                raise ValueError(f"rate {rate:g} is not one of {', '.join(f'{r:g}' for r in RATES)}.")
        for label, trials in stages(self.base, self.done):
            yield label, [trial for trial in trials if self._wanted(trial)]

    def _wanted(self, trial: Trial) -> bool:
        return (
            trial.dataset in self.tasks
            and trial.optimiser in self.optimisers
            and trial.init in self.inits
            and trial.rate in self.rates
        )

    def runner(self) -> Callable[..., dict[str, Any]]:
        """Return the function that runs a trial and saves its training."""
        return functools.partial(resumable, run=run_trial, out=self.out.resolve())

    def conclude(self, planned: list[Trial], records: list[dict[str, Any]], console: Console) -> None:
        """Print, draw and save what is done of the whole plan, not only of what was asked for."""
        everything = self.done(possible(self.base))
        full = [r for r in everything if _is_full(r)]
        mapped = [r for r in everything if not _is_full(r)]
        rows, first = summarise(mapped), starts(full)
        judged = [asdict(claim) for claim in claims(rows)]
        done = {"trials": len(everything), "planned": planned_trials()}
        console.print(table(rows, f"{self.title}, {done['trials']} of {done['planned']} trials"))
        config = {"scale": self.scale, "base": asdict(self.base), "full": asdict(FULL), "rates": RATES}
        payload = {
            "experiment": self.name,
            "config": config,
            "done": done,
            "rows": rows,
            "claims": judged,
            "starts": first,
            "environment": record.combined(everything),
        }
        saved = [record.save(self.out / f"{self.name}.json", payload)]
        saved += [draw_rates(rows, self.out / f"{self.name}.png")] if rows else []
        saved += [draw_starts(first, self.out / f"{self.name}_full.png")] if first else []
        if self.page:
            text = refreshed(self.page.read_text(encoding="utf-8"), generated(payload))
            saved.append(record.write(self.page, text))
        console.print(f"Saved {', '.join(map(str, saved))}")


def _is_full(found: dict[str, Any]) -> bool:
    """Tell first steps at full width from the map, at whatever scale that is."""
    return all(found["config"][name] == getattr(FULL, name) for name in ("width", "epochs", "images", "judged"))


def table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    """Lay out the rows of a summary."""
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for head in ("data", "optimiser", "init"):
        drawn.add_column(head)
    for head in ("rates that train", "best", "seeds", "test error, %"):
        drawn.add_column(head, justify="right")
    for row in rows:
        best = next(found for found in row["rates"] if found["rate"] == row["rate"])
        errors = [error for error in best["test"].values() if error is not None]
        drawn.add_row(
            row["dataset"],
            row["optimiser"],
            NAMES[row["init"]],
            f"{sum(any(found['trained'].values()) for found in row['rates'])} of {len(row['rates'])}",
            f"{row['rate']:g}",
            f"{len(best['test'])}",
            f"{100 * sum(errors) / len(errors):.1f}" if errors else "diverged",
        )
    return drawn
