"""What the DenseNets found: errors by variant with intervals over networks, and paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from unitvar_reproduction.statistics import Estimate, estimate
from unitvar_reproduction.training.batchnorm import VARIANTS

__all__ = ["sensitivity_rows", "summarise", "tables"]

KIND = ("dataset", "depth", "growth", "keep", "epochs")
MOMENTS = ("halfway", "end")

Record = Mapping[str, Any]


def summarise(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a row for each kind of network, moment and variant.

    Two paired tests against each earlier variant: the difference of errors in the mean over networks, with its
    interval; and, over the test images of each network, how many only one of the two variants gets wrong, with the
    probability of so uneven a split if both were equally good (McNemar's test, exact), the largest of all networks', or
    1 if they are not all uneven in the same direction. The second needs no more than one network, and speaks of these
    networks only.
    Their counts are added up, but not tested as a sum: the networks see the same images, which are not as many
    independent ones.
    """
    rows = []
    for kind, own in _kinds(records).items():
        for moment in MOMENTS:
            measured = [r["measured"][moment] for r in own if moment in r["measured"]]
            for name in VARIANTS if measured else ():
                row: dict[str, Any] = {**dict(kind), "images": own[0]["images"], "moment": moment, "arm": name}
                row["seeds"] = len(measured)
                row["reestimated"] = own[0]["config"]["reestimated"]
                for metric in ("error", "log_loss"):
                    row[metric] = _estimated([m[name][metric] for m in measured])
                row["against"] = {other: _compared(measured, name, other) for other in VARIANTS[: VARIANTS.index(name)]}
                rows.append(row)
    return rows


def _kinds(records: Sequence[Record]) -> dict[tuple[tuple[str, Any], ...], list[Record]]:
    kinds: dict[tuple[tuple[str, Any], ...], list[Record]] = {}
    for record in records:
        kinds.setdefault(tuple((name, record["config"][name]) for name in KIND), []).append(record)
    return kinds


def _compared(measured: Sequence[Mapping[str, Any]], name: str, other: str) -> dict[str, Any]:
    from scipy.stats import binomtest

    changed = [(m[name]["changed"][other]["worse"], m[name]["changed"][other]["better"]) for m in measured]
    agree = len({worse < better for worse, better in changed}) == 1
    return {
        **{metric: _difference(measured, name, other, metric) for metric in ("error", "log_loss")},
        "lower": sum(m[name]["error"] < m[other]["error"] for m in measured),
        "worse": sum(worse for worse, _ in changed),
        "better": sum(better for _, better in changed),
        "p": max(
            float(binomtest(worse, worse + better).pvalue) if agree and worse + better else 1.0
            for worse, better in changed
        ),
    }


def _difference(
    measured: Sequence[Mapping[str, Any]], name: str, other: str, metric: str
) -> dict[str, float | None] | None:
    pairs = [(m[name][metric], m[other][metric]) for m in measured]
    return _estimated([None if None in pair else pair[0] - pair[1] for pair in pairs])


def _estimated(values: Sequence[float | None]) -> dict[str, float | None] | None:
    """Estimate the mean of saved values; there is none if one of them was not finite, which is saved as None."""
    finite = [value for value in values if value is not None]
    return asdict(estimate(finite)) if len(finite) == len(values) else None


def sensitivity_rows(records: Sequence[Record]) -> dict[str, list[dict[str, Any]]] | None:
    """Return how much the error differs from re-estimation with all batches of the trial's size, over networks."""
    own = [r for r in records if r["sensitivity"]]
    if not own:
        return None
    found: dict[str, list[dict[str, Any]]] = {}
    for what, key in (("batches", "batches"), ("sizes", "size")):
        rows = []
        for i, first in enumerate(own[0]["sensitivity"][what]):
            row: dict[str, Any] = {key: first[key], "seeds": len(own)}
            pairs = [{"this": r["sensitivity"][what][i], "all": r["sensitivity"]["batches"][-1]} for r in own]
            for metric in ("error", "log_loss"):
                row[metric] = _estimated([pair["this"][metric] for pair in pairs])
                row[f"{metric} minus all"] = _difference(pairs, "this", "all", metric)
            rows.append(row)
        found[what] = rows
    pairs = [{"this": r["measured"]["end"][VARIANTS[0]], "all": r["sensitivity"]["batches"][-1]} for r in own]
    row = {metric: _estimated([pair["this"][metric] for pair in pairs]) for metric in ("error", "log_loss")}
    differences = {f"{m} minus all": _difference(pairs, "this", "all", m) for m in ("error", "log_loss")}
    found["as trained"] = [{**row, **differences}]
    return found


def tables(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Lay out the rows of each data set and size of network, in 80 columns."""
    for network in dict.fromkeys(tuple(row[name] for name in KIND[:3]) for row in rows):
        title = "DenseNets on {}, L = {}, k = {}".format(*network)
        drawn = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
        for head in ("keep", "BatchNorm"):
            drawn.add_column(head)
        for head in ("n", "error, %", "Δ as trained", "p"):
            drawn.add_column(head, justify="right")
        for row in rows:
            if tuple(row[name] for name in KIND[:3]) == network:
                drawn.add_row(*_cells(row), end_section=row["arm"] == VARIANTS[-1])
        drawn.caption = "n networks; p by image (McNemar's test), the largest of theirs"
        yield drawn


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    against = row["against"].get(VARIANTS[0])
    yield f"{row['keep']:g} {row['moment']}"
    yield row["arm"]
    yield f"{row['seeds']}"
    yield Estimate(**row["error"]).percent()
    yield Estimate(**against["error"]).percent() if against else "–"
    yield f"{against['p']:.1g}" if against else "–"
