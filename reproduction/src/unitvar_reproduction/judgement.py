"""Every judgement of the report is made here, from paired differences and intervals, never from bare means.

Each question has three answers. True: the numbers show it. False: they show the opposite. None: they cannot tell,
because the 95 % interval holds both, or because a single seed has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unitvar_reproduction.statistics import Estimate, estimate

__all__ = [
    "VERDICTS",
    "at_most",
    "clearly_lower",
    "count",
    "in_words",
    "lower",
    "more_often",
    "paired",
    "verdict",
    "within",
]

VERDICTS = ("held", "partly", "not held", "not at this scale", "not shown")

CHANCE = 0.05  # the p above which a difference may be chance

Answer = bool | None
BySeed = Mapping[Any, float | None]


def verdict(parts: Iterable[Answer], *, shrunk: bool = False) -> str:
    """Return what becomes of a claim from the answers to its parts.

    Args:
        parts: one answer for each part of the claim. Nothing without parts: what has not been run is not judged.
        shrunk: whether the experiment is smaller than the paper's: it can confirm a claim, but not refute it.

    Returns:
        "held" if every part is shown, "partly" if some are; otherwise "not at this scale" of a shrunk experiment,
        "not shown" if no part could be told, else "not held".
    """
    answers = list(parts)
    if not answers:
        return ""
    if any(answers):
        return VERDICTS[0] if all(answers) else VERDICTS[1]
    if shrunk:
        return VERDICTS[3]
    return VERDICTS[4] if all(answer is None for answer in answers) else VERDICTS[2]


def paired(ours: BySeed, others: BySeed, *, cap: float | None = None) -> Estimate | None:
    """Estimate a difference, first less second, over the seeds that both have.

    Args:
        ours: a value for each seed; None where there is none.
        others: what to compare with.
        cap: stands for a value that is None, such as all epochs for a goal that was never reached. Without it a seed
            with such a value is left out.

    Returns:
        The difference; None without a seed to compare, or where neither has a value on any seed.
    """
    seeds = [seed for seed in ours if seed in others]
    if all(ours[seed] is None and others[seed] is None for seed in seeds):
        return None
    pairs = [(cap if a is None else a, cap if b is None else b) for a, b in ((ours[s], others[s]) for s in seeds)]
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    return estimate(differences) if differences else None


def lower(difference: Estimate | None) -> Answer:
    """Answer whether a paired difference is below zero."""
    if difference is None or difference.half_width is None or not difference.excludes_zero:
        return None
    return difference.mean < 0


def clearly_lower(difference: Estimate, p: float) -> Answer:
    """Answer the same where each network also has a test over its images, whose largest p is given.

    A single network has only that test: it then speaks of that network alone.
    """
    if p >= CHANCE:
        return None
    return difference.mean < 0 if difference.half_width is None else lower(difference)


def more_often(wins: int, losses: int) -> tuple[Answer, float]:
    """Answer by a sign test whether wins are more frequent than losses; return its p, too."""
    from scipy.stats import binomtest

    p = float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    return (None if p >= CHANCE else wins > losses), p


def within(values: Sequence[float | None], low: float, high: float) -> Answer:
    """Answer whether a quantity lies in a range: True if it does in every network, False if in none."""
    inside = [value is not None and low < value < high for value in values]
    return True if all(inside) else None if any(inside) else False


def at_most(interval: tuple[float, float], limit: float) -> Answer:
    """Answer whether a quantity with this interval is at most a limit."""
    low, high = interval
    return True if high <= limit else False if low > limit else None


def in_words(difference: Estimate | None, what: str = "lower") -> str:
    """Say after a difference what it shows, so that no sentence claims more than its interval."""
    if difference is None or difference.half_width is None or math.isinf(difference.half_width):
        return "one seed, so no interval"
    if lower(difference) is None:
        return "not significant"
    return what if lower(difference) else {"lower": "higher", "sooner": "later"}[what]


def count(answers: Iterable[Answer]) -> tuple[int, int, int]:
    """Count what is shown, what is shown to be the opposite, and what cannot be told."""
    found = list(answers)
    return tuple(sum(answer is kind for answer in found) for kind in (True, False, None))  # type: ignore[return-value]
