"""Pages of the docs whose tables are written from saved results, between marks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from unitvar_reproduction.experiments.section import Grid

__all__ = ["markdown", "refreshed"]


def refreshed(text: str, parts: Mapping[str, str]) -> str:
    """Return a page with what stands between its marks, ``<!-- name -->`` and ``<!-- end -->``, written anew.

    What people conclude stands outside of the marks, and is theirs to check when numbers change.
    """
    names = re.findall(r"<!-- (\w+) -->\n.*?<!-- end -->", text, flags=re.DOTALL)
    if any(names.count(name) != 1 for name in parts):
        raise ValueError(
            f"The page has the parts {', '.join(names) or 'none'}; it needs {', '.join(parts)}, each once."
        )
    for name, part in parts.items():
        start = text.index(f"<!-- {name} -->\n")
        end = text.index("<!-- end -->", start)
        text = f"{text[:start]}<!-- {name} -->\n\n{part}\n\n{text[end:]}"
    return text


def markdown(grid: Grid) -> str:
    """Write a table in Markdown, without its caption."""
    lines = [grid.heads, ("---",) * len(grid.heads), *grid.rows]
    return "\n".join(f"| {' | '.join(cell.replace('*', chr(92) + '*') for cell in line)} |" for line in lines)
