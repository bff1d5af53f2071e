"""The trainability map in the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unitvar_reproduction.experiments.pages import markdown
from unitvar_reproduction.experiments.section import Grid, Payload, Picture, Section, precision, verdict
from unitvar_reproduction.experiments.trainability.claims import WORDS, at, compared
from unitvar_reproduction.experiments.trainability.figures import TITLES
from unitvar_reproduction.experiments.trainability.summary import DOUBT, OPTIMISERS
from unitvar_reproduction.experiments.trainability.trial import MARGIN, NAMES
from unitvar_reproduction.statistics import estimate

__all__ = ["generated", "trainability"]

ANSWERS = {word: answer for answer, word in WORDS.items()}
RATES = (
    "Points below the dotted line, the error of guessing, are networks that train. Each point is one seed: filled if "
    "every seed trains at that rate, hollow if not. Lines go through the means; points of one rate stand apart.",
    "Validation error against the learning rate for each initialisation, a panel for each data set and optimiser.",
)
STARTS = (
    "Compare which loss falls first, and which gradient starts small. Each line is one network.",
    "Training loss and the first layer's gradient over the first steps at full width, for each initialisation.",
)


def trainability(p: Payload) -> Section:
    """Where the VGG trains."""
    base, done, name = p["config"]["base"], p["done"], p["experiment"]
    verdicts = [claim["verdict"] for claim in p["claims"]]
    heads = ("data", "optimiser", "init", "rates that train", "best rate", "seeds", "test error, %", "steps to move")
    tables = [
        Grid("Each initialisation at its best rate", heads, tuple(map(_cells, p["rows"]))),
        Grid(
            "The paper's claims: its weights compared with He's",
            ("claim", "data", "optimiser", "found", "verdict"),
            tuple(
                (c["claim"], TITLES[c["dataset"]], OPTIMISERS[c["optimiser"]], c["evidence"], c["verdict"])
                for c in p["claims"]
            ),
        ),
    ]
    if p["starts"]:
        tables.append(_first_steps(p["starts"]))
    pictures = [Picture(f"{name}.png", *RATES)] if p["rows"] else []
    pictures += [Picture(f"{name}_full.png", *STARTS)] if p["starts"] else []
    return Section(
        "Where the VGG trains",
        "Compared with He's weights, the paper's give a lower error and train at more rates (He's do not train at "
        "Nesterov 0.01), and the first layer does not stall for dozens of epochs because its gradient vanishes.",
        (
            "We test each claim on each data set with each optimiser: "
            f"{verdicts.count('held')} of {len(verdicts)} tests support it, {verdicts.count('contrary')} show the "
            f"opposite and {verdicts.count('open')} are open.",
            *_against_paper(p["rows"]),
        ),
        f"First stack {base['width']} wide (paper: 64), {base['epochs']} epochs of {base['images']:,} images in "
        f"batches of {base['batch']} at one rate, no augmentation{precision(base['precision'])}; {done['trials']} of "
        f"{done['planned']} trials done. A network trains if guessing would reach its validation error, with "
        f"dropout off or on, less than once in {1 / DOUBT:,.0f} times. Its loss has moved when it is {MARGIN:g} below "
        f"that of guessing{_patience(base)}. Differences are paired by seed. A claim about errors or gradients is "
        "decided by the 95 % interval over at least three seeds.",
        tuple(tables),
        tuple(pictures),
        verdict=verdict((ANSWERS[v] for v in verdicts), shrunk=True),
    )


def generated(p: Payload) -> dict[str, str]:
    """Return what a page of the docs takes from the results, in Markdown: how the map was made, and its tables."""
    section = trainability(p)
    return {"map": "\n\n".join([section.ran, *(f"{grid.caption}:\n\n{markdown(grid)}" for grid in section.tables)])}


def _patience(base: Mapping[str, Any]) -> str:
    """Return what happens to networks whose loss does not move."""
    epochs = base.get("patience")
    return "" if epochs is None else f"; training stops if it has not moved after {epochs} epochs"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    best = at(row, row["rate"])
    errors = [error for error in best["test"].values() if error is not None]
    steps = [moved for moved in best["moved"].values() if moved is not None]
    return (
        TITLES[row["dataset"]],
        OPTIMISERS[row["optimiser"]],
        NAMES[row["init"]],
        f"{sum(any(found['trained'].values()) for found in row['rates'])} of {len(row['rates'])}",
        f"{row['rate']:g}",
        f"{len(best['test'])}",
        estimate(errors).percent() if errors else "diverged",
        f"{sum(steps) / len(steps):.0f}" if len(steps) == len(best["moved"]) else "never",
    )


def _against_paper(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Compare every other initialisation with the paper's, each at its own best rate."""
    papers = {(row["dataset"], row["optimiser"]): row for row in rows if row["init"] == "paper"}
    for (dataset, optimiser), paper in papers.items():
        others = [
            row for row in rows if (row["dataset"], row["optimiser"]) == (dataset, optimiser) and row is not paper
        ]
        parts = []
        for row in others:
            difference, pairs = compared(row, paper)
            if difference is not None:
                parts.append(f"{NAMES[row['init']]} {difference.percent()} (n = {pairs})")
        if parts:
            yield (
                f"{TITLES[dataset]}, {OPTIMISERS[optimiser]}: test error minus that of the paper's weights, in points: "
                f"{', '.join(parts)}."
            )


def _first_steps(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Lay out what the first steps at full width do."""

    def number(value: float | None, spec: str = ".2g") -> str:
        return "not finite" if value is None else f"{value:{spec}}"

    cells = tuple(
        (
            NAMES[row["init"]],
            f"{row['seed']}",
            number(row["start"]["on"][-1]),
            number(row["start"]["gradient"][0]),
            number(row["start"]["gradient"][-1]),
            number(row["curve"]["training"][0], ".3f"),
            number(row["curve"]["training"][-1], ".3f") if row["diverged"] is None else "diverged",
            "–" if row["moved"] is None else f"{row['moved']}",
        )
        for row in rows
    )
    one = rows[0]
    return Grid(
        f"First {one['steps']} steps at full width: {TITLES[one['dataset']]}, {OPTIMISERS[one['optimiser']]} "
        f"{one['rate']:g}, batches of {one['batch']}",
        ("init", "seed", "E z², last layer", "gradient, first", "gradient, last", "loss", "loss at end", "moved at"),
        cells,
    )
