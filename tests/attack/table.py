"""Write the table of docs/reliability.md from what `make attack` found."""

import json
from pathlib import Path

from tests.attack.run import RESULTS

__all__ = ["PAGE", "table"]

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- attacks: written by tests/attack/table.py -->\n", "<!-- end of attacks -->\n"


def table(found: dict[str, object]) -> str:
    """Lay out the results, one attack a row."""
    rows = ["| attack | cases | held |", "|---|---|---|"]
    for name, attack in found["attacks"].items():  # type: ignore[attr-defined]
        sample = "" if attack["every"] == 1 else f", every {attack['every']}th"
        rows.append(f"| {name}{sample} | {attack['cases']:,} | {attack['held']:,} |")
    broken = [f"- {c['name']}: {c['note']}" for a in found["attacks"].values() for c in a["broken"]]  # type: ignore[attr-defined]
    failed = ["", "What did not hold:", "", *broken] if broken else []
    return "\n".join([*rows, *failed]) + "\n"


def main() -> None:
    """Replace the table in the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    made = table(json.loads(RESULTS.read_text(encoding="utf-8")))
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
