"""Table 1: activation adjustment factors under a standard normal input.

Paper: E f² and E f'² of identity, ReLU, GELU, tanh and ELU.
Ours: the E f² column holds to every digit; three values of E f'² do not, tanh's by more than a factor of two.
Exact (closed form or quadrature to 1e-8), so no seeds; milliseconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from unitvar import activation_moments
from unitvar_reproduction import record
from unitvar_reproduction.values import TABLE1

__all__ = ["Table1", "Table1Row", "rows"]


@dataclass(frozen=True)
class Table1Row:
    """One activation: what is printed, what is exact, and why they differ if they do."""

    name: str
    paper_second: float
    second: float
    paper_slope: float
    slope: float
    second_agrees: bool
    slope_agrees: bool
    erratum: str


def rows() -> list[Table1Row]:
    """Compute Table 1 and compare it with the paper, to the digits that the paper prints."""
    found = []
    for printed in TABLE1:
        exact = activation_moments(printed.name)
        half_a_digit = 0.5 * 10.0**-printed.decimals + 1e-9
        found.append(
            Table1Row(
                name=printed.name,
                paper_second=printed.second,
                second=exact.second,
                paper_slope=printed.slope,
                slope=exact.slope,
                second_agrees=abs(exact.second - printed.second) <= half_a_digit,
                slope_agrees=abs(exact.slope - printed.slope) <= half_a_digit,
                erratum=printed.erratum,
            )
        )
    return found


@dataclass(frozen=True)
class Table1:
    """Table 1 of the paper beside the exact values, with its errata marked."""

    out: Path = record.OUT
    """Folder for table1.json."""

    def run(self, console: Console) -> None:
        """Compute, print and save."""
        found = rows()
        table = Table(title="Table 1: adjustment factors for z ~ N(0, 1)", title_justify="left")
        table.add_column("activation")
        for head in ("E f² paper", "exact", "E f'² paper", "exact"):
            table.add_column(head, justify="right")
        table.add_column("erratum")
        for row in found:
            table.add_row(
                row.name,
                f"{row.paper_second:g}" + ("" if row.second_agrees else " ✗"),
                f"{row.second:.4f}",
                f"{row.paper_slope:g}" + ("" if row.slope_agrees else " ✗"),
                f"{row.slope:.4f}",
                row.erratum or "–",
            )
        console.print(table)
        wrong = sum(not (row.second_agrees and row.slope_agrees) for row in found)
        console.print(f"✗ marks a printed value that differs from the exact one: {wrong} of {len(found)} rows.")
        path = record.save(self.out / "table1.json", {"experiment": "table1", "rows": [asdict(row) for row in found]})
        console.print(f"Saved {path}")
