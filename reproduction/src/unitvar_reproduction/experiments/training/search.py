"""What to train next: rates on a ladder, extended until the best is inside it, then more seeds at the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unitvar_reproduction.experiments.training.trial import Trial

__all__ = ["START", "TUNING_SEEDS", "Cell", "chosen", "following", "inside", "ladder"]

START = {"adamw": range(-7, -3), "nesterov": range(-4, 0)}
"""Optimiser → the rungs that every initialisation begins with: 3e-4 … 1e-2 and 1e-2 … 3e-1."""

MOST = 8  # rates that a cell may try
TUNING_SEEDS = (0, 1)
FLAT = 1e-3  # an edge that is better than its neighbour by less than this fraction does not count as better


@dataclass(frozen=True)
class Cell:
    """One initialisation of one family under one optimiser."""

    family: str
    optimiser: str
    init: str
    steps: int = 2000

    def trial(self, rung: int, seed: int) -> Trial:
        """Return a trial of it."""
        return Trial(self.family, self.optimiser, self.init, ladder(rung), seed, self.steps)


def ladder(rung: int) -> float:
    """Return a learning rate: two in each decade, 1 and 3 times a power of ten."""
    return float(f"{3 if rung % 2 else 1}e{rung // 2}")


Losses = Mapping[tuple[int, int], float]
"""(rung, seed) → the log loss on the tuning set, infinite where training diverged."""


def losses(cell: Cell, records: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], float]:
    """Return what is known of a cell."""
    rungs = {ladder(rung): rung for rung in range(-20, 9)}
    found = {}
    for r in records:
        config = r["config"]
        if all(config[key] == getattr(cell, key) for key in ("family", "optimiser", "init", "steps")):
            loss = r["tuning"]["log_loss"]
            found[rungs[config["rate"]], config["seed"]] = math.inf if loss is None else loss
    return found


def following(cell: Cell, known: Losses, seeds: int) -> list[Trial]:
    """Return the trials that a cell needs next; none when it is settled.

    First the rates of START with one seed; then further rates while the best is at an edge; a second seed at the two
    best, of which the lower mean is chosen; then the other seeds at the chosen rate.
    """
    start = [(rung, 0) for rung in START[cell.optimiser]]
    second, rest = TUNING_SEEDS[1:], range(len(TUNING_SEEDS), seeds)
    by_first = sorted((rung for rung, seed in known if seed == 0), key=lambda rung: (known[rung, 0], rung))
    stages: tuple[Callable[[], list[tuple[int, int]]], ...] = (
        lambda: start,
        lambda: [(rung, 0) for rung in _beyond(known, by_first[0])],
        lambda: [(rung, seed) for rung in by_first[:2] for seed in second],
        lambda: [(rung, 0) for rung in _beyond(known, _best(known))],
        lambda: [(_best(known), seed) for seed in rest],
    )
    for stage in stages:
        missing = [pair for pair in stage() if pair not in known]
        if missing:
            return [cell.trial(*pair) for pair in missing]
    return []


def _best(known: Losses) -> int:
    """Return the rung with the lowest mean over the tuning seeds, of those that have them all."""
    rungs = {rung for rung, _ in known if all((rung, seed) in known for seed in TUNING_SEEDS)}
    return min(sorted(rungs), key=lambda rung: sum(known[rung, seed] for seed in TUNING_SEEDS))


def _beyond(known: Losses, best: int) -> list[int]:
    """Return the rung to try next if the best is at an edge of what was tried, and the ladder may grow."""
    further = _outward(known, best)
    return [] if further is None or len(_rungs(known)) >= MOST else [further]


def _outward(known: Losses, best: int) -> int | None:
    """Return the rung beyond the best if that is at an edge, and better there than the rung next to it."""
    rungs = _rungs(known)
    if len(rungs) < 2 or best not in (rungs[0], rungs[-1]):
        return None
    neighbour, further = (rungs[1], best - 1) if best == rungs[0] else (rungs[-2], best + 1)
    return further if known[best, 0] < (1 - FLAT) * known[neighbour, 0] else None


def _rungs(known: Losses) -> list[int]:
    return sorted(rung for rung, seed in known if seed == 0)


def chosen(known: Losses) -> int | None:
    """Return the rung chosen on the tuning set; None while that is open."""
    seconds = {rung for rung, seed in known if seed == TUNING_SEEDS[1]}
    return _best(known) if any((rung, 0) in known for rung in seconds) else None


def inside(known: Losses) -> bool:
    """Return whether the chosen rate has worse rates on both sides, or an edge where the loss is flat."""
    best = chosen(known)
    return best is not None and _outward(known, best) is None
