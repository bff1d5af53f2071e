"""What the trials say: each initialisation at its chosen rate, differences paired by seed, and the verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unitvar_reproduction.experiments.training.families import FAMILIES, ours
from unitvar_reproduction.experiments.training.search import TUNING_SEEDS, Cell, chosen, inside, ladder, losses
from unitvar_reproduction.networks.fill import FILLS
from unitvar_reproduction.statistics import Estimate, estimate

__all__ = ["ENOUGH", "VERDICTS", "Row", "claims", "compared", "judged", "rows", "summarise"]

ENOUGH = 5  # pairs that a verdict needs
VERDICTS = ("better", "no difference", "worse", "diverged", "open")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One initialisation of one family under one optimiser, at the rate chosen on the tuning set."""

    family: str
    optimiser: str
    init: str
    rate: float
    tuning: Mapping[float, float | None]
    """Rate → mean loss on the tuning set over those tuning seeds that it has, None where training diverged."""

    inside: bool
    """Whether rates on both sides of the chosen one are not better."""

    report: Mapping[int, float | None]
    """Seed → log loss on the reported set at the chosen rate, None where training diverged."""

    error: Mapping[int, float | None]

    @property
    def loss(self) -> Estimate | None:
        """Give the mean over seeds; None if one diverged."""
        values = [value for value in self.report.values() if value is not None]
        return estimate(values) if values and len(values) == len(self.report) else None


def rows(records: Iterable[Record]) -> list[Row]:
    """Return a row for each cell whose rate has been chosen, in the order of families and initialisations."""
    cells: dict[Cell, list[Record]] = {}
    for r in records:
        config = r["config"]
        cells.setdefault(Cell(config["family"], config["optimiser"], config["init"], config["steps"]), []).append(r)
    order = {name: i for i, name in enumerate((*FAMILIES, *FILLS))}
    found = (_row(cell, own) for cell, own in cells.items())
    return sorted((row for row in found if row), key=lambda r: (r.optimiser, order[r.family], order[r.init]))


def _row(cell: Cell, records: Sequence[Record]) -> Row | None:
    known = losses(cell, records)
    best = chosen(known)
    if best is None:
        return None
    by_rate: dict[float, list[float]] = {}
    for (rung, seed), loss in sorted(known.items()):
        if seed in TUNING_SEEDS:
            by_rate.setdefault(ladder(rung), []).append(loss)
    means = {rate: sum(values) / len(values) for rate, values in by_rate.items()}
    at_best = sorted(
        (r for r in records if r["config"]["rate"] == ladder(best)), key=lambda r: int(r["config"]["seed"])
    )
    return Row(
        cell.family,
        cell.optimiser,
        cell.init,
        ladder(best),
        {rate: mean if math.isfinite(mean) else None for rate, mean in means.items()},
        inside(known),
        {r["config"]["seed"]: r["report"]["log_loss"] for r in at_best},
        {r["config"]["seed"]: r["report"].get("error") for r in at_best},
    )


def compared(row: Row, other: Row) -> tuple[Estimate | None, str]:
    """Return the mean difference of the losses, paired by seed, row less other, and the verdict on row."""
    pairs = [(row.report[seed], other.report[seed]) for seed in row.report.keys() & other.report.keys()]
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    if len(differences) < len(pairs):
        return None, "diverged" if any(a is None for a, _ in pairs) else "better"
    difference = estimate(differences) if differences else None
    return difference, judged(difference, len(differences))


def judged(difference: Estimate | None, pairs: int) -> str:
    """Judge a paired difference of losses by its 95 % interval; the one place where a verdict is made."""
    if difference is None or pairs < ENOUGH:
        return "open"
    if not difference.excludes_zero:
        return "no difference"
    return "better" if difference.mean < 0 else "worse"


def summarise(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the rows as they are saved, each compared with torch's default and with the family's usual one."""
    found = rows(records)
    by = {(row.family, row.optimiser, row.init): row for row in found}
    saved = []
    for row in found:
        loss = row.loss
        entry: dict[str, Any] = {
            "family": row.family,
            "optimiser": row.optimiser,
            "init": row.init,
            "rate": row.rate,
            "inside": row.inside,
            "tuning": {f"{rate:g}": value for rate, value in row.tuning.items()},
            "seeds": len(row.report),
            "loss": asdict(loss) if loss else None,
        }
        for name, against in (
            ("default", "default"),
            ("usual", FAMILIES[row.family].usual),
            ("ours", ours(row.family)),
        ):
            other = by.get((row.family, row.optimiser, against))
            difference, verdict = compared(row, other) if other and other is not row else (None, "")
            entry[f"minus {name}"] = {"difference": asdict(difference) if difference else None, "verdict": verdict}
        saved.append(entry)
    return saved


def claims(saved: Sequence[Mapping[str, Any]], optimiser: str) -> dict[str, list[str]]:
    """Return the families by verdict on ``initialize_`` without options against torch's default."""
    own = [row for row in saved if row["optimiser"] == optimiser and row["init"] == ours(row["family"])]
    verdicts = {row["family"]: row["minus default"]["verdict"] for row in own}
    return {verdict: [f for f, v in verdicts.items() if v == verdict] for verdict in VERDICTS}


def best_tuned(saved: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    """Give for each family and optimiser the row with the lowest loss on the tuning set, at its chosen rate.

    Not on the reported set: what is chosen there would look better than it is.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in saved:
        if row["tuning"][f"{row['rate']:g}"] is not None:
            groups.setdefault((row["family"], row["optimiser"]), []).append(row)
    for key, own in groups.items():
        yield key, min(own, key=lambda row: float(row["tuning"][f"{row['rate']:g}"]))
