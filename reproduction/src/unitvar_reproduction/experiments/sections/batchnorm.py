"""BatchNorm: re-estimated after training, and what it costs."""

from __future__ import annotations

from unitvar_reproduction.experiments.section import Grid, Payload, Section, percent, verdict
from unitvar_reproduction.statistics import Estimate

__all__ = ["cost", "reestimation"]


def reestimation(p: Payload) -> Section:
    """BatchNorm."""
    rows = [row for row in p["rows"] if row["network"] == "densenet"]
    by = {(row["moment"], row["arm"]): row for row in rows}
    trained, on, ours = (by["end", variant] for variant in ("as trained", "dropout on", "mean and variance"))
    half = by["halfway", "as trained"], by["halfway", "mean and variance"]
    cells = tuple((r["moment"], r["arm"].removeprefix("averaged: "), percent(r["error"])) for r in rows)
    gains = (Estimate(**by[moment, "variance only"]["error minus as trained"]) for moment in ("halfway", "end"))
    return Section(
        "BatchNorm re-estimated",
        "Re-estimating BatchNorm's variance with dropout off lowers the test error, half-way and at the end.",
        (
            f"A small DenseNet's test error falls from {percent(half[0]['error'])} to {percent(half[1]['error'])} % "
            f"half-way and from {percent(trained['error'])} to {percent(ours['error'])} % at the end, with mean and "
            "variance re-estimated.",
            f"The control that the paper lacks, re-estimation with dropout on, ends at {percent(on['error'])} %.",
        ),
        f"8x8 digits, {p['config']['epochs']} epochs, drop {p['config']['dropout']:g}, {p['config']['seeds']} seeds.",
        (Grid("Small DenseNet, test error in %", ("moment", "BatchNorm", "error"), cells),),
        ("reestimation.png",),
        verdict=verdict((gain.mean < 0 and gain.excludes_zero for gain in gains), shrunk=True),
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
        verdict=verdict(row["median"] <= 1.3 for row in p["rows"]),
    )
