"""The VGG on CIFAR-10."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from unitvar_reproduction.experiments.section import Grid, Payload, Picture, Section, precision
from unitvar_reproduction.experiments.vgg.experiment import DOUBT, written_error
from unitvar_reproduction.experiments.vgg.trial import NAMES, Trial
from unitvar_reproduction.judgement import Answer, in_words, lower, more_often, paired, verdict
from unitvar_reproduction.statistics import Estimate, estimate
from unitvar_reproduction.values import VGG_ERRORS

__all__ = ["vgg"]

TITLES = {"nesterov": "Nesterov momentum", "adam": "Adam"}
Pair = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""An optimiser and its rows of the paper's weights and of He's."""

UNTRAINABLE = 0.01  # the rate of Nesterov momentum at which the paper says that He's does not train


def vgg(p: Payload) -> Section:
    """Figures 3 and 4."""
    by = {(row["optimiser"], row["init"]): row for row in p["rows"]}
    pairs = [
        (name, by[name, "paper"], by[name, "he"]) for name in TITLES if {(name, "paper"), (name, "he")} <= by.keys()
    ]
    found = [
        f"{TITLES[name]}: test error {written_error(ours, ' %')} with the paper's weights, {written_error(he, ' %')} "
        f"with He's, each at its tuned rate{_difference(ours, he)}. The network learns at {_learnt(ours)} rates "
        f"with the paper's weights and at {_learnt(he)} with He's."
        for name, ours, he in pairs
    ]
    if ("nesterov", "he") in by and ("nesterov", "paper") in by:
        found.append(
            f"At Nesterov {UNTRAINABLE:g}, the paper's example: {_at(by['nesterov', 'paper'])} with the paper's "
            f"weights, {_at(by['nesterov', 'he'])} with He's (validation error of the first seed; chance is 90 %)."
        )
    if pairs:
        found.append(
            f"The first layer stalls for at most {_epochs(_longest(ours for _, ours, _ in pairs))} with the paper's "
            f"weights and {_epochs(_longest(he for *_, he in pairs))} with He's, at any rate. (It stalls while its "
            "gradient is below a tenth of its later value.)"
        )
    added = [row for row in p["rows"] if row["init"] in ("plan", "measured")]
    if added:
        errors = ", ".join(
            f"{NAMES[row['init']]} with {TITLES[row['optimiser']]} {written_error(row, ' %')}" for row in added
        )
        where = "each at its tuned rate" if any(len(row["rates"]) > 1 for row in added) else "at the paper's tuned rate"
        found.append(f"Test error with this library's initialisations, {where}: {errors}.")
    gaps = [
        100 * (noisy - error)
        for row in p["rows"]
        for rate, error, noisy in zip(row["rates"], row["errors"], row["dropout_on"], strict=True)
        if rate in row["learnt"] and noisy is not None
    ]
    if gaps:
        found.append(
            f"Of {len(gaps)} networks that learn and were tested both ways, {sum(gap < 0 for gap in gaps)} have a "
            "lower error with dropout left on, as in training, than with dropout off; "
            f"errors change by {min(gaps):+.1f} to {max(gaps):+.1f} points."
        )
    found += _integrated(p["rows"])
    found += _faded(p["rows"])
    base, images, done = p["config"]["base"], p["config"]["images"], p["done"]
    cells = tuple(
        (
            TITLES[row["optimiser"]],
            NAMES[row["init"]],
            _learnt(row),
            f"{row['rate']:g}" + ("" if len(row["rates"]) > 1 else " (only one)"),
            f"{row['seeds']}",
            written_error(row),
            f"{VGG_ERRORS[row['optimiser'], row['init']]:g}" if (row["optimiser"], row["init"]) in VGG_ERRORS else "–",
        )
        for row in p["rows"]
    )
    rates = tuple(
        (TITLES[row["optimiser"]], NAMES[row["init"]], f"{rate:g}", _ended(error), _measured(noisy))
        for row in p["rows"]
        for rate, error, noisy in sorted(zip(*(row[k] for k in ("rates", "errors", "dropout_on")), strict=True))[::-1]
    )
    heads = ("optimiser", "init", "rates that learn", "tuned rate", "seeds", "test error, %", "paper's, %")
    name = p["experiment"]
    return Section(
        "Figures 3 and 4: VGG on CIFAR-10" + (", half as wide" if p["config"]["scale"] == "medium" else ""),
        "Test error 7.41 % against He's 24.65 % with Nesterov momentum, 9.51 % against 10.54 % with Adam; with He's "
        "weights the network does not train at more of the rates, such as 0.01 with Nesterov, and the first layer may "
        "stall for dozens of epochs.",
        tuple(found) or ("Not enough trials yet to compare.",),
        f"{'Full size' if _full(base) else 'Shrunk'}: first stack {base['width']} wide (paper: "
        f"64), {base['epochs']} epochs (150), batches of {base['batch']} (128), {images['training']:,} images, "
        f"augmentation {'on' if base['augment'] else 'off'}{precision(base['precision'])}; {done['trials']} of "
        f"{done['planned']} trials done. A network learns at a rate if guessing would reach its validation error less "
        f"than once in {1 / DOUBT:,.0f} times. A test error is lower if the 95 % interval of the difference, paired by "
        "seed, excludes zero; one seed gives no interval.",
        (
            Grid("Each initialisation at its tuned rate", heads, cells),
            Grid(
                "Validation error at the end of training, by learning rate, with dropout off and on",
                ("optimiser", "init", "rate", "error, %", "dropout on, %"),
                rates,
            ),
        ),
        (
            Picture(
                f"{name}.png",
                "Look at which colour falls lower: training log loss dark, test log loss faint, each initialisation at "
                "its tuned rate, first seed.",
                "Log loss over epochs of VGGs under each initialisation, a panel for each optimiser.",
            ),
            Picture(
                f"{name}_gradients.png",
                "If the first layer stalled with He's weights, its line would stay flat and low for many epochs. "
                "Thick: mean of an epoch; thin: single measurements.",
                "Root mean square of the first layer's gradient over epochs, a panel for each optimiser.",
            ),
            Picture(
                f"{name}_start.png",
                "Compare each line with the grey one, E z² = 1. Left, dropout on; right, dropout off: weights that are "
                "scaled for dropout let the signal fade when dropout is off.",
                "E z² by layer before training, with dropout on and off, for each initialisation.",
            ),
        ),
        verdict=verdict(_parts(pairs, p["config"]["scale"]), shrunk=not _full(base)),
    )


def _faded(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say what the last weight puts out before training, with dropout on and off."""
    last = {row["init"]: {mode: row["start"][mode][-1] for mode in ("on", "off")} for row in rows if row["start"]}
    values = ", ".join(
        f"{NAMES[init]} {' and '.join('not finite' if z is None else f'{z:.2g}' for z in both.values())}"
        for init, both in last.items()
    )
    if values:
        yield f"Before training, E z² of the last layer with dropout on and off: {values}."


def _integrated(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say what integrating dropout out changes, over all networks that were tested both ways."""
    differences = [error - row["by_seed"][seed] for row in rows for seed, error in row.get("integrated", {}).items()]
    if differences:
        yield (
            f"With dropout integrated out instead of switched off, the test error of {len(differences)} networks "
            f"changes by {min(100 * d for d in differences):+.2f} to {max(100 * d for d in differences):+.2f} points "
            f"(in the mean {estimate(differences).percent()})."
        )


def _parts(pairs: Sequence[Pair], scale: str) -> Iterator[Answer]:
    """Judge each part of the claim: two errors, the rates that learn, the paper's example of one, the first layer.

    Nothing before both initialisations have been tried at the same rates with both optimisers. Medium scale has one
    optimiser and a rate for each initialisation, which the map has chosen: it judges the error alone.
    """
    alike = len(pairs) == len(TITLES) and all(set(ours["rates"]) == set(he["rates"]) for _, ours, he in pairs)
    if not alike and scale != "medium":
        return
    for _, ours, he in pairs:
        if not (ours["error"] and he["error"]):  # a kind of network that diverged has no error
            yield bool(ours["error"])
        else:
            yield lower(_over_seeds(ours, he))
    if not alike:
        return
    learns = [(rate in ours["learnt"], rate in he["learnt"]) for _, ours, he in pairs for rate in ours["rates"]]
    yield more_often(sum(a and not b for a, b in learns), sum(b and not a for a, b in learns))[0]
    for name, ours, he in pairs:
        if name == "nesterov" and UNTRAINABLE in ours["rates"]:
            yield UNTRAINABLE in ours["learnt"] and UNTRAINABLE not in he["learnt"]
    waits = [(a, b) for _, ours, he in pairs for a, b in zip(ours["waited"], _in_order(he, ours), strict=True)]
    yield more_often(sum(a < b for a, b in waits), sum(b < a for a, b in waits))[0]


def _in_order(row: Mapping[str, Any], like: Mapping[str, Any]) -> list[int]:
    """Return for how many epochs the first layer stalls, in the order of another row's rates."""
    waited = dict(zip(row["rates"], row["waited"], strict=True))
    return [waited[rate] for rate in like["rates"]]


def _over_seeds(row: Mapping[str, Any], other: Mapping[str, Any]) -> Estimate | None:
    """Estimate the difference of two errors over the seeds that both have.

    A seed gives both the same images to train on in the same order. One alone cannot tell: two networks that differ in
    nothing but the seed may differ by more than all test images explain.
    """
    over = paired(row["by_seed"], other["by_seed"])
    return over if over and over.half_width is not None else None


def _difference(row: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    over = _over_seeds(row, other)
    return f" (a difference of {over.percent()} points, paired by seed: {in_words(over)})" if over else " (one seed)"


def _full(base: Mapping[str, Any]) -> bool:
    """Return whether trials have the paper's size, whatever the plan was called."""
    paper = Trial("adam", 1e-3, "paper", 0)
    return all(base[name] == getattr(paper, name) for name in ("width", "epochs", "batch"))


def _learnt(row: Mapping[str, Any]) -> str:
    return f"{len(row['learnt'])} of {len(row['rates'])}"


def _longest(rows: Iterable[Mapping[str, Any]]) -> int:
    """Return the largest number of epochs that the first layer stalls at any rate."""
    return max(int(epochs) for row in rows for epochs in row["waited"])


def _epochs(number: int) -> str:
    return f"{number} epoch{'' if number == 1 else 's'}"


def _measured(error: float | None) -> str:
    return "–" if error is None else f"{100 * error:.1f}"


def _ended(error: float | None, unit: str = "") -> str:
    return "diverged" if error is None else _measured(error) + unit


def _at(row: Mapping[str, Any]) -> str:
    errors = dict(zip(row["rates"], row["errors"], strict=True))
    return _ended(errors[UNTRAINABLE], " %") if UNTRAINABLE in errors else "not run"
