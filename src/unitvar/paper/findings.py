"""What each experiment found, in words and numbers, beside what the paper claims.

A function for each experiment turns its saved JSON into a section of the report. Every number is read from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unitvar.paper.comparison import NAMES
from unitvar.paper.statistics import Estimate

__all__ = ["SECTIONS", "Grid", "Section"]

Payload = Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """A table: its heads, its rows of cells, and what it shows."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """One result: the paper's claim beside ours."""

    title: str
    claim: str
    found: tuple[str, ...]
    """Sentences; the first is the headline."""

    ran: str
    """Seeds and sizes."""

    tables: tuple[Grid, ...] = ()
    pictures: tuple[str, ...] = field(default=())


def table1(p: Payload) -> Section:
    """Table 1."""
    wrong = [row for row in p["rows"] if not (row["second_agrees"] and row["slope_agrees"])]
    tanh = next(row for row in p["rows"] if row["name"] == "tanh")
    cells = (
        (
            row["name"],
            f"{row['paper_second']:g}",
            f"{row['second']:.4f}",
            f"{row['paper_slope']:g}" + ("" if row["slope_agrees"] else " ✗"),
            f"{row['slope']:.4f}",
            row["erratum"] or "agrees",
        )
        for row in p["rows"]
    )
    heads = ("activation", "E f² printed", "exact", "E f'² printed", "exact", "")
    return Section(
        "Table 1: adjustment factors",
        "E f² and E f'² of five activations under a standard normal input.",
        (
            f"E f² is right to every digit, but {len(wrong)} of {len(p['rows'])} values of E f'² are not: "
            f"tanh's is {tanh['slope']:.4f}, printed {tanh['paper_slope']:g}.",
        ),
        "Exact, by closed form or quadrature to 1e-8: no seeds.",
        (Grid("Printed and exact", heads, tuple(cells)),),
    )


def forward(p: Payload) -> Section:
    """Figure 1."""
    rows = {(row["keep"], row["init"]): row["second"] for row in p["relu"]}

    def at(keep: float, init: str, layer: int = 20) -> float:
        return _mean([run[layer] for run in rows[keep, init]])

    names = {"forward": "ours", "xavier": "Xavier", "he": "He"}
    cells = tuple(
        (f"{keep:g}", names[init], *(f"{at(keep, init, layer):.3g}" for layer in (5, 10, 15, 20)))
        for keep, init in rows
    )
    unstable = max(p["others"], key=lambda row: row["chi"])
    others = []
    for name in dict.fromkeys(row["activation"] for row in p["others"]):
        own = [row for row in p["others"] if row["activation"] == name]
        ends = (sorted(run[-1] for run in row["second"]) for row in own)
        others.append((name, f"{own[0]['chi']:.3f}", *(f"{e[0]:.3g} to {e[-1]:.3g}" for e in ends)))
    keeps = dict.fromkeys(f"keep {row['keep']:g}" for row in p["others"])
    return Section(
        "Figure 1: the signal through twenty layers",
        "Rows on a sphere with the forward correction keep the variance with and without dropout; with Xavier's it "
        "decays, with He's it explodes under dropout.",
        (
            f"Holds: after 20 ReLU layers at keep rate 0.6, E z² is {at(0.6, 'forward'):.2g} with the correction, "
            f"{at(0.6, 'he'):.2g} with He's weights and {at(0.6, 'xavier'):.2g} with Xavier's.",
            "It holds for activations with chi ≤ 1. Above one, as for the authors' own GELU, one is an unstable second "
            f"moment: with {unstable['activation']} (chi {unstable['chi']:.2f}) it is "
            f"{_mean([run[-1] for run in unstable['second']]):.3g} at layer 20.",
        ),
        f"Full size: 1,000 inputs, 15 layers of 500, 6 of 250; {p['config']['seeds']} seeds.",
        (
            Grid("E z² in layers of ReLU", ("keep", "init", "layer 5", "layer 10", "layer 15", "layer 20"), cells),
            Grid("Ours: E z² at layer 20, lowest to highest network", ("activation", "chi", *keeps), tuple(others)),
        ),
        ("forward.png", "forward_others.png"),
    )


def backward(p: Payload) -> Section:
    """Appendix A."""
    rows = {(row["keep"], row["convention"], row["init"]): row["second"] for row in p["relu"]}

    def grown(keep: float, convention: str, init: str, layer: int = 0) -> float:
        return _mean([run[layer] / run[-1] for run in rows[keep, convention, init]])

    names = {"paper-backward": "paper", "backward": "exact", "xavier": "Xavier", "he": "He"}
    cells = tuple(
        (f"{key[0]:g}", key[1], names[key[2]], *(f"{grown(*key, layer):.2g}" for layer in (15, 10, 5, 0)))
        for key in rows
    )
    return Section(
        "Appendix A: the error back through twenty layers",
        "With the backward correction p E f'², errors keep their distribution at keep rates 1 and 0.6.",
        (
            "Does not hold under autograd: at keep rate 0.6 the paper's weights multiply the error's variance by "
            f"{grown(0.6, 'autograd', 'paper-backward'):.1g} from layer 20 to layer 0; with E f'² / p the "
            f"factor is {grown(0.6, 'autograd', 'backward'):.2f}.",
            f"The paper's figure multiplies errors by the bare mask; so computed, we get its picture too (a factor of "
            f"{grown(0.6, 'bare mask', 'paper-backward'):.2f}, of which 0.5 is where 500 units become 250).",
        ),
        f"Full size, errors of standard deviation 0.01 fed in at layer 20; {p['config']['seeds']} seeds.",
        (
            Grid(
                "E δ² over its value at layer 20",
                ("keep", "errors by", "init", "layer 15", "layer 10", "layer 5", "layer 0"),
                cells,
            ),
        ),
        ("backward.png",),
    )


def stability(p: Payload) -> Section:
    """Stability."""
    ends = {name: _mean([run[-1] for run in runs]) for name, runs in p["second"].items()}
    cells = tuple((name, f"{p['chi'][name]:.3f}", f"{ends[name]:.3g}") for name in ends)
    gelu = ends.get("gelu", float("nan"))
    return Section(
        "Stability: what the paper does not say",
        "None: the paper assumes that a variance of one, once reached, stays.",
        (
            f"It stays only if chi = E[z f f'] / E f² ≤ 1. With GELU, chi {p['chi']['gelu']:.2f}, E z² is {gelu:.2g} "
            f"after {p['config']['depth']} layers; with ELU {ends['elu']:.2g}.",
        ),
        f"Width {p['config']['width']}, {p['config']['seeds']} seeds, no dropout.",
        (Grid(f"E z² at layer {p['config']['depth']}, mean over networks", ("activation", "chi", "E z²"), cells),),
        ("stability.png",),
    )


def mnist(p: Payload) -> Section:
    """Figure 2."""
    raw = [row for row in p["rows"] if row["inputs"] == "raw"]
    found = [_panel(own) for own in _panels(raw) if len(own) > 1]
    done, base = p["done"], p["config"]["base"]
    scale = "Full size" if p["config"]["scale"] == "paper" else "Small size"
    grids = [_comparison("Raw pixels, as released", raw)]
    standardised = [row for row in p["rows"] if row["inputs"] != "raw"]
    if standardised:
        grids.append(_comparison("Standardised pixels", standardised))
    return Section(
        "Figure 2: MNIST",
        "“Faster convergence at a dropout keep rate of 0.5 for activations like the ReLU and great gains when the "
        "dropout keep rate decreases further.”",
        tuple(found) or ("Not enough trials yet to compare.",),
        f"{scale}: {base['hidden'] + 1} layers of {base['width']}, batch {base['batch']}, Adam, {base['held_out']:,} "
        f"images held out; {done['trials']} of {done['planned']} trials done. Errors are at the best validation loss.",
        tuple(grids),
        (f"{p['experiment']}.png",),
    )


def digits(p: Payload) -> Section:
    """Digits."""
    found = [_panel(own) for own in _panels(p["rows"])]
    claims = {(row["init"], row["batchnorm"]): row for row in p["claims"]}

    def difference(init: str, batchnorm: bool) -> str:
        return _percent(claims[init, batchnorm]["error minus paper"])

    base = p["config"]["base"]
    found += [
        f"First layer's factor 0.5 instead of 1: the error changes by {difference('paper-half', False)} % points. "
        f"“Miniscule” {_judge(claims['paper-half', False])}.",
        f"He's against the paper's weights: {difference('he', False)} % points without BatchNorm, "
        f"{difference('he', True)} with it. {_removed(claims['he', False], claims['he', True])}",
    ]
    arms = tuple(
        (
            "with BatchNorm" if row["batchnorm"] else "plain",
            NAMES[row["init"]],
            _percent(row["error"]),
            "–" if row["init"] == "paper" else _percent(row["error minus paper"]),
        )
        for row in p["claims"]
    )
    return Section(
        "Digits: the comparison at a size that runs anywhere",
        "The claims of Figure 2; the first layer's factor, 1.0 or 0.5, makes a “miniscule” difference; BatchNorm "
        "removes the need for an initialisation that corrects for dropout.",
        tuple(found),
        f"8x8 digits: 800 to train on, {base['held_out']} to tune on, 797 to test on; {base['hidden'] + 1} layers of "
        f"{base['width']}, {base['epochs']} epochs, {p['config']['seeds']} seeds, 95 % intervals.",
        (
            _comparison("Each initialisation at its tuned rate", p["rows"]),
            Grid(
                f"ReLU, keep {base['keep']:g}, rate {base['rate']:g}, paired over seeds",
                ("network", "init", "test error, %", "minus the paper's"),
                arms,
            ),
        ),
        ("digits.png",),
    )


def factors(p: Payload) -> Section:
    """Table 1 on real data."""
    rows = [row for row in p["rows"] if row["inputs"] == "standardised"]
    relu = {row["init"]: row for row in rows if row["activation"] == "relu" and row["keep"] == 1}
    cells = tuple(
        (
            row["activation"],
            f"{row['keep']:g}",
            NAMES[row["init"]],
            *(f"{row['layers'][i][key]:.3f}" for key in ("f", "slope") for i in (0, 3, 6)),
        )
        for row in rows
    )
    heads = ("activation", "keep", "init", *(f"{name}, layer {i}" for name in ("E f²", "E f'²") for i in (1, 4, 7)))
    return Section(
        "The factors on real images",
        "“The expectations are similar to the values in Table 1 for standardized input data.”",
        (
            "Holds under the forward correction, not under the paper's own weights: without dropout, E f² in the "
            f"seventh ReLU layer is {relu['forward']['layers'][6]['f']:.2f} under ours and "
            f"{relu['paper']['layers'][6]['f']:.2g} under the paper's sum, where Table 1 says 0.5.",
        ),
        f"{p['config']['dataset']}, {p['config']['examples']} images, {p['config']['seeds']} draws of the weights.",
        (Grid("Hidden layers at initialisation, standardised inputs", heads, cells),),
        ("factors.png",),
    )


def reestimation(p: Payload) -> Section:
    """BatchNorm."""
    rows = [row for row in p["rows"] if row["network"] == "densenet"]
    by = {(row["moment"], row["arm"]): row for row in rows}
    trained, on, ours = (by["end", arm] for arm in ("as trained", "dropout on", "mean and variance"))
    half = by["halfway", "as trained"], by["halfway", "mean and variance"]
    cells = tuple((r["moment"], r["arm"].removeprefix("averaged: "), _percent(r["error"])) for r in rows)
    return Section(
        "BatchNorm re-estimated",
        "Re-estimating BatchNorm's variance with dropout off lowers the test error, half-way and at the end.",
        (
            f"A small DenseNet's test error falls from {_percent(half[0]['error'])} to {_percent(half[1]['error'])} % "
            f"half-way and from {_percent(trained['error'])} to {_percent(ours['error'])} % at the end, with mean and "
            "variance re-estimated.",
            f"The control that the paper lacks, re-estimation with dropout on, ends at {_percent(on['error'])} %.",
        ),
        f"8x8 digits, {p['config']['epochs']} epochs, drop {p['config']['dropout']:g}, {p['config']['seeds']} seeds.",
        (Grid("Small DenseNet, test error in %", ("moment", "BatchNorm", "error"), cells),),
        ("reestimation.png",),
    )


def cost(p: Payload) -> Section:
    """BatchNorm's cost."""
    highest = max(p["rows"], key=lambda row: row["median"])
    cells = tuple(
        (row["network"], row["mode"], f"{row['median']:.2f}", f"{row['quartile_1']:.2f} to {row['quartile_3']:.2f}")
        for row in p["rows"]
    )
    return Section(
        "What BatchNorm costs",
        "BatchNorm costs up to 30 % of the forward time.",
        (f"The most we measured is {100 * (highest['median'] - 1):.0f} % ({highest['network']}, {highest['mode']}).",),
        f"One thread, {p['config']['rounds']} interleaved rounds.",
        (Grid("Time with BatchNorm over without", ("network", "mode", "median", "quartiles"), cells),),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _percent(value: Mapping[str, float]) -> str:
    found = Estimate(**value)
    return f"{100 * found.mean:.2f}" if found.half_width == float("inf") else found.percent()


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


def _panel(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what a panel shows: each initialisation's error and how soon it got there."""
    parts = []
    for row in sorted((row for row in rows if row["init"] != "paper-half"), key=lambda row: row["error"]["mean"]):
        epochs = row["epochs_to_target"]
        soon = f"{epochs['mean']:.1f} epochs" if epochs else "never"
        parts.append(f"{NAMES[row['init']]} {_percent(row['error'])} % ({soon})")
    target = rows[0]["target"]
    head = f"{rows[0]['activation']}, keep {rows[0]['keep']:g}"
    return f"{head}: test error (and when the validation loss reached {target:g}): {', '.join(parts)}."


def _comparison(caption: str, rows: Sequence[Mapping[str, Any]]) -> Grid:
    target = rows[0]["target"] if rows else 0.0
    cells = tuple(
        (
            row["activation"],
            f"{row['keep']:g}",
            NAMES[row["init"]],
            f"{row['rate']:g}" + ("" if row["rates"] > 1 else " (only one)"),
            f"{row['seeds']}",
            _percent(row["error"]),
            f"{row['epochs_to_target']['mean']:.1f}" if row["epochs_to_target"] else "–",
        )
        for row in rows
    )
    heads = ("activation", "keep", "init", "rate", "seeds", "test error, %", f"epochs to {target:g}")
    return Grid(caption, heads, cells)


SECTIONS: dict[str, Callable[[Payload], Section]] = {
    "table1": table1,
    "forward": forward,
    "backward": backward,
    "mnist": mnist,
    "mnist_small": mnist,
    "digits": digits,
    "factors": factors,
    "reestimation": reestimation,
    "stability": stability,
    "cost": cost,
}
