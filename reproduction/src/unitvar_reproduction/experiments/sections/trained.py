"""Initialisations compared by training: MNIST and the digits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unitvar_reproduction.experiments.comparison import NAMES
from unitvar_reproduction.experiments.section import Grid, Payload, Picture, Section, percent, points
from unitvar_reproduction.judgement import Answer, count, in_words, lower, paired, verdict
from unitvar_reproduction.statistics import Estimate

__all__ = ["digits", "mnist"]

PAIRED = "Differences are paired by seed; “lower” and “sooner” mean that their 95 % interval excludes zero."
LOOK = (
    "See which colour falls first. Each panel is one activation and keep rate, with each initialisation at its tuned "
    "rate. Solid lines are the training loss with dropout on, dashed ones the validation loss with dropout "
    "off; bands show the range of the seeds."
)


def mnist(p: Payload) -> Section:
    """Figure 2."""
    raw = [row for row in p["rows"] if row["inputs"] == "raw"]
    found = [*_sentences(raw), *_corrected(raw), *_first_layer(raw)]
    done, base = p["done"], p["config"]["base"]
    scale = "Full size" if p["config"]["scale"] == "paper" else "Small size"
    grids = [_matrix("raw pixels, as released", raw), _comparison("Raw pixels, as released", raw)]
    standardised = [row for row in p["rows"] if row["inputs"] != "raw"]
    if standardised:
        first, *_ = _sentences(standardised)
        found += [f"On standardised pixels: {first[0].lower()}{first[1:]}", *_corrected(standardised)]
        grids += [_matrix("standardised pixels", standardised), _comparison("Standardised pixels", standardised)]
    return Section(
        "Figure 2: MNIST",
        "“Faster convergence at a dropout keep rate of 0.5 for activations like the ReLU and great gains when the "
        "dropout keep rate decreases further.”",
        tuple(found),
        f"{scale}: {base['hidden'] + 1} layers of {base['width']}, batch {base['batch']}, Adam, {base['held_out']:,} "
        f"images held out; {done['trials']} of {done['planned']} trials done. Errors are at the best validation "
        f"loss. {PAIRED}",
        tuple(grids),
        (
            Picture(
                f"{p['experiment']}.png",
                LOOK,
                "Log loss over epochs on MNIST, a panel for each activation and keep rate.",
            ),
        ),
        verdict=_faster(raw, shrunk=p["config"]["scale"] != "paper"),
    )


def digits(p: Payload) -> Section:
    """Digits."""
    found = _sentences(p["rows"])
    claims = {(row["init"], row["batchnorm"]): row for row in p["claims"]}

    def difference(init: str, batchnorm: bool) -> str:
        return points(claims[init, batchnorm]["error minus paper"])

    base = p["config"]["base"]
    found += [
        "A factor of 0.5 instead of 1 in the first layer changes the error by "
        f"{difference('paper-half', False)} points: "
        f"{_judge(claims['paper-half', False])}.",
        "The error with He's weights minus that with the paper's is "
        f"{difference('he', False)} points without BatchNorm and {difference('he', True)} with it. "
        f"{_removed(claims['he', False], claims['he', True])}",
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
        "Digits: the same comparison, small enough for any machine",
        "The claims of Figure 2; the first layer's factor, 1.0 or 0.5, makes a “miniscule” difference; BatchNorm "
        "removes the need for an initialisation that corrects for dropout.",
        tuple(found),
        f"8x8 digits: 800 to train on, {base['held_out']} to tune on, 797 to test on; {base['hidden'] + 1} layers of "
        f"{base['width']}, {base['epochs']} epochs, {p['config']['seeds']} seeds. {PAIRED}",
        (
            _matrix("each initialisation at its tuned rate", p["rows"]),
            _comparison("Each initialisation at its tuned rate", p["rows"]),
            Grid(
                f"ReLU, keep {base['keep']:g}, rate {base['rate']:g}, paired over seeds",
                ("network", "init", "test error, %", "minus the paper's"),
                variants,
            ),
        ),
        (Picture("digits.png", LOOK, "Log loss over epochs on the 8x8 digits, a panel for each keep rate."),),
        verdict=_faster(p["rows"], shrunk=True),
    )


def _judge(row: Mapping[str, Any]) -> str:
    seen = lower(Estimate(**row["error minus paper"]))
    return "not significant, but the interval is wide" if seen is None else "significant, so not “miniscule” here"


def _removed(plain: Mapping[str, Any], normed: Mapping[str, Any]) -> str:
    """Say what of a difference between initialisations is left under BatchNorm."""
    before, after = (Estimate(**row["error minus paper"]) for row in (plain, normed))
    if lower(before) is None:
        return "The difference without BatchNorm is not significant, so this says nothing about BatchNorm."
    share = f"BatchNorm leaves {100 * abs(after.mean / before.mean):.0f} % of the difference"
    return f"{share}, {'which is not significant' if lower(after) is None else 'which is still significant'}."


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
    parts: list[Answer] = []
    for paper, other in _pairs(rows):
        parts.append(lower(_error(paper, other)))
        if _reached(paper, other):
            parts.append(lower(_speed(paper, other)))
    return verdict(parts, shrunk=shrunk)


def _error(row: Mapping[str, Any], other: Mapping[str, Any]) -> Estimate | None:
    return paired(row["by_seed"], other["by_seed"])


def _reached(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether any seed of either reaches the target."""
    return any(epochs is not None for r in (row, other) for epochs in r["epochs_by_seed"].values())


def _speed(row: Mapping[str, Any], other: Mapping[str, Any]) -> Estimate | None:
    """Estimate the difference of the epochs to the target; one never reached counts as the whole training."""
    return paired(row["epochs_by_seed"], other["epochs_by_seed"], cap=row["epochs"])


def _sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Count where the paper's weights win with dropout, and name the largest gain and the largest loss in error."""
    pairs = list(_pairs(rows))
    if not pairs:
        return ["Not enough trials yet to compare."]
    target = f"a validation loss of {rows[0]['target']:g}"
    reached = [_speed(*pair) for pair in pairs if _reached(*pair)]
    errors = _counted("higher", [_error(*pair) for pair in pairs])
    speed = (
        f"the paper's reach {target} sooner {_counted('later', reached)}" if reached else f"no network reaches {target}"
    )
    found = [
        f"With dropout, the test error is lower with the paper's weights than with Xavier's or He's {errors}; {speed}."
    ]
    ranked = sorted(pairs, key=lambda pair: pair[1]["error"]["mean"] - pair[0]["error"]["mean"])
    found.append(f"Largest gain of the paper's weights: {_gain_of(*ranked[-1])}.")
    if ranked[0][0]["error"]["mean"] >= ranked[0][1]["error"]["mean"]:
        found.append(f"Largest loss of the paper's weights: {_gain_of(*ranked[0])}.")
    return found


def _counted(worse: str, differences: Sequence[Estimate | None]) -> str:
    """Write in how many comparisons there is a gain beyond its interval, and what the others are."""
    gained, lost, _ = count(map(lower, differences))
    single = sum(d is None or d.half_width is None for d in differences)
    if single == len(differences):
        return f"in 0 of {single} comparisons, since one seed gives no interval"
    rest = len(differences) - gained - lost - single
    others = ((worse, lost), ("not significant", rest), ("one seed only", single))
    aside = ", ".join(f"{word} in {number}" for word, number in others if number)
    return f"in {gained} of {len(differences)} comparisons" + (f" ({aside})" if aside else "")


def _corrected(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Count where the corrected rules and torch's default beat the paper's weights, with dropout and without."""
    for init in ("forward", "mean", "default"):
        panels = [{row["init"]: row for row in own} for own in _panels(rows)]
        both = [(by[init], by["paper"]) for by in panels if {init, "paper"} <= by.keys()]
        for label, wanted in (("With dropout", True), ("Without dropout", False)):
            own = [_error(ours, paper) for ours, paper in both if (ours["keep"] < 1) == wanted]
            if own:
                yield f"{label}, the error of “{NAMES[init]}” is lower than the paper's {_counted('higher', own)}."


def _first_layer(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say what halving the first layer's factor does to the error, seed by seed."""
    both = [{row["init"]: row for row in own} for own in _panels(rows)]
    pairs = [(by["paper-half"], by["paper"]) for by in both if {"paper", "paper-half"} <= by.keys()]
    changes = [
        f"{points(difference)} points at keep rate {paper['keep']:g} ({in_words(difference)})"
        for difference, paper in ((_error(half, paper), paper) for half, paper in pairs)
    ]
    if changes:
        yield f"Halving the factor of the first layer (“miniscule”) changes the error by {', '.join(changes)}."


def _gain_of(paper: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    head = f"{paper['activation']} at keep rate {paper['keep']:g}"
    difference = _error(paper, other)
    change = "" if difference is None or difference.half_width is None else f"{points(difference)} points, "
    errors = f"{percent(paper['error'])} % against {NAMES[other['init']]}'s {percent(other['error'])} %"
    return f"{head}, {errors} ({change}{in_words(difference)})"


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
