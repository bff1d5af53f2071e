"""What is exact, or measured before any training: Table 1, signals and errors through random layers."""

from __future__ import annotations

from unitvar_reproduction.experiments.comparison import NAMES
from unitvar_reproduction.experiments.section import Grid, Payload, Section, mean, verdict

__all__ = ["backward", "factors", "forward", "stability", "table1"]


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
        verdict=verdict(row[f"{name}_agrees"] for row in p["rows"] for name in ("second", "slope")),
    )


def forward(p: Payload) -> Section:
    """Figure 1."""
    rows = {(row["keep"], row["init"]): row["second"] for row in p["relu"]}

    def at(keep: float, init: str, layer: int = 20) -> float:
        return mean([run[layer] for run in rows[keep, init]])

    names = {"forward": "ours", "xavier": "Xavier", "he": "He"}
    cells = tuple(
        (f"{keep:g}", names[init], *(f"{at(keep, init, layer):.3g}" for layer in (5, 10, 15, 20)))
        for keep, init in rows
    )
    kept = all(0.5 < at(keep, "forward") < 2 for keep, init in rows if init == "forward")
    found = [
        f"After 20 ReLU layers at keep rate 0.6, E z² is {at(0.6, 'forward'):.2g} with the correction, "
        f"{at(0.6, 'he'):.2g} with He's weights and {at(0.6, 'xavier'):.2g} with Xavier's."
    ]
    if p["others"]:
        unstable = max(p["others"], key=lambda row: row["chi"])
        found.append(
            "One stays only with activations whose chi ≤ 1. Above, as for the authors' own GELU, one is an unstable "
            f"second moment: with {unstable['activation']} (chi {unstable['chi']:.2f}) it is "
            f"{mean([run[-1] for run in unstable['second']]):.3g} at layer 20."
        )
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
        tuple(found),
        f"Full size: 1,000 inputs, 15 layers of 500, 6 of 250; {p['config']['seeds']} seeds.",
        (
            Grid("E z² in layers of ReLU", ("keep", "init", "layer 5", "layer 10", "layer 15", "layer 20"), cells),
            Grid("Ours: E z² at layer 20, lowest to highest network", ("activation", "chi", *keeps), tuple(others)),
        ),
        ("forward.png", "forward_others.png"),
        verdict=verdict((kept, at(0.6, "he") > 10, at(0.6, "xavier") < 0.1)),
    )


def backward(p: Payload) -> Section:
    """Appendix A."""
    rows = {(row["keep"], row["convention"], row["init"]): row["second"] for row in p["relu"]}

    def grown(keep: float, convention: str, init: str, layer: int = 0) -> float:
        return mean([run[layer] / run[-1] for run in rows[keep, convention, init]])

    names = {"paper-backward": "paper", "backward": "exact", "xavier": "Xavier", "he": "He"}
    cells = tuple(
        (f"{key[0]:g}", key[1], names[key[2]], *(f"{grown(*key, layer):.2g}" for layer in (15, 10, 5, 0)))
        for key in rows
    )
    return Section(
        "Appendix A: the error back through twenty layers",
        "With the backward correction p E f'², errors keep their distribution at keep rates 1 and 0.6.",
        (
            "Under autograd, at keep rate 0.6, the paper's weights multiply the error's variance by "
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
        # A factor of two is where 500 units become 250.
        verdict=verdict(
            0.2 < grown(keep, "autograd", "paper-backward") < 5 for keep in dict.fromkeys(k[0] for k in rows)
        ),
    )


def stability(p: Payload) -> Section:
    """Stability."""
    ends = {name: mean([run[-1] for run in runs]) for name, runs in p["second"].items()}
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
            "Under the forward correction they are, under the paper's own weights not: without dropout, E f² in the "
            f"seventh ReLU layer is {relu['forward']['layers'][6]['f']:.2f} under ours and "
            f"{relu['paper']['layers'][6]['f']:.2g} under the paper's sum, where Table 1 says 0.5.",
        ),
        f"{p['config']['dataset']}, {p['config']['examples']} images, {p['config']['seeds']} draws of the weights.",
        (Grid("Hidden layers at initialisation, standardised inputs", heads, cells),),
        ("factors.png",),
        verdict=verdict(0.8 < relu[init]["layers"][6]["f"] / 0.5 < 1.25 for init in ("forward", "paper")),
    )
