"""VGG on CIFAR-10: whether a deep network with dropout trains at all, and how well, by its initialisation.

Paper (§2.3.2, Figures 3 and 4): 150 epochs, the rate divided by ten after 100 and 125, ten rates for Nesterov momentum
and ten for Adam. Test error 7.41 % against He's 24.65 % with Nesterov, 9.51 % against 10.54 % with Adam; He's is
"untrainable for more learning rates like when the learning rate was 0.01 with Nesterov momentum", where theirs
converges; He's may need "dozens of epochs to begin optimizing the first layer due to vanishing gradients".
Ours: the same with ``--scale paper``, the rate chosen on 5,000 held-out images instead of the test set, and two more
initialisations: the plan of this library, which follows max pooling and borders, and its measured variant.
By default a quarter of the width, 12 epochs, batches of 64 and the three fixed rates: half an hour a run and CPU core.
``--scale medium`` has half the width and 20 epochs, with Nesterov momentum alone, each initialisation at the rate that
the trainability map found best for it so far: two minutes an epoch and core.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from unitvar_reproduction import record
from unitvar_reproduction.experiments.vgg.figures import draw_convergence, draw_gradients, draw_start, epoch_means
from unitvar_reproduction.experiments.vgg.trial import INITS, NAMES, Trial, run_trial
from unitvar_reproduction.statistics import Estimate, estimate
from unitvar_reproduction.sweep.staged import Stage, StagedSweep, resumable

__all__ = ["DOUBT", "Vgg", "planned_trials", "rates", "stages", "summarise", "written_error"]

FIXED = {"nesterov": (1e-2, 1e-3, 1e-4), "adam": (1e-3, 1e-4, 1e-5)}
DRAWN = {"small": 0, "paper": 7}  # further rates
SIZES: dict[str, dict[str, Any]] = {
    "small": {"width": 16, "epochs": 12, "batch": 64},
    "medium": {"width": 32, "epochs": 20, "batch": 64},
    "paper": {},
}
MAPPED = {"paper": 1e-2, "he": 3e-3, "plan": 1e-2}  # Nesterov's best rates in the trainability map, on MNIST
WIDTH = Trial("adam", 1e-3, "paper", 0).width
GUESSING = 0.9  # the error of a network that knows nothing
DOUBT = 1e-3  # how often one that knows nothing may be taken for one that has learnt

Record = Mapping[str, Any]


def rates(optimiser: str, drawn: int, seed: int = 0) -> tuple[float, ...]:
    """Return the paper's fixed rates of an optimiser and so many drawn log-uniformly from [1e-5, 1e-1], by seed."""
    generator = torch.Generator().manual_seed(seed + 2 * list(FIXED).index(optimiser))
    powers = torch.rand(drawn, generator=generator, dtype=torch.float64) * 4 - 5
    return FIXED[optimiser] + tuple(float(f"{10**power:.3g}") for power in powers.tolist())


def stages(base: Trial, scale: str, seeds: int, done: Callable[[list[Trial]], Sequence[Record]]) -> Iterator[Stage]:
    """Give the trials in stages, the most telling first; later ones build on the records of earlier ones."""
    if scale == "medium":
        kinds = [replace(base, optimiser="nesterov", rate=rate, init=init) for init, rate in MAPPED.items()]
        yield "until it learns", [replace(trial, seed=seed) for seed in range(seeds) for trial in kinds]
        return
    pairs = [(optimiser, rate) for optimiser in FIXED for rate in rates(optimiser, DRAWN[scale])]
    first = [
        replace(base, optimiser=optimiser, rate=rate, init=init) for optimiser, rate in pairs for init in INITS[:2]
    ]
    yield "the paper's comparison", first
    if scale == "paper":
        added = [
            replace(base, optimiser=optimiser, rate=rate, init=init) for optimiser, rate in pairs for init in INITS[2:]
        ]
    else:  # our own two at the rate that is best for the paper's
        best = [Trial(**r["config"]) for r in tuned(done(first)) if r["config"]["init"] == "paper"]
        added = [replace(trial, init=init) for trial in best for init in INITS[2:]]
    yield "our own", added
    again = tuned(done(first + added))
    yield "more seeds", [replace(Trial(**r["config"]), seed=seed) for seed in range(1, seeds) for r in again]


def planned_trials(scale: str, seeds: int) -> int:
    """Return how many trials all stages have, before it is known which."""
    if scale == "medium":
        return seeds * len(MAPPED)
    kinds = len(FIXED) * len(INITS)
    tried = sum(len(rates(optimiser, DRAWN[scale])) for optimiser in FIXED)
    first = tried * len(INITS) if scale == "paper" else tried * len(INITS[:2]) + len(FIXED) * len(INITS[2:])
    return first + (seeds - 1) * kinds


def tuned(records: Sequence[Record]) -> list[Record]:
    """Return, for each optimiser and initialisation, the record whose rate has the best validation error at the end."""
    best: dict[tuple[str, str], Record] = {}
    for r in records:
        kind = r["config"]["optimiser"], r["config"]["init"]
        if kind not in best or validation_error(r) < validation_error(best[kind]):
            best[kind] = r
    return list(best.values())


def validation_error(found: Record) -> float:
    """Return the error at the end of training; that of chance if it never came to its end."""
    return GUESSING if found["diverged"] is not None else float(found["validation"][-1]["error"])


def learnt(found: Record) -> bool:
    """Return whether a network ends with fewer validation images wrong than guessing explains."""
    from scipy.stats import binomtest

    images = found["images"]["validation"]
    wrong = round(validation_error(found) * images)
    return bool(binomtest(wrong, images, GUESSING, alternative="less").pvalue < DOUBT)


def waited(found: Record) -> int:
    """Return in how many epochs the first layer's gradient is below a tenth of its later largest, in their means."""
    means = [mean for mean in epoch_means(found["curve"]["gradient"]) if math.isfinite(mean)]
    before = means[: means.index(max(means))] if means else []
    return sum(mean < max(means) / 10 for mean in before)


def summarise(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a row for each optimiser and initialisation: rates that learn, the tuned one, its error over seeds."""
    rows: list[dict[str, Any]] = []
    for chosen in tuned([r for r in records if r["config"]["seed"] == 0]):
        kind = {key: chosen["config"][key] for key in ("optimiser", "init")}
        own = [r for r in records if all(r["config"][key] == value for key, value in kind.items())]
        tried = [r for r in own if r["config"]["seed"] == 0]
        repeated = [r for r in own if r["config"]["rate"] == chosen["config"]["rate"]]
        ended = [r for r in repeated if r["diverged"] is None]
        rows.append(
            {
                **kind,
                "rates": [r["config"]["rate"] for r in tried],
                "learnt": [r["config"]["rate"] for r in tried if learnt(r)],
                "errors": [None if r["diverged"] is not None else validation_error(r) for r in tried],
                "dropout_on": [(r.get("dropout_on") or {}).get("error") for r in tried],
                "waited": [waited(r) for r in tried],
                "rate": chosen["config"]["rate"],
                "seeds": len(repeated),
                "diverged": len(repeated) - len(ended),
                "error": asdict(estimate([r["test"][-1]["error"] for r in ended])) if ended else None,
                "by_seed": {str(r["config"]["seed"]): r["test"][-1]["error"] for r in ended},
                "integrated": {
                    str(r["config"]["seed"]): r["integrated"]["error"] for r in ended if r.get("integrated")
                },
                "start": next((r["start"] for r in own if "start" in r), None),
                "curve": {
                    "training": chosen["curve"]["training"],
                    "gradient": chosen["curve"]["gradient"],
                    "test": [found["log_loss"] for found in chosen["test"]],
                },
            }
        )
    return sorted(rows, key=lambda row: (list(FIXED).index(row["optimiser"]), INITS.index(row["init"])))


@dataclass(frozen=True)
class Vgg(StagedSweep):
    """The VGG on CIFAR-10 under four initialisations: the paper's Figures 3 and 4."""

    kind: ClassVar[str] = "vgg"
    title: ClassVar[str] = "VGG"

    scale: Literal["small", "medium", "paper"] = "small"
    """paper: full width, 150 epochs, ten rates for each optimiser: GPUs; small: for two CPU cores, hours; medium: half
    the width, 20 epochs, Nesterov momentum at one rate for each initialisation."""

    seeds: int = 1
    """Networks of each kind at the tuned rate."""

    width: float | None = None
    """Share of the paper's channels, 64 in the first stack; default: 1, 0.5 at medium scale, 0.25 at small."""

    epochs: int | None = None
    """Epochs of training; default: 150, 20 at medium scale, 12 at small."""

    augment: bool = True
    """Shift and mirror images, as in the authors' release; the paper does not say so."""

    @property
    def base(self) -> Trial:
        """What all trials have in common."""
        if self.width is not None and not 1 <= round(WIDTH * self.width) <= 4 * WIDTH:
            raise ValueError(
                f"width={self.width:g} is not a share of the paper's width, from 1/{WIDTH} to 4; 0.25 has "
                f"{WIDTH // 4} channels in the first stack."
            )
        given = {"width": None if self.width is None else round(WIDTH * self.width), "epochs": self.epochs}
        sizes = SIZES[self.scale] | {name: value for name, value in given.items() if value is not None}
        return Trial("adam", 1e-3, "paper", 0, augment=self.augment, precision=self.precision, **sizes)

    def stages(self) -> Iterator[Stage]:
        """Give the trials in stages."""
        return stages(self.base, self.scale, self.seeds, self.done)

    def datasets(self, trials: Iterable[Any]) -> Iterable[str]:
        """Return the one data set."""
        return ["cifar10"]

    def runner(self) -> Callable[..., dict[str, Any]]:
        """Return the function that runs a trial and saves its training."""
        return functools.partial(resumable, run=run_trial, out=self.out.resolve())

    def conclude(self, planned: list[Trial], records: list[dict[str, Any]], console: Console) -> None:
        """Print, draw and save."""
        rows = summarise(records)
        done = {"trials": len(records), "planned": planned_trials(self.scale, self.seeds)}
        console.print(table(rows, f"VGG on CIFAR-10, {done['trials']} of {done['planned']} trials"))
        config = {"scale": self.scale, "seeds": self.seeds, "base": asdict(self.base), "images": records[0]["images"]}
        ran = record.combined(records)
        payload = {"experiment": self.name, "config": config, "done": done, "rows": rows, "environment": ran}
        path = record.save(self.out / f"{self.name}.json", payload)
        pictures = (
            draw_convergence(rows, self.out / f"{self.name}.png"),
            draw_gradients(rows, self.out / f"{self.name}_gradients.png"),
            draw_start(rows, self.out / f"{self.name}_start.png"),
        )
        console.print(f"Saved {path}, {pictures[0]}, {pictures[1]} and {pictures[2]}")


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Lay out the rows of a summary."""
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for head in ("optimiser", "init"):
        drawn.add_column(head)
    for head in ("rates that learn", "tuned rate", "seeds", "test error, %"):
        drawn.add_column(head, justify="right")
    for i, row in enumerate(rows):
        ends = i + 1 == len(rows) or rows[i + 1]["optimiser"] != row["optimiser"]
        drawn.add_row(
            row["optimiser"],
            NAMES[row["init"]],
            f"{len(row['learnt'])} of {len(row['rates'])}",
            f"{row['rate']:g}",
            f"{row['seeds']}",
            written_error(row),
            end_section=ends,
        )
    return drawn


def written_error(row: Mapping[str, Any], unit: str = "") -> str:
    """Write the test error in percent, which is of those networks that came to an end, and how many did not."""
    if not row["error"]:
        return "(diverged)"
    lost = f" ({row['diverged']} of {row['seeds']} diverged)" if row["diverged"] else ""
    return Estimate(**row["error"]).percent() + unit + lost
