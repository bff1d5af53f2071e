"""What the short trainings say: which rates train, how soon, and each initialisation at its best rate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unitvar_reproduction.experiments.trainability.trial import DATASETS, INITS, first_moved

__all__ = ["DOUBT", "OPTIMISERS", "best_rate", "moved", "starts", "summarise", "trained"]

OPTIMISERS = {"nesterov": "Nesterov momentum", "adam": "Adam"}
DOUBT = 1e-3  # how often a network that guesses may be taken for one that has learnt

Record = Mapping[str, Any]


def trained(found: Record) -> bool:
    """Return whether a network errs less than guessing explains, with dropout off or on.

    Both, because with dropout off the signal of a plain network fades, and what was learnt may show only with it on.
    """
    from scipy.stats import binomtest

    images, guessing = found["images"]["validation"], found["chance"]["validation"]["error"]
    errors = [found["judged"][name]["error"] for name in ("validation", "dropout_on") if name in found["judged"]]
    wrong = [round(error * images) for error in errors if error is not None]
    return any(binomtest(k, images, guessing, alternative="less").pvalue < DOUBT / 2 for k in wrong)


def moved(found: Record) -> int | None:
    """Return after how many steps the training loss, in the mean between two points, was first below guessing's."""
    first = first_moved(found["curve"]["training"], found["chance"]["training"]["log_loss"])
    return None if first is None else round(first * found["steps"] / _points(found))


def validation_error(found: Record) -> float:
    """Return the error by which a rate is chosen; one if training diverged, which is worse than any guess."""
    error = found["judged"].get("validation", {}).get("error")
    return 1.0 if error is None else float(error)


def best_rate(records: Iterable[Record]) -> float | None:
    """Return the rate with the lowest validation error, in the mean over the seeds it has; None without records."""
    by_rate: dict[float, list[float]] = {}
    for r in records:
        by_rate.setdefault(r["config"]["rate"], []).append(validation_error(r))
    return min(by_rate, key=lambda rate: sum(by_rate[rate]) / len(by_rate[rate])) if by_rate else None


def summarise(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a row for each data set, optimiser and initialisation that has trials: all its rates, seed by seed."""
    rows = []
    for dataset, optimiser, init in itertools.product(DATASETS, OPTIMISERS, INITS):
        kind = {"dataset": dataset, "optimiser": optimiser, "init": init}
        own = [r for r in records if all(r["config"][key] == value for key, value in kind.items())]
        best = best_rate(own)
        if best is None:
            continue
        rates = sorted({r["config"]["rate"] for r in own})
        at = [sorted((r for r in own if r["config"]["rate"] == rate), key=_seed) for rate in rates]
        rows.append(
            {
                **kind,
                "rate": best,
                "rates": [_at_rate(rate, found) for rate, found in zip(rates, at, strict=True)],
                "start": {str(_seed(r)): r["start"] for found in at for r in found},  # no matter at which rate
                "chance": own[0]["chance"]["validation"]["error"],
            }
        )
    return rows


def _at_rate(rate: float, found: Sequence[Record]) -> dict[str, Any]:
    """Return what each seed reached at a rate; None where training diverged."""

    def errors(name: str) -> dict[str, float | None]:
        return {str(_seed(r)): r["judged"].get(name, {}).get("error") for r in found}

    return {
        "rate": rate,
        "validation": errors("validation"),
        "test": errors("test"),
        "dropout_on": errors("dropout_on"),
        "trained": {str(_seed(r)): trained(r) for r in found},
        "moved": {str(_seed(r)): moved(r) for r in found},
    }


def starts(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the first steps of networks of full width: loss and first-layer gradient on the way, by seed."""
    rows = []
    for r in sorted(records, key=lambda r: (INITS.index(r["config"]["init"]), _seed(r))):
        kept = {key: r["config"][key] for key in ("dataset", "optimiser", "rate", "init", "seed", "width", "batch")}
        kept |= {
            "steps": r["steps"],
            "points": _points(r),
            "diverged": r["diverged"],
            "moved": moved(r),
            "trained": trained(r),
        }
        rows.append({**kept, "start": r["start"], "curve": r["curve"], "judged": r["judged"]})
    return rows


def _seed(found: Record) -> int:
    return int(found["config"]["seed"])


def _points(found: Record) -> int:
    """Return how many points the curves of a whole training have."""
    return int(found["config"]["points"] * found["config"]["epochs"])
