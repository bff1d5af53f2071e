"""Initialisations compared by training: MNIST and the digits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unitvar_reproduction.experiments.comparison import NAMES
from unitvar_reproduction.experiments.section import Grid, Payload, Section, percent, verdict
from unitvar_reproduction.statistics import Estimate

__all__ = ["digits", "mnist"]

CURVES = "Curves: training solid, with dropout on; validation dashed, with dropout off."


def mnist(p: Payload) -> Section:
    """Figure 2."""
    raw = [row for row in p["rows"] if row["inputs"] == "raw"]
    found = [*_sentences(raw), *_corrected(raw), *_first_layer(raw)]
    done, base = p["done"], p["config"]["base"]
    scale = "Full size" if p["config"]["scale"] == "paper" else "Small size"
    grids = [_matrix("raw pixels, as released", raw), _comparison("Raw pixels, as released", raw)]
    standardised = [row for row in p["rows"] if row["inputs"] != "raw"]
    if standardised:
        found += [f"On standardised pixels: {_sentences(standardised)[0]}", *_corrected(standardised)]
        grids += [_matrix("standardised pixels", standardised), _comparison("Standardised pixels", standardised)]
    return Section(
        "Figure 2: MNIST",
        "“Faster convergence at a dropout keep rate of 0.5 for activations like the ReLU and great gains when the "
        "dropout keep rate decreases further.”",
        tuple(found),
        f"{scale}: {base['hidden'] + 1} layers of {base['width']}, batch {base['batch']}, Adam, {base['held_out']:,} "
        f"images held out; {done['trials']} of {done['planned']} trials done. Errors are at the best validation "
        f"loss. {CURVES}",
        tuple(grids),
        (f"{p['experiment']}.png",),
        verdict=_faster(raw, shrunk=p["config"]["scale"] != "paper"),
    )


def digits(p: Payload) -> Section:
    """Digits."""
    found = _sentences(p["rows"])
    claims = {(row["init"], row["batchnorm"]): row for row in p["claims"]}

    def difference(init: str, batchnorm: bool) -> str:
        return percent(claims[init, batchnorm]["error minus paper"])

    base = p["config"]["base"]
    found += [
        f"First layer's factor 0.5 instead of 1: the error changes by {difference('paper-half', False)} % points. "
        f"“Miniscule” {_judge(claims['paper-half', False])}.",
        f"He's against the paper's weights: {difference('he', False)} % points without BatchNorm, "
        f"{difference('he', True)} with it. {_removed(claims['he', False], claims['he', True])}",
    ]
    variants = tuple(
        (
            "with BatchNorm" if row["batchnorm"] else "plain",
            NAMES[row["init"]],
            percent(row["error"]),
            "–" if row["init"] == "paper" else percent(row["error minus paper"]),
        )
        for row in p["claims"]
    )
    return Section(
        "Digits: the comparison at a size that runs anywhere",
        "The claims of Figure 2; the first layer's factor, 1.0 or 0.5, makes a “miniscule” difference; BatchNorm "
        "removes the need for an initialisation that corrects for dropout.",
        tuple(found),
        f"8x8 digits: 800 to train on, {base['held_out']} to tune on, 797 to test on; {base['hidden'] + 1} layers of "
        f"{base['width']}, {base['epochs']} epochs, {p['config']['seeds']} seeds, 95 % intervals. {CURVES}",
        (
            _matrix("each initialisation at its tuned rate", p["rows"]),
            _comparison("Each initialisation at its tuned rate", p["rows"]),
            Grid(
                f"ReLU, keep {base['keep']:g}, rate {base['rate']:g}, paired over seeds",
                ("network", "init", "test error, %", "minus the paper's"),
                variants,
            ),
        ),
        ("digits.png",),
        verdict=_faster(p["rows"], shrunk=True),
    )


def _judge(row: Mapping[str, Any]) -> str:
    seen = Estimate(**row["error minus paper"]).excludes_zero
    return "it is not, here" if seen else "it may be: the interval holds zero"


def _removed(plain: Mapping[str, Any], normed: Mapping[str, Any]) -> str:
    """Say what of a difference between initialisations is left under BatchNorm."""
    before, after = (Estimate(**row["error minus paper"]) for row in (plain, normed))
    if not before.excludes_zero:
        return "Without a norm the difference cannot be told from none, so this says nothing of the norm."
    share = abs(after.mean / before.mean)
    kept = "can" if after.excludes_zero else "cannot"
    return f"With a norm {100 * share:.0f} % of the difference is left, which {kept} be told from none."


def _panels(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Give the rows of each activation and keep rate."""
    for activation, keep in itertools.product(
        dict.fromkeys(row["activation"] for row in rows), sorted({row["keep"] for row in rows}, reverse=True)
    ):
        own = [row for row in rows if row["activation"] == activation and row["keep"] == keep]
        if own:
            yield own


def _pairs(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Give the paper's weights and Xavier's or He's in each panel with dropout."""
    for own in _panels([row for row in rows if row["keep"] < 1]):
        by = {row["init"]: row for row in own}
        yield from ((by["paper"], by[other]) for other in ("xavier", "he") if {"paper", other} <= by.keys())


def _faster(rows: Sequence[Mapping[str, Any]], *, shrunk: bool) -> str:
    """Judge whether the paper's weights beat Xavier's and He's in every panel with dropout, by error and by speed."""
    parts = [_lower(paper, other) and _when(paper) <= _when(other) for paper, other in _pairs(rows)]
    return verdict(parts, shrunk=shrunk) if parts else ""


def _lower(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(row["error"]["mean"] < other["error"]["mean"])


def _when(row: Mapping[str, Any]) -> float:
    epochs = row["epochs_to_target"]
    return float(epochs["mean"]) if epochs else float("inf")


def _sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Count where the paper's weights win with dropout, and name the largest gain and the largest loss in error."""
    pairs = list(_pairs(rows))
    if not pairs:
        return ["Not enough trials yet to compare."]
    lower = sum(_lower(paper, other) for paper, other in pairs)
    sooner = sum(_when(paper) < _when(other) for paper, other in pairs)
    reached = sum(_when(paper) < float("inf") or _when(other) < float("inf") for paper, other in pairs)
    target = f"a validation loss of {rows[0]['target']:g}"
    speed = f"reach {target} sooner in {sooner} of the {reached} where either reaches it"
    found = [
        f"With dropout, the paper's weights end at a lower test error than Xavier's or He's in {lower} of {len(pairs)} "
        f"comparisons, and {speed if reached else f'none of them reaches {target}'}."
    ]
    ranked = sorted(pairs, key=lambda pair: pair[1]["error"]["mean"] - pair[0]["error"]["mean"])
    found.append(f"Their largest gain: {_told(*ranked[-1])}.")
    if not _lower(*ranked[0]):
        found.append(f"Their largest loss: {_told(*ranked[0])}.")
    return found


def _corrected(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Count where the corrected rules beat the paper's weights, with dropout and without."""
    for init in ("forward", "mean"):
        pairs = [
            (by[init], by["paper"])
            for by in ({row["init"]: row for row in own} for own in _panels(rows))
            if {init, "paper"} <= by.keys()
        ]
        counts = []
        for label, wanted in (("with dropout", True), ("without", False)):
            own = [_lower(ours, paper) for ours, paper in pairs if (ours["keep"] < 1) == wanted]
            counts += [f"{sum(own)} of {len(own)} panels {label}"] if own else []
        if counts:
            yield f"The corrected rule “{NAMES[init]}” has a lower error than the paper's in {' and '.join(counts)}."


def _first_layer(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say what halving the first layer's factor does."""
    both = [{row["init"]: row for row in own} for own in _panels(rows)]
    said = [
        f"{percent(by['paper']['error'])} and {percent(by['paper-half']['error'])} % at keep rate "
        f"{by['paper']['keep']:g}"
        for by in both
        if {"paper", "paper-half"} <= by.keys()
    ]
    if said:
        yield f"The first layer's factor 1 and 0.5, “miniscule”: {', '.join(said)}."


def _told(paper: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    head = f"{paper['activation']} at keep rate {paper['keep']:g}"
    return f"{head}, {percent(paper['error'])} % against {NAMES[other['init']]}'s {percent(other['error'])} %"


def _matrix(caption: str, rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Lay out errors and epochs, a row for each panel and a column for each initialisation."""
    inits = [init for init in NAMES if any(row["init"] == init for row in rows)]
    cells = []
    for own in _panels(rows):
        by = {row["init"]: row for row in own}
        head = own[0]["activation"], f"{own[0]['keep']:g}"
        cells.append((*head, *(_cell(by[init]) if init in by else "–" for init in inits)))
    target = rows[0]["target"] if rows else 0.0
    heads = ("activation", "keep", *(NAMES[init] for init in inits))
    measured = f"Test error, % (epochs to a validation loss of {target:g}, – if never)"
    return Grid(f"{measured}: {caption}", heads, tuple(cells))


def _cell(row: Mapping[str, Any]) -> str:
    epochs = row["epochs_to_target"]
    return f"{percent(row['error'])} ({epochs['mean']:.1f})" if epochs else f"{percent(row['error'])} (–)"


def _comparison(caption: str, rows: Sequence[Mapping[str, Any]]) -> Grid:
    target = rows[0]["target"] if rows else 0.0
    cells = tuple(
        (
            row["activation"],
            f"{row['keep']:g}",
            NAMES[row["init"]],
            f"{row['rate']:g}" + ("" if row["rates"] > 1 else " (only one)"),
            f"{row['seeds']}",
            percent(row["error"]),
            f"{row['epochs_to_target']['mean']:.1f}" if row["epochs_to_target"] else "–",
        )
        for row in rows
    )
    heads = ("activation", "keep", "init", "rate", "seeds", "test error, %", f"epochs to {target:g}")
    return Grid(caption, heads, cells)
