"""What the page "When does it help?" of the docs takes from the saved results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unitvar_reproduction.experiments.pages import markdown
from unitvar_reproduction.experiments.section import Grid
from unitvar_reproduction.experiments.training.families import FAMILIES, MLPS, ours
from unitvar_reproduction.experiments.training.section import difference, matrix, overview, scoreboard
from unitvar_reproduction.experiments.training.summary import best_tuned
from unitvar_reproduction.experiments.training.words import CALLS, OPTIMISERS, title
from unitvar_reproduction.statistics import Estimate

__all__ = ["generated"]

Saved = Sequence[Mapping[str, Any]]
GAIN_HEADS = ("network", "signal in the last layer", "optimiser", "gain: log loss", "best")
ADVICE_HEADS = ("network", "noise and signal in the last layer", *OPTIMISERS.values())


def generated(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of the page that are written from results, in Markdown."""
    saved, config = payload["rows"], payload["config"]
    sentences = [sentence for optimiser in OPTIMISERS for sentence in overview(saved, optimiser)]
    boards = [grid for grid in (scoreboard(saved), scoreboard(saved, dense=True)) if grid.rows]
    grids = [matrix(saved, o) for o in OPTIMISERS if any(row["optimiser"] == o for row in saved)]
    families = len({row["family"] for row in saved if row["family"] not in MLPS})
    dense = len({row["family"] for row in saved if row["family"] in MLPS})
    return {
        "size": f"{config['trials']:,} networks of {families} families and {dense} plain MLPs; {config['complete']} "
        f"combinations of family, optimiser and initialisation have all {config['seeds']} seeds.{_pending(saved)}",
        "overview": "\n\n".join(
            ["\n".join(f"- {sentence}" for sentence in sentences) or "- Not enough trials yet to compare."]
            + [f"{grid.caption}:\n\n{markdown(grid)}" for grid in boards]
        ),
        "calls": markdown(Grid("", ("family", *OPTIMISERS.values()), tuple(_calls(saved)))),
        "tables": "\n\n".join(f"{grid.caption}.\n\n{markdown(grid)}" for grid in grids),
        "advice": markdown(Grid("", ADVICE_HEADS, tuple(_advised(saved, payload["gains"])))),
        "gains": markdown(Grid("", GAIN_HEADS, tuple(_gains(payload["gains"])))),
        "pictures": "\n\n".join(f"![{_caption(name)}](../reproduction/results/{name})" for name in config["pictures"]),
    }


def _calls(saved: Saved) -> Iterator[tuple[str, ...]]:
    best = dict(best_tuned(saved))
    compared = {(row["family"], row["optimiser"]) for row in saved if row["init"] == ours(row["family"])}
    for family in dict.fromkeys(row["family"] for row in saved):
        cells = [
            _call(best[family, optimiser]) if (family, optimiser) in compared else "not run yet"
            for optimiser in OPTIMISERS
        ]
        if any(cell != "not run yet" for cell in cells):
            yield FAMILIES[family].title, *cells


def _call(row: Mapping[str, Any]) -> str:
    if row["init"] == ours(row["family"]):
        return "`initialize_(model, batch)`"
    name = f"`{CALLS[row['init']]}`" if row["init"] in CALLS else title(row["init"])
    against = row["minus ours"]
    if not against["difference"]:
        return f"{name} ({against['verdict'] or 'not compared yet'})"
    star = " *" if against["verdict"] in ("better", "worse") else " ?" if against["verdict"] == "open" else ""
    return f"{name} ({Estimate(**against['difference']):+.3f}{star})".replace("± +", "± ").replace("-0", "−0")


def _advised(saved: Saved, gains: Saved) -> Iterator[tuple[str, ...]]:
    """Give for each dense network what the plan advises with each optimiser, and how that differs from the default."""
    by = {(row["family"], row["optimiser"], row["init"]): row for row in saved}
    advice = {(row["family"], row["optimiser"]): row for row in gains}
    for family in dict.fromkeys(row["family"] for row in gains):
        cells = []
        for optimiser in OPTIMISERS:
            init = advice[family, optimiser]["advised"] if (family, optimiser) in advice else ours(family)
            call = f"`{CALLS[init]}`" if init in CALLS and init != ours(family) else "no gain"
            cells.append(f"{call}: {difference(by.get((family, optimiser, init)))}")
        last = next(row for row in gains if row["family"] == family)
        yield FAMILIES[family].title, f"{100 * last['noise']:.0f} % and {100 * last['signal']:.2g} %", *cells


def _pending(saved: Saved) -> str:
    """Name the families whose comparison with torch's default has not been run under either optimiser."""
    ran = {row["family"] for row in saved if row["init"] == ours(row["family"]) and row["minus default"]["verdict"]}
    pending = [kind.title for family, kind in FAMILIES.items() if family not in ran and family not in MLPS]
    return f" Not compared yet: {'; '.join(pending)}." if pending else ""


def _gains(found: Saved) -> Iterator[tuple[str, ...]]:
    for row in found:
        points = ", ".join(
            f"{p['gain']:.2f} ({title(p['init'], row['family'])}): {p['loss']:.3f}" for p in row["points"]
        )
        head = FAMILIES[row["family"]].title, f"{100 * row['signal']:.2g} %", OPTIMISERS[row["optimiser"]]
        yield *head, points, f"{row['best']:.2f}"


def _caption(name: str) -> str:
    if "gain" in name:
        return (
            "Log loss of plain dense networks against the gain of their weights, for both optimisers, and the best "
            "gain against depth and share of signal: the deeper the network, the closer to one the best with SGD"
        )
    optimiser = OPTIMISERS[name.removesuffix(".png").partition("_")[2]]
    return (
        f"Log loss on the tuning set against the learning rate with {optimiser}, one panel per family: each "
        "initialisation is compared at its own best rate, the large dot"
    )
