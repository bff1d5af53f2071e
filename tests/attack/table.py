"""Write the table of docs/reliability.md from what `make attack` found."""

import json
from pathlib import Path

from tests.attack.run import RESULTS

__all__ = ["PAGE", "refreshed", "table"]

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- attacks: written by tests/attack/table.py -->\n", "<!-- end of attacks -->\n"
PEERS = "peers' own cases for BatchNorm"
BEGIN_PEERS, END_PEERS = "<!-- peers: written by tests/attack/table.py -->\n", "<!-- end of peers -->\n"


def table(found: dict[str, object]) -> str:
    """Lay out the results, one attack a row."""
    rows = ["| attack | cases | held |", "|---|---|---|"]
    for name, attack in found["attacks"].items():  # type: ignore[attr-defined]
        sample = "" if attack["every"] == 1 else f", every {attack['every']}th"
        rows.append(f"| {name}{sample} | {attack['cases']:,} | {attack['held']:,} |")
    broken = [f"- {c['name']}: {c['note']}" for a in found["attacks"].values() for c in a["broken"]]  # type: ignore[attr-defined]
    failed = ["", "What did not hold:", "", *broken] if broken else []
    return "\n".join([*rows, *failed]) + "\n"


def peers_table(found: dict[str, object]) -> str:
    """Lay out peers' cases, with what ours does."""
    attack = found["attacks"][PEERS]  # type: ignore[index]
    broken = {case["name"] for case in attack["broken"]}
    rows = ["| peer | case in its tests | `reestimate_bn_` | held |", "|---|---|---|---|"]
    for name, ours in attack["notes"].items():
        peer, _, case = name.partition(": ")
        rows.append(f"| {peer} | {case} | {ours} | {'no' if name in broken else 'yes'} |")
    return "\n".join(rows) + "\n"


def refreshed(text: str, found: dict[str, object]) -> str:
    """Replace the tables in the page."""
    for begin, end, made in ((BEGIN, END, table(found)), (BEGIN_PEERS, END_PEERS, peers_table(found))):
        before, after = text.partition(begin)[0], text.partition(end)[2]
        text = f"{before}{begin}\n{made}\n{end}{after}"
    return text


def main() -> None:
    """Write the page."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
