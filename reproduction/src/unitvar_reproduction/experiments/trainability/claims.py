"""The paper's four claims about its VGG, each against He's weights, judged on pairs that share their seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unitvar_reproduction.experiments.trainability.summary import OPTIMISERS
from unitvar_reproduction.experiments.trainability.trial import DATASETS
from unitvar_reproduction.judgement import lower, more_often
from unitvar_reproduction.statistics import Estimate, estimate

__all__ = ["ENOUGH", "UNTRAINABLE", "WORDS", "Judgement", "claims", "compared"]

UNTRAINABLE = 0.01  # the rate of Nesterov momentum at which the paper calls He's weights untrainable
ENOUGH = 3  # pairs that an interval needs to decide
WORDS = {True: "held", False: "contrary", None: "open"}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Judgement:
    """One claim on one data set under one optimiser."""

    claim: str
    dataset: str
    optimiser: str
    evidence: str
    verdict: str
    """``held``, ``contrary`` (the opposite was shown) or ``open``."""


def claims(rows: Sequence[Row]) -> list[Judgement]:
    """Judge every claim wherever both the paper's weights and He's have trials."""
    by = {(row["dataset"], row["optimiser"], row["init"]): row for row in rows}
    found = []
    for dataset in DATASETS:
        for optimiser in OPTIMISERS:
            pair = [by.get((dataset, optimiser, init)) for init in ("paper", "he")]
            if pair[0] is not None and pair[1] is not None:
                found += [Judgement(c, dataset, optimiser, e, v) for c, e, v in _judged(optimiser, *pair)]  # type: ignore[arg-type]
    return found


def _judged(optimiser: str, ours: Row, he: Row) -> Iterator[tuple[str, str, str]]:
    yield "lower error at the best rate", *_error(ours, he)
    yield "more rates that train", *_rates(ours, he)
    if optimiser == "nesterov":
        untrainable = _untrainable(ours, he)
        if untrainable:
            yield f"He untrainable at Nesterov {UNTRAINABLE:g}", *untrainable
    yield "vanishing update signals under He", *_signals(ours, he)


def compared(row: Row, other: Row) -> tuple[Estimate | None, int]:
    """Return the difference of test errors, each at its own best rate, paired by seed, and the number of pairs."""
    ours, others = (at(r, r["rate"])["test"] for r in (row, other))
    differences = [
        ours[seed] - others[seed]
        for seed in ours.keys() & others.keys()
        if ours[seed] is not None and others[seed] is not None
    ]
    return (estimate(differences) if differences else None), len(differences)


def at(row: Row, rate: float) -> Row:
    """Return what a row has at one of its rates; nothing of any seed where it has not been tried."""
    empty: dict[str, Any] = {name: {} for name in ("validation", "test", "dropout_on", "trained", "moved")}
    return next((found for found in row["rates"] if found["rate"] == rate), empty)


def _decided(difference: Estimate | None, pairs: int) -> str:
    """Judge a difference that the claim says is below zero."""
    return WORDS[lower(difference) if pairs >= ENOUGH else None]


def _error(ours: Row, he: Row) -> tuple[str, str]:
    difference, pairs = compared(ours, he)
    if difference is None:
        return "no pair finished", "open"
    both = f"rates {ours['rate']:g} and {he['rate']:g}"
    return f"{difference.percent()} points, {_counted(pairs, 'seed')}, {both}", _decided(difference, pairs)


def _rates(ours: Row, he: Row) -> tuple[str, str]:
    """Count the trials, at one rate with one seed, in which one of both trains and the other does not; sign test.

    Neighbouring rates are not independent, so the level is nominal.
    """
    pairs = [
        (found["trained"][seed], at(he, found["rate"])["trained"][seed])
        for found in ours["rates"]
        for seed in found["trained"]
        if seed in at(he, found["rate"])["trained"]
    ]
    more, fewer = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    counts = f"{sum(a for a, _ in pairs)} against {sum(b for _, b in pairs)} of {_counted(len(pairs), 'trial')}"
    answer, p = more_often(more, fewer)
    return f"{counts} (p = {p:.2g})", WORDS[answer]


def _untrainable(ours: Row, he: Row) -> tuple[str, str] | None:
    """Judge by counts: held if He's never trains and the paper's always does, contrary once He's trains."""
    tried = [at(row, UNTRAINABLE)["trained"] for row in (ours, he)]
    seeds = tried[0].keys() & tried[1].keys()
    if not seeds:
        return None
    paper, others = (sum(found[seed] for seed in seeds) for found in tried)
    counts = f"{paper} against {others} of {_counted(len(seeds), 'seed')} train"
    if others:
        return counts, "contrary"
    return counts, "held" if paper == len(seeds) >= ENOUGH else "open"


def _signals(ours: Row, he: Row) -> tuple[str, str]:
    """Compare the first layer's gradient before training, He's over the paper's, in decades."""
    gradients = [{seed: start["gradient"][0] for seed, start in row["start"].items()} for row in (he, ours)]
    logs = [
        math.log10(gradients[0][seed] / gradients[1][seed])
        for seed in gradients[0].keys() & gradients[1].keys()
        if gradients[0][seed] and gradients[1][seed]
    ]
    if not logs:
        return "not measured", "open"
    ratio = estimate(logs)
    return f"He's over the paper's: 10^({ratio:.2f}), {_counted(len(logs), 'seed')}", _decided(ratio, len(logs))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
