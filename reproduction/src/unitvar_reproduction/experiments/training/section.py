"""The training study in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unitvar_reproduction.experiments.section import Grid, Payload, Picture, Section
from unitvar_reproduction.experiments.training.families import FAMILIES, MLPS, ours
from unitvar_reproduction.experiments.training.summary import VERDICTS, claims
from unitvar_reproduction.experiments.training.words import OPTIMISERS, title
from unitvar_reproduction.statistics import Estimate

__all__ = ["COLUMNS", "difference", "matrix", "overview", "scoreboard", "training"]

Saved = Sequence[Mapping[str, Any]]
HEADS = {"ours": "initialize_", "usual": "the usual one"}
COLUMNS = (
    *HEADS, "scaled", "damped", "unit", "zero", "embeddings", "lsuv", "he", "xavier", "measured", "orthonormal", "mean",
    "paper", "gain-2", "gain-0.8", "gain-0.7", "gain-0.6", "gain-0.5", "gain-0.4", "gain-0.35",
)  # fmt: skip
RIVALS = {
    "default": "",
    "usual": "the family's usual one",
    **dict.fromkeys(("lsuv", "he", "unit", "mean", "measured", "orthonormal", "gain-0.7", "gain-0.5", "gain-0.35"), ""),
}
"""What ``initialize_`` is counted against → its name, where it is not that of tables."""

RATES = (
    "Compare the lowest points of the colours in a panel: each is an initialisation at its best rate, marked by a "
    "large dot. Where a curve is flat around its lowest point, the exact rate matters little.",
    "Log loss on the tuning set against the learning rate, a panel for each family, a line for each initialisation.",
)
GAINS = (
    "Top: see where each line is lowest; a gain of one is unit variance. Bottom: the best gain of each network "
    "against the share of its last layer's signal that tells examples apart.",
    "Log loss against the gain of the hidden layers of plain dense networks, and the best gain against the signal.",
)


def training(p: Payload) -> Section:
    """Which initialisation trains best."""
    found = [sentence for optimiser in OPTIMISERS for sentence in overview(p["rows"], optimiser)]
    tables = tuple(
        [grid for grid in (scoreboard(p["rows"]), scoreboard(p["rows"], dense=True)) if grid.rows]
        + [matrix(p["rows"], optimiser) for optimiser in OPTIMISERS if _of(p["rows"], optimiser)]
    )
    config = p["config"]
    return Section(
        "When does it help?",
        "“Our initialization provides faster convergence”, for networks without norms or shortcuts. "
        "The paper trains only such networks.",
        tuple(found) or ("Not enough trials yet to compare.",),
        f"{config['trials']:,} networks, {config['steps']:,} steps each, with 5 % warm-up and cosine decay to zero. "
        "Learning rates are chosen on one held-out set with two seeds; differences are in log loss on another, paired "
        f"over {config['seeds']} seeds.",
        tables,
        tuple(Picture(name, *(GAINS if "gains" in name else RATES)) for name in config["pictures"]),
    )


def overview(saved: Saved, optimiser: str) -> list[str]:
    """Say where ``initialize_`` is better than torch's default, where it is worse, and where that is open."""
    found = claims(saved, optimiser)
    sentences = []
    for kind, dense in (("", False), ("plain dense networks, ", True)):
        own = {v: [FAMILIES[f].name for f in found[v] if (f in MLPS) == dense] for v in VERDICTS}
        parts = [f"{_verb(v)} {len(names)} ({'; '.join(names)})" for v, names in own.items() if names]
        if parts:
            what = f"{OPTIMISERS[optimiser]}, {kind}`initialize_` against torch's default"
            sentences.append(f"{what}: {'. '.join(parts)}.")
    return sentences


def scoreboard(saved: Saved, dense: bool = False) -> Grid:
    """Count, for each other initialisation and optimiser, where ``initialize_`` is better, and name where it is worse.

    Args:
        saved: the rows.
        dense: whether to count the plain dense networks instead of the families, without names.
    """
    rows = []
    for rival in (r for r in RIVALS if not (dense and r == "unit")):
        cells: list[str] = []
        for optimiser in OPTIMISERS:
            by = _against(saved, optimiser, rival, dense)
            cells += [f"{len(by['worse']) + len(by['diverged'])}", f"{len(by['no difference'])}"]
            cells.append(f"{len(by['better'])}" if dense else "; ".join(by["better"]) or "0")  # there are many
            if not any(by.values()):
                cells[-3:] = ["–"] * 3
        if set(cells) != {"–"}:
            rows.append((RIVALS[rival] or title(rival), *cells))
    heads = (f"{o}: {what}" for o in OPTIMISERS.values() for what in ("better", "no significant difference", "worse"))
    kind = "plain dense networks" if dense else "families"
    what = "is better, and in how many worse" if dense else "is better, and where it is worse"
    return Grid(f"In how many {kind} `initialize_` {what}", ("than", *heads), tuple(rows))


def _against(saved: Saved, optimiser: str, rival: str, dense: bool) -> dict[str, list[str]]:
    """Return the names of families by the verdict on a rival against ``initialize_``, once all seeds are there."""
    by: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS if verdict != "open"}
    for row in _of(saved, optimiser):
        family, verdict = FAMILIES[row["family"]], row["minus ours"]["verdict"]
        wanted = family.usual if rival == "usual" else rival
        if (row["family"] in MLPS) == dense and row["init"] == wanted and verdict in by:
            by[verdict].append(family.name)
    return by


def _verb(verdict: str) -> str:
    return {
        "better": "Better in",
        "worse": "Worse in",
        "no difference": "No significant difference in",
        "diverged": "Diverged in",
        "open": "Fewer than five seeds yet in",
    }[verdict]


def _of(saved: Saved, optimiser: str) -> list[Mapping[str, Any]]:
    return [row for row in saved if row["optimiser"] == optimiser]


def matrix(saved: Saved, optimiser: str) -> Grid:
    """Lay out families against initialisations: torch's loss, and what each other one has more or less."""
    own = _of(saved, optimiser)
    families = list(dict.fromkeys(row["family"] for row in own))
    by = {(row["family"], row["init"]): row for row in own}
    own_names = {f: {"ours": ours(f), "usual": FAMILIES[f].usual} for f in families}
    columns = [
        column
        for column in COLUMNS
        if any((f, own_names[f].get(column, column)) in by and column != ours(f) for f in families)
    ]
    rows = []
    for family in families:
        cells = [
            "–" if c == ours(family) else difference(by.get((family, own_names[family].get(c, c)))) for c in columns
        ]
        base = by.get((family, "default"))
        loss = base and base["loss"]
        rows.append((FAMILIES[family].title, f"{Estimate(**loss):.3f}" if loss else "–", *cells))
    heads = ("family", "torch's default", *(HEADS.get(c) or title(c) for c in columns))
    return Grid(
        f"{OPTIMISERS[optimiser]}: log loss with torch's default, and how others differ from it; * beyond the interval",
        heads,
        tuple(rows),
    )


def difference(row: Mapping[str, Any] | None) -> str:
    """Write a difference from torch's default, with a star if it is beyond its interval."""
    if row is None:
        return "–"
    against = row["minus default"]
    if against["verdict"] == "diverged":
        return "diverged"
    if not against["difference"]:
        return "–"
    star = " *" if against["verdict"] in ("better", "worse") else " ?" if against["verdict"] == "open" else ""
    return f"{Estimate(**against['difference']):+.3f}{star}".replace("± +", "± ").replace("-", "−")
