"""One page with everything that was run: the paper's claim beside ours, figures, tables, errata; no network needed."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from unitvar_reproduction.experiments.section import Picture
from unitvar_reproduction.experiments.sections import SECTIONS, VERDICTS, Grid, Section
from unitvar_reproduction.record import OUT, load, write

__all__ = ["ERRATA", "Report", "headlines"]

ERRATA = (
    "Table 1, tanh: E f'² is printed as 0.216; it is 0.4644. The authors' notebook squares twice. GELU's 0.444 is "
    "0.4559, ELU's 0.671 is 0.6681.",
    "The backward factor. The derivative of inverted dropout is mask / p, so the factor is E f'² / p, not p E f'².",
    "Its index. The derivation pairs a weight with the activation before it; the formula takes the one after it.",
    "The sum. Adding the two terms instead of averaging them halves both signals at every ReLU layer without dropout.",
    "Orthonormal is not hypersphere where a layer widens: rows then have squared norm fan-in / fan-out.",
    "Text and code differ: the released re-estimation runs five epochs, not one, and averages 1 / std; the appendix's "
    "He panel at keep rate 0.6 uses masks drawn at 1.",
    "“Normalize its last dimension” contradicts the text's own matrix of unit columns; the code normalises the first.",
)

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5b6068; --line: #d8dbe0; --page: #fff; --box: #f5f6f8;
  --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e7ea; --soft: #a0a5ad; --line: #3a3d43; --page: #17181b;
  --box: #202226; --accent: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--page);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .8rem; border-top: 1px solid var(--line); padding-top: 1.6rem; }
a { color: var(--accent); }
nav ul { columns: 2 18rem; padding-left: 1.2rem; margin: .6rem 0; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(18rem, 100%), 1fr)); gap: .8rem; }
.sides > div { background: var(--box); border-radius: .5rem; padding: .7rem .9rem; }
.sides h3, caption { font-size: .8rem; color: var(--soft); font-weight: 600; margin: 0 0 .3rem; text-align: left; }
.sides p { margin: 0 0 .5rem; }
.ran, footer { color: var(--soft); font-size: .87rem; }
figure { margin: 1.2rem 0; }
figcaption { color: var(--soft); font-size: .87rem; margin-top: .4rem; max-width: 46rem; }
figure img { display: block; max-width: max(100%, 36rem); height: auto; background: #fff; border-radius: .5rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
figure .scroll { margin: 0; }
/* A shadow at an edge says that there is more behind it. */
.scroll { background: linear-gradient(90deg, var(--page) 30%, transparent) 0 0,
  linear-gradient(270deg, var(--page) 30%, transparent) 100% 0,
  linear-gradient(90deg, #0004, transparent) 0 0, linear-gradient(270deg, #0004, transparent) 100% 0;
  background-repeat: no-repeat; background-size: 2.5rem 100%, 2.5rem 100%, .9rem 100%, .9rem 100%;
  background-attachment: local, local, scroll, scroll; }
.wide { display: none; color: var(--soft); font-size: .8rem; margin: 0 0 .2rem; }
@media (max-width: 40rem) { .wide { display: block; } }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem 1.1rem .25rem 0; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
caption { padding-bottom: .3rem; }
.verdict { font-size: .75rem; font-weight: 600; padding: .1rem .5rem; border-radius: 1rem; vertical-align: middle;
  color: #fff; white-space: nowrap; }
.v0 { background: #00735a; } .v1 { background: #8a5a00; } .v2 { background: #a8400a; } .v3, .v4 { background: #5b6068; }
details summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
"""

_WIDE = "<p class=wide>Scroll sideways for the rest →</p>"


@dataclass(frozen=True)
class Report:
    """One self-contained page with every result there is."""

    out: Path = OUT
    """Folder that has the results, and gets index.html."""

    def run(self, console: Console) -> None:
        """Write the page."""
        console.print(f"Saved {write(self.out / 'index.html', page(self.out))}")


def found(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the saved results of a folder, in the order of the page."""
    paths = {name: folder / f"{name}.json" for name in SECTIONS}
    there: dict[str, Mapping[str, Any]] = {name: load(path) for name, path in paths.items() if path.exists()}
    if not there:
        raise ValueError(
            f"{folder} has no results; run `unitvar-paper reproduce`, or pass the folder of the results with --out."
        )
    return {name: payload for name, payload in there.items() if name == _kind(name) or _kind(name) not in there}


def _kind(name: str) -> str:
    """Return what an experiment is called at the paper's scale."""
    return name.removesuffix("_small").removesuffix("_medium")


def headlines(folder: Path, names: tuple[str, ...]) -> list[str]:
    """Return the title and the first finding of each of some experiments."""
    results = found(folder)
    sections = (_told(name, results[name], folder) for name in names if name in results)
    return [f"{section.title}. {section.found[0]}" for section in sections]


def page(folder: Path) -> str:
    """Return the page for the results of a folder."""
    results = found(folder)
    sections = {name: _told(name, payload, folder) for name, payload in results.items()}
    body = "\n".join(_section(name, sections[name], results[name], folder) for name in sections)
    contents = "".join(
        f'<li><a href="#{name}">{_text(section.title)}</a>{_verdict(section)}</li>'
        for name, section in sections.items()
    )
    missing = list(dict.fromkeys(kind for kind in map(_kind, SECTIONS) if kind not in map(_kind, results)))
    absent = f"<p class=ran>Not run: {_text(', '.join(missing))}.</p>" if missing else ""
    errata = "".join(f"<li>{_text(item)}</li>" for item in ERRATA)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>unitvar: the reproduction</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head><body>
<h1>Adjusting for dropout variance, reproduced</h1>
<p>Hendrycks &amp; Gimpel, <em>Adjusting for Dropout Variance in Batch Normalization and Weight Initialization</em>
(arXiv:1607.02488): each claim beside what we found. A claim is <em>held</em> if the numbers show all of it,
<em>partly</em> if they show some of it, <em>not held</em> if they show the opposite, <em>not shown</em> if they are
inconclusive, and <em>not at this scale</em> if an experiment smaller than the paper's does not show it.</p>
<p>Initialisations whose names begin with “unitvar” come from this library. The <em>keep rate</em> p is one minus the
dropout rate. <em>E z²</em> is the mean square of a layer's outputs before the activation.</p>
<nav><ul>{contents}<li><a href="#errata">Errata</a></li></ul>{absent}</nav>
{body}
<h2 id="errata">Errata of the paper</h2><ol>{errata}</ol>
<footer>Written by <code>unitvar-paper report</code>. Raw results are beside this page, a JSON file per trial.</footer>
</body></html>
"""


def _told(name: str, payload: Mapping[str, Any], folder: Path) -> Section:
    try:
        _hardware(payload)
        return SECTIONS[name](payload)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{folder / name}.json is not a result of this version of unitvar ({type(error).__name__}: {error}); run "
            f"that experiment again, or move the file elsewhere."
        ) from error


def _section(name: str, section: Section, payload: Mapping[str, Any], folder: Path) -> str:
    sentences = "".join(f"<p>{_text(sentence)}</p>" for sentence in section.found)
    pictures = "".join(_picture(folder, picture) for picture in section.pictures)
    tables = "".join(_table(grid) for grid in section.tables)
    trials = f', <a href="{name}/">one file per trial</a>' if (folder / name).is_dir() else ""
    return f"""<section><h2 id="{name}">{_text(section.title)}{_verdict(section)}</h2>
<div class=sides><div><h3>The paper</h3><p>{_text(section.claim)}</p></div>
<div><h3>What we found</h3>{sentences}</div></div>
{pictures}{tables}
<p class=ran>{_text(section.ran)} {_text(_hardware(payload))} <a href="{name}.json">{name}.json</a>{trials}.</p>
</section>"""


def _verdict(section: Section) -> str:
    kind = VERDICTS.index(section.verdict) if section.verdict else None
    return "" if kind is None else f' <span class="verdict v{kind}">{_text(section.verdict)}</span>'


def _hardware(payload: Mapping[str, Any]) -> str:
    environment = payload["environment"]

    def shown(key: str, short: Callable[[str], str] = str) -> str:
        value = environment[key]  # a list where trials differ
        return " and ".join(short(str(v or "unknown")) for v in (value if isinstance(value, list) else [value]))

    parts = [shown("processor"), f"{shown('cores')} cores"]
    if "gpu" in environment:
        parts.append(shown("gpu"))
    if environment.get("device", "cpu") != "cpu":
        parts.append(f"trained on {shown('device')}")
    if environment.get("processes", 1) != 1:  # then BatchNorm sees parts of batches
        parts.append(f"{shown('processes')} processes per network")
    if environment.get("compiled"):
        parts.append("compiled" if environment["compiled"] is True else "partly compiled")
    parts += [f"torch {shown('torch')}", f"Python {shown('python')}", f"commit {shown('commit', _short)}"]
    return ", ".join(parts) + "."


def _short(commit: str) -> str:
    """Shorten a commit's hash, and keep the mark that its files were changed."""
    digits, mark, changed = commit.partition("+")
    return digits[:12] + mark + changed


def _picture(folder: Path, picture: Picture) -> str:
    path = folder / picture.file
    if not path.exists():
        return f"<p class=ran>{_text(path.name)} is missing.</p>"
    encoded = base64.b64encode(path.read_bytes()).decode()
    image = f'<img alt="{_text(picture.alt)}" src="data:image/png;base64,{encoded}">'
    caption = f"<figcaption>{_text(picture.caption)}</figcaption>"
    return f"<figure>{_WIDE}<div class=scroll tabindex=0>{image}</div>{caption}</figure>"


def _table(grid: Grid) -> str:
    heads = "".join(f"<th>{_text(head)}</th>" for head in grid.heads)
    rows = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in grid.rows)
    table = f"<table><caption>{_text(grid.caption)}</caption><tr>{heads}</tr>{rows}</table>"
    drawn = f"<div>{_WIDE if len(grid.heads) > 3 else ''}<div class=scroll tabindex=0>{table}</div></div>"
    # A long table is for those who look for a number in it.
    return drawn if len(grid.rows) <= 14 else f"<details><summary>{_text(grid.caption)}</summary>{drawn}</details>"


def _text(words: str) -> str:
    return html.escape(words).replace(" %", "&nbsp;%")
