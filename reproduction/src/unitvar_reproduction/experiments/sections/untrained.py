"""What is exact, or measured before any training: Table 1, signals and errors through random layers."""

from __future__ import annotations

from unitvar_reproduction.experiments.comparison import NAMES
from unitvar_reproduction.experiments.section import Grid, Payload, Picture, Section, mean
from unitvar_reproduction.judgement import Answer, verdict, within
from unitvar_reproduction.values import TABLE1

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
            f"Every digit of E f² is right, but {len(wrong)} of {len(p['rows'])} values of E f'² are not: "
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

    names = {"forward": "unitvar, forward", "xavier": "Xavier", "he": "He"}
    cells = tuple(
        (f"{keep:g}", names[init], *(f"{at(keep, init, layer):.3g}" for layer in (5, 10, 15, 20)))
        for keep, init in rows
    )
    kept = [within([run[20] for run in rows[key]], 0.4, 2.5) for key in rows if key[1] == "forward"]
    grown = within([run[20] for run in rows[0.6, "he"]], 10, float("inf"))
    faded = within([run[20] for run in rows[0.6, "xavier"]], 0, 0.1)
    found = [
        f"After 20 ReLU layers at keep rate 0.6, E z² is {at(0.6, 'forward'):.2g} with the correction, "
        f"{at(0.6, 'he'):.2g} with He's weights and {at(0.6, 'xavier'):.2g} with Xavier's."
    ]
    if p["others"]:
        unstable = max(p["others"], key=lambda row: row["chi"])
        found.append(
            "E z² = 1 is stable only for activations with chi ≤ 1, where chi is the factor by which a layer multiplies "
            f"a small deviation. With {unstable['activation']} (chi {unstable['chi']:.2f}) at keep rate "
            f"{unstable['keep']:g} the mean of E z² over networks is "
            f"{mean([run[-1] for run in unstable['second']]):.3g} at layer 20; GELU's chi is above 1, too."
        )
    others = []
    for name in dict.fromkeys(row["activation"] for row in p["others"]):
        own = [row for row in p["others"] if row["activation"] == name]
        ends = (sorted(run[-1] for run in row["second"]) for row in own)
        others.append((name, f"{own[0]['chi']:.3f}", *(f"{e[0]:.3g} to {e[-1]:.3g}" for e in ends)))
    keeps = dict.fromkeys(f"keep {row['keep']:g}" for row in p["others"])
    return Section(
        "Figure 1: the signal through twenty layers",
        "Weight rows on a sphere, with the forward correction, keep the variance with and without dropout. It decays "
        "with Xavier's weights; with He's it explodes under dropout.",
        tuple(found),
        f"Full size: 1,000 inputs, 15 layers of 500, 6 of 250; {p['config']['seeds']} seeds.",
        (
            Grid("E z² in layers of ReLU", ("keep", "init", "layer 5", "layer 10", "layer 15", "layer 20"), cells),
            Grid(
                "unitvar, forward: E z² at layer 20, lowest to highest network",
                ("activation", "chi", *keeps),
                tuple(others),
            ),
        ),
        (
            Picture(
                "forward.png",
                "Compare the four colours within a panel: where they coincide, depth does not change the signal. At "
                "keep rate 0.6 they do so only in the first column. Panels of a row share their axes: a curve "
                "wider than its panel has exploded. The number in a corner is E z² at layer 20.",
                "Densities of neuron inputs and outputs at layers 5, 10, 15 and 20 under three initialisations, at "
                "keep rates 1 and 0.6: unchanged by depth with unitvar, shrinking with Xavier, and at 0.6 exploding "
                "with He.",
            ),
            Picture(
                "forward_others.png",
                "One panel per activation, ordered by chi; one line per network. Up to chi = 1 the lines stay "
                "near one; above it (titles in orange) small deviations grow with every layer.",
                "E z² by layer for each activation at keep rates 1 and 0.6, in several random networks: near one up to "
                "chi = 1, fanning out above it.",
            ),
        ),
        verdict=verdict((*kept, grown, faded)),
    )


def backward(p: Payload) -> Section:
    """Appendix A."""
    rows = {(row["keep"], row["convention"], row["init"]): row["second"] for row in p["relu"]}

    def grown(keep: float, convention: str, init: str, layer: int = 0) -> float:
        return mean([run[layer] / run[-1] for run in rows[keep, convention, init]])

    names = {"paper-backward": "paper", "backward": "unitvar, backward", "xavier": "Xavier", "he": "He"}
    cells = tuple(
        (f"{key[0]:g}", key[1], names[key[2]], *(f"{grown(*key, layer):.2g}" for layer in (15, 10, 5, 0)))
        for key in rows
    )
    return Section(
        "Appendix A: backpropagated errors through twenty layers",
        "With the backward correction p E f'², errors keep their distribution at keep rates 1 and 0.6.",
        (
            "Under autograd, at keep rate 0.6, the paper's weights multiply the error's variance by "
            f"{grown(0.6, 'autograd', 'paper-backward'):.1g} from layer 20 to layer 0; with E f'² / p the "
            f"factor is {grown(0.6, 'autograd', 'backward'):.2f}.",
            "The paper's figure multiplies errors by the bare mask, without 1 / p. Computed this way, its weights "
            f"reproduce its figure, with a factor of {grown(0.6, 'bare mask', 'paper-backward'):.2f}, of which 0.5 "
            "comes from the step from 500 to 250 units.",
        ),
        f"Full size, errors of standard deviation 0.01 fed in at layer 20; {p['config']['seeds']} seeds.",
        (
            Grid(
                "E δ² over its value at layer 20",
                ("keep", "dropout mask", "init", "layer 15", "layer 10", "layer 5", "layer 0"),
                cells,
            ),
        ),
        (
            Picture(
                "backward.png",
                "Compare the colours within a panel: errors start at layer 20 and flow back to layer 5. Bottom row, "
                "first column: under autograd the paper's weights let them explode. Panels of a row share their axes; "
                "the number in a corner is E δ² at layer 0 over layer 20.",
                "Densities of errors at layers 5 to 20 under four initialisations: without dropout, with dropout under "
                "autograd, and with dropout and the paper's bare mask.",
            ),
        ),
        # A factor of two is where 500 units become 250.
        verdict=verdict(
            within([run[0] / run[-1] for run in rows[keep, "autograd", "paper-backward"]], 0.2, 5)
            for keep in dict.fromkeys(k[0] for k in rows)
        ),
    )


def stability(p: Payload) -> Section:
    """Stability."""
    ends = {name: mean([run[-1] for run in runs]) for name, runs in p["second"].items()}
    cells = tuple((name, f"{p['chi'][name]:.3f}", f"{ends[name]:.3g}") for name in ends)
    gelu = ends.get("gelu", float("nan"))
    return Section(
        "Stability: what the paper does not say",
        "None. The paper assumes that a variance of one is preserved once it is reached.",
        (
            "It is preserved only if chi = E[z f f'] / E f² ≤ 1. chi is the factor by which a layer multiplies a small "
            f"deviation of E z². After {p['config']['depth']} layers E z² is {gelu:.2g} with GELU (chi "
            f"{p['chi']['gelu']:.2f}) and {ends['elu']:.2g} with ELU (chi {p['chi']['elu']:.2f}).",
        ),
        f"Width {p['config']['width']}, {p['config']['seeds']} seeds, no dropout.",
        (Grid(f"E z² at layer {p['config']['depth']}, mean over networks", ("activation", "chi", "E z²"), cells),),
        (
            Picture(
                "stability.png",
                "Lines that stay near one belong to activations with chi ≤ 1. The others drift away, each network in "
                "its own direction.",
                "E z² over depth for several activations, each in several random networks, on a logarithmic axis.",
            ),
        ),
    )


def factors(p: Payload) -> Section:
    """Table 1 on real data."""
    rows = [row for row in p["rows"] if row["inputs"] == "standardised"]
    relu = {row["init"]: row for row in rows if row["activation"] == "relu" and row["keep"] == 1}
    exact = next(row.second for row in TABLE1 if row.name == "relu")
    deep = {init: relu[init]["layers"][6]["f"] for init in ("forward", "paper")}
    close = {init: within([value / exact], 0.8, 1.25) for init, value in deep.items()}
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
            f"Table 1 says E f² = {exact:g} for ReLU. In the seventh layer, without dropout, it is "
            f"{deep['forward']:.2f} with the forward correction ({_similar(close['forward'])}) and {deep['paper']:.2g} "
            f"with the paper's sum ({_similar(close['paper'])}).",
        ),
        f"{p['config']['dataset']}, {p['config']['examples']} images, {p['config']['seeds']} draws of the weights.",
        (Grid("Hidden layers at initialisation, standardised inputs", heads, cells),),
        (
            Picture(
                "factors.png",
                "The grey line is Table 1. Where a solid line lies on it, the table holds inside the network. Dotted "
                "lines are raw pixels.",
                "E f² and E f'² by hidden layer for four activations at keep rate 0.5, under the paper's weights and "
                "the forward correction, on standardised and on raw pixels.",
            ),
        ),
        verdict=verdict(close.values()),
    )


def _similar(answer: Answer) -> str:
    return "similar" if answer else "not similar"
