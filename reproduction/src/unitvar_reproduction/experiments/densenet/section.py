"""The DenseNets whose BatchNorm is re-estimated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unitvar_reproduction.experiments.densenet.figures import MOMENTS, TITLES
from unitvar_reproduction.experiments.densenet.summary import KIND
from unitvar_reproduction.experiments.section import Grid, Payload, Picture, Section, percent, precision
from unitvar_reproduction.judgement import CHANCE, Answer, clearly_lower, count, lower, verdict
from unitvar_reproduction.statistics import Estimate
from unitvar_reproduction.training.batchnorm import VARIANTS
from unitvar_reproduction.values import STATE_OF_THE_ART, TABLE2

__all__ = ["densenet"]

PUBLISHED = {  # images to train on, SVHN's extra ones, which we never have, among them; and to test on
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "svhn": (604_388, 26_032),
}


def densenet(p: Payload) -> Section:
    """Table 2."""
    gains = [row["against"]["as trained"] for row in p["rows"] if row["arm"] == "variance only"]
    full, done = list(map(_full, p["rows"])), p["done"]
    lost = done.get("diverged", 0)
    best = ", ".join(f"{error:g} % on {TITLES[name]}" for name, error in STATE_OF_THE_ART.items())
    caption = f"The same with paired tests; the paper set out to beat {best}"
    tables = [_overview(p["rows"]), Grid(caption, _heads(), tuple(map(_cells, p["rows"])))]
    for what, key, caption in (
        ("batches", "batches", "Error by the number of batches, CIFAR-10"),
        ("sizes", "size", "Error by the size of the batches, all images, CIFAR-10"),
    ):
        if p["sensitivity"]:
            tables.append(_sensitivity(p["sensitivity"][what], key, caption))
    return Section(
        "Table 2: DenseNets, BatchNorm re-estimated" + (", larger" if p["config"]["scale"] == "medium" else ""),
        "Re-estimating the variance with dropout off lowers every error: on CIFAR-10 from 6.37 to 6.07 % half-way and "
        "from 5.62 to 5.38 % at the end, on CIFAR-100 by up to two points, on SVHN from 5.18 to 4.19 % and from 1.92 "
        "to 1.85 %.",
        tuple(_found(p["rows"])) or ("No network has been measured yet.",),
        f"{'Full size' if all(full) else 'Shrunk'}: {'; '.join(_sizes(p['rows']))}"
        f"{precision(p['config']['precision'])}. {done['trials']} of {done['planned']} "
        f"networks done{f', {lost} of which diverged' if lost else ''}. p is that of McNemar's test on the images "
        "that only one of the two gets right: the largest over the networks, or 1 if they differ in direction. "
        f"A difference is significant if p < {CHANCE:g} and, with several networks, its 95 % interval excludes 0.",
        tuple(tables),
        tuple(_pictures(p)),
        verdict=verdict(map(_judged, gains), shrunk=not any(full)),
    )


def _pictures(p: Payload) -> Iterator[Picture]:
    if p["rows"]:
        yield Picture(
            f"{p['experiment']}_ways.png",
            "Left of the line, re-estimation lowers the error. The control re-estimates with dropout on, so what it "
            "gains is not due to dropout. Bars are 95 % intervals over networks, paired; hollow points are single "
            "networks.",
            "Differences of the test error from the network as trained, half-way and at the end, for three ways to "
            "re-estimate BatchNorm.",
        )
    if p["sensitivity"]:
        yield _by_batches(p)


def _by_batches(p: Payload) -> Picture:
    differences = [
        Estimate(**row["error minus all"])
        for what in ("batches", "sizes")
        for row in p["sensitivity"][what]
        if row["error minus all"]["half_width"]
    ]
    better, worse, _ = count(map(lower, differences))
    return Picture(
        f"{p['experiment']}_batches.png",
        "How many batches, and how large? Each point is the test error minus that of re-estimation with all batches of "
        f"64 (the line at 0), paired by network; bars are 95 % intervals. {better + worse} of {len(differences)} "
        "differences are significant. The dashed line and its band are the network as trained.",
        "Two panels of points with error bars around zero, by number of batches from 1 to all and by batch size; the "
        "bars shrink as batches are added.",
    )


def _full(row: Mapping[str, Any]) -> bool:
    """Return whether a network has the paper's size and training, whatever the plan was called."""
    epochs = 40 if row["dataset"] == "svhn" else 300
    networks = {(r.dataset, r.depth, r.growth) for r in TABLE2}
    return (row["dataset"], row["depth"], row["growth"]) in networks and (
        row["epochs"] == epochs and (row["images"]["training"], row["images"]["test"]) == PUBLISHED[row["dataset"]]
    )


def _sizes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say how large networks, data and training were, data set by data set."""
    sizes: dict[str, dict[str, None]] = {}
    for row in rows:
        images = f"{row['images']['training']:,} images, {row['images']['test']:,} to test on"
        size = f"L = {row['depth']}, k = {row['growth']}, {row['epochs']} epochs, {images}"
        if row["reestimated"]:
            size += f", re-estimated from {row['reestimated']:,}"
        sizes.setdefault(size, {})[TITLES[row["dataset"]]] = None
    return [f"{' and '.join(names)}: {size}" for size, names in sizes.items()]


def _cases(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Mapping[str, Any]]]:
    """Return the rows of each kind of network and moment, by variant."""
    cases: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        cases.setdefault(tuple(row[name] for name in (*KIND, "moment")), {})[row["arm"]] = row
    return list(cases.values())


def _found(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say what was found, if anything was measured: for one kind of network in numbers, for all of them in counts."""
    if not rows:
        return
    yield from _sentences(rows)
    yield (
        "Re-estimating the variance gives a lower error than the network as trained "
        f"{_gains(rows, 'variance only', 'as trained')}."
    )
    yield (
        "Re-estimating mean and variance with dropout off gives a lower error than with dropout on, a control that the "
        f"paper lacks, {_gains(rows, 'mean and variance', 'dropout on')}."
    )


def _sentences(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say what each way to re-estimate is worth, for the kind of network of which there are most."""
    most = max(rows, key=lambda row: row["seeds"])
    for by in _cases([row for row in rows if all(row[name] == most[name] for name in KIND)]):
        trained, variance, both = (by[variant] for variant in ("as trained", "variance only", "mean and variance"))
        yield (
            f"{TITLES[trained['dataset']]}, keep {trained['keep']:g}, {MOMENTS[trained['moment']]}: "
            f"{percent(trained['error'])} % as trained, {percent(variance['error'])} % with the variance re-estimated, "
            f"{percent(both['error'])} % with mean and variance re-estimated."
        )


def _overview(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Lay out the errors as the paper's table does: a line for each network and moment, variants side by side."""
    lines = []
    for by in _cases(rows):
        first = by[VARIANTS[0]]
        shown = (f"{TITLES[first['dataset']]}, {first['keep']:g}", MOMENTS[first["moment"]], f"{first['seeds']}")
        printed = " → ".join(dict.fromkeys(_printed(by[variant]) for variant in ("as trained", "variance only")))
        lines.append((*shown, *(percent(by[variant]["error"]) for variant in VARIANTS), printed))
    caption = "Test error in %; the last column is the paper's, for its larger networks: as trained → variance only"
    return Grid(caption, ("data, keep", "moment", "networks", *VARIANTS, "paper's"), tuple(lines))


def _judged(pair: Mapping[str, Any]) -> Answer:
    """Answer whether an error is lower: in each network by its images, and over networks if there are several."""
    return clearly_lower(Estimate(**pair["error"]), pair["p"])


def _gains(rows: Sequence[Mapping[str, Any]], variant: str, other: str) -> str:
    """Count the cases in which one variant has a lower error than another, and those in which that cannot be chance."""
    own = [row for row in rows if row["arm"] == variant]
    pairs = [row["against"][other] for row in own]
    fewer, higher, _ = count(map(_judged, pairs))
    better = sum(pair["error"]["mean"] < 0 for pair in pairs)
    ended = [row for row in own if row["moment"] == "end"]
    networks = (
        f"{sum(row['against'][other]['lower'] for row in ended)} of {sum(row['seeds'] for row in ended)} networks"
    )
    chance = f"significantly in {fewer} (and significantly higher in {higher})"
    return f"in {better} of {len(pairs)} cases, {chance}; at the end in {networks}"


def _heads() -> tuple[str, ...]:
    return (
        "data",
        "L, k, keep",
        "moment",
        "BatchNorm",
        "networks",
        "error",
        "minus as trained",
        "p",
        "paper's",
        "original",
    )


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    against = row["against"].get("as trained")
    return (
        TITLES[row["dataset"]],
        f"{row['depth']}, {row['growth']}, {row['keep']:g}",
        MOMENTS[row["moment"]],
        row["arm"],
        f"{row['seeds']}",
        percent(row["error"]),
        percent(against["error"]) if against else "–",
        f"{against['p']:.1g}" if against else "–",
        _printed(row),
        _original(row),
    )


def _printed(row: Mapping[str, Any]) -> str:
    """Return what the paper prints for this data set, keep rate, moment and variant, of its larger network."""
    own = [r for r in TABLE2 if (r.dataset, r.keep) == (row["dataset"], row["keep"])]
    updated = {"as trained": "", "variance only": "_updated"}.get(row["arm"])
    return f"{getattr(own[0], row['moment'] + updated):.2f}" if own and updated is not None else "–"


def _original(row: Mapping[str, Any]) -> str:
    """Return what the DenseNet paper reports for the paper's network, which is that of a whole training."""
    own = [r.original for r in TABLE2 if (r.dataset, r.keep) == (row["dataset"], row["keep"])]
    trained = (row["moment"], row["arm"]) == ("end", "as trained")
    return f"{own[0]:.2f}" if trained and own and own[0] is not None else "–"


def _sensitivity(rows: Sequence[Mapping[str, Any]], key: str, caption: str) -> Grid:
    cells = tuple((f"{row[key]}", percent(row["error"]), percent(row["error minus all"])) for row in rows)
    return Grid(caption, (key, "error, %", "minus all batches of 64"), cells)
