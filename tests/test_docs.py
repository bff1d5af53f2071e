"""What holds for the site: every public name has a place, and the link checker finds what is broken."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import unitvar
import unitvar.init
import unitvar.plot

ROOT = Path(__file__).parent.parent
PAGE = '<h1 id="top">{}</h1>'


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci/links.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "link", ["b.html", "b.html#top", "#top", "sub/c.html#top", "https://example.org/x#y", "x%20y.png"]
)
def test_a_good_link_passes(link: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.html", "sub/c.html", "x y.png"):
        (tmp_path / name).write_text(PAGE.format(name), encoding="utf-8")
    (tmp_path / "a.html").write_text(PAGE.format(f'<a href="{link}">x</a>'), encoding="utf-8")
    done = check(tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("link", "what"),
    [
        ("gone.html", "has no file"),
        ("b.html#gone", "has no such anchor"),
        ("#gone", "has no such anchor"),
        ("https://nowhere", "is no address"),
        ("file:///etc/x", "has an unknown scheme"),
    ],
)
def test_a_broken_link_is_named(link: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text(PAGE.format("b"), encoding="utf-8")
    (tmp_path / "a.html").write_text(PAGE.format(f'<a href="{link}">x</a>'), encoding="utf-8")
    done = check(tmp_path)
    assert (done.returncode, done.stderr) == (1, f"a.html: {link} {what}\n")


def test_a_folder_without_pages_is_refused(tmp_path: Path) -> None:
    assert "has no pages" in check(tmp_path).stderr


def test_every_public_name_is_on_the_api_page() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    found = set(re.findall(r"auto(?:function|class|module):: ([\w.]+)", page))
    wanted = {name for name in unitvar.__all__ if name not in ("init", "plot")}
    wanted |= {f"unitvar.init.{name}" for name in unitvar.init.__all__ if name not in ("MODES", "drop_rate")}
    assert wanted | {"unitvar.plot"} <= found


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    listed = {
        line
        for block in re.findall(r"```{toctree}\n(.*?)```", index, re.DOTALL)
        for line in block.split()
        if not line.startswith(":")
    }
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - {"index"} <= listed
