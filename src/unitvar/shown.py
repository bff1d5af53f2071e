"""How results are shown: numbers and counts, text of 80 columns, HTML for notebooks, data frames."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = [
    *("SHARES", "WIDTH", "Entry", "Tabular", "counted", "frame", "html_table", "notes", "number", "percent"),
    *("progress_bar", "text_table", "wrapped"),
]

WIDTH = 80
SHARES = "shares of E z²: signal tells examples apart, noise comes from dropout masks"
_NOTHING = 1e-9  # beside one, what rounding leaves


def counted(n: int, what: str) -> str:
    """Count things: ``1 layer``, ``2 layers``, ``3 batches``."""
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{n} {what if n == 1 else plural}"


def number(x: float | None, *, digits: int = 4, beside: float = 0.0) -> str:
    """Write a number in at most nine characters; None is a dash.

    Args:
        x: the number.
        digits: how many count.
        beside: the size of what it belongs to: a mean of 3e-17 beside a spread of 1 is 0.
    """
    if x is None:
        return "-"
    if abs(x) <= _NOTHING * beside:
        return "0"
    if x != 0 and not 1e-3 <= abs(x) < 10 ** (digits + 1):
        return f"{x:.2e}"
    return f"{x:.{digits}g}" if abs(x) < 10**digits else f"{x:.0f}"


def percent(share: float) -> str:
    """Write a share as a percentage of at most three digits."""
    if 0 < share < 5e-4:
        return "<0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def wrapped(line: str) -> list[str]:
    """Break a line into lines of 80 columns."""
    return textwrap.wrap(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def text_table(head: str, columns: Sequence[tuple[str, int]], rows: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Lay names and numbers out, 80 columns wide, nothing cut off.

    Args:
        head: of the names.
        columns: head and width of each column of numbers.
        rows: a name and its numbers each.

    Returns:
        Lines. A name that is too long to stand beside its numbers stands above them.
    """
    room = WIDTH - sum(width for _, width in columns)
    wide = max([len(head), *(len(label) for label, _ in rows if len(label) <= room)])
    lines = [head.ljust(wide) + "".join(name.rjust(width) for name, width in columns)]
    for label, cells in rows:
        *above, name = textwrap.wrap(label, WIDTH, break_on_hyphens=False) or [""]
        if len(name) > wide:
            above, name = [*above, name], ""
        numbers = "".join(cell.rjust(width) for cell, (_, width) in zip(cells, columns, strict=True))
        lines += [*above, name.ljust(wide) + numbers]
    return lines


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """Lay cells out as an HTML table; the first columns hold words, the others numbers."""

    def line(tag: str, cells: Sequence[str]) -> str:
        sides = ("left" if i < words else "right" for i in range(len(cells)))
        made = (
            f'<{tag} style="text-align: {side}; padding: 0 0.6em">{html.escape(cell)}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    return (
        f"<table><thead>{line('th', columns)}</thead><tbody>{''.join(line('td', row) for row in rows)}</tbody></table>"
    )


def notes(*lines: str, bold: bool = False) -> str:
    """Lay lines out as HTML, one below the other."""
    style = ' style="font-weight: bold"' if bold else ""
    return "".join(f"<div{style}>{html.escape(line)}</div>" for line in lines if line)


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Turn rows into a pandas DataFrame."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_pandas() needs pandas: pip install pandas. Without it, use .rows.") from error
    return pd.DataFrame([dict(row) for row in rows])


@contextmanager
def progress_bar(total: int, show: bool) -> Iterator[Callable[[], object]]:
    """Show a progress bar while a block runs, and yield the function to call after each step; it may do nothing."""
    if not show:
        yield lambda: None
        return
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install 'unitvar[progress]'.") from error
    with tqdm(total=total, desc="measure", unit="run") as bar:
        yield bar.update


class Entry:
    """One row of a result, which shows itself in one line, and in a notebook as a table."""

    __slots__ = ()

    @property
    def row(self) -> Mapping[str, Any]:
        """Return a flat, JSON-ready dict."""
        raise NotImplementedError

    def _brief(self) -> dict[str, str]:
        known = ((key, value) for key, value in self.row.items() if value is not None and value != "")
        # A mean of 3e-17 is 0; a variance or a gradient of 3e-17 is not.
        return {
            key: number(value, beside=1.0 if key.endswith("mean") else 0.0) if isinstance(value, float) else str(value)
            for key, value in known
        }

    def __repr__(self) -> str:
        name, *rest = self._brief().items()
        return f"<{type(self).__name__} {name[1]}: {', '.join(f'{key} {value}' for key, value in rest)}>"

    def _repr_html_(self) -> str:
        return html_table((type(self).__name__, "value"), self._brief().items())


class Tabular:
    """A result with rows, which a notebook shows as a table."""

    __slots__ = ()

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return flat, JSON-ready dicts."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return ``.rows`` as a data frame; needs pandas."""
        return frame(self.rows)
