"""The report: whole by itself, and its numbers those of the results."""

import html.parser
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from unitvar_reproduction.experiments.factors import Factors
from unitvar_reproduction.experiments.sections import SECTIONS
from unitvar_reproduction.experiments.table1 import Table1
from unitvar_reproduction.report import Report, headlines

VOID = {"meta", "link", "img"}
RESULTS = Path(__file__).parents[1] / "results"


class Page(html.parser.HTMLParser):
    """Reads a page, checks that its elements nest, and notes what it loads and links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if (tag, name) in (("img", "src"), ("script", "src"), ("link", "href")):
                self.loads.append(value or "")
            elif name == "href":
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def written(folder: Path) -> Page:
    Report(folder).run(Console(quiet=True))
    return Page((folder / "index.html").read_text(encoding="utf-8"))


def test_our_own_results_make_a_whole_page_that_loads_nothing(tmp_path: Path) -> None:
    for path in (*RESULTS.glob("*.json"), *RESULTS.glob("*.png")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    page = written(tmp_path)
    assert page.open == []
    assert all(load.startswith("data:") for load in page.loads)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert all((tmp_path / link).exists() for link in page.links if not link.startswith("#"))
    assert "nan" not in page.words.lower().split()
    there = {path.stem for path in tmp_path.glob("*.json")} & set(SECTIONS)
    assert there - {"mnist_small"} <= set(page.ids)
    assert "errata" in page.ids


def test_numbers_are_read_from_the_results(tmp_path: Path) -> None:
    Table1(tmp_path).run(Console(quiet=True))
    path = tmp_path / "table1.json"
    saved: dict[str, Any] = json.loads(path.read_text())
    next(row for row in saved["rows"] if row["name"] == "tanh")["slope"] = 0.123456
    path.write_text(json.dumps(saved))
    page = written(tmp_path)
    assert "tanh's is 0.1235" in page.words
    assert "Not run: forward" in page.words
    assert headlines(tmp_path, ("table1", "forward"))[0].startswith(
        "Table 1: adjustment factors. Every digit of E f² is right"
    )


def test_what_ran_is_said_and_a_missing_picture_too(tmp_path: Path) -> None:
    Factors(out=tmp_path, seeds=1, examples=50).run(Console(quiet=True))
    (tmp_path / "factors.png").unlink()
    page = written(tmp_path)
    environment = json.loads((tmp_path / "factors.json").read_text())["environment"]
    for word in ("digits, 50 images, 1 draws", f"torch {environment['torch']}", environment["processor"]):
        assert word in page.words
    assert "factors.png is missing" in page.words


def test_trials_of_two_commits_are_said_to_be(tmp_path: Path) -> None:
    Table1(tmp_path).run(Console(quiet=True))
    path = tmp_path / "table1.json"
    saved = json.loads(path.read_text())
    saved["environment"]["commit"] = ["0123456789abcdef", "fedcba9876543210+changes"]
    path.write_text(json.dumps(saved))
    assert "cores, torch" in written(tmp_path).words
    assert "commit 0123456789ab and fedcba987654+changes." in written(tmp_path).words
    saved["environment"] |= {"gpu": "A GPU", "device": "cuda", "processes": [1, 4], "compiled": True}
    path.write_text(json.dumps(saved))
    said = "cores, A GPU, trained on cuda, 1 and 4 processes per network, compiled, torch"
    assert said in written(tmp_path).words


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"rows": [', "is not a complete JSON file"),
        ("[]", "has a JSON list, not a result"),
        ("{}", "is not a result of this version of unitvar"),
        ('{"environment": {"commit": null}, "rows": [1]}', "is not a result of this version of unitvar"),
    ],
)
def test_a_file_of_another_program_is_named_and_no_page_written(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "forward.json").write_text(content)
    with pytest.raises(ValueError, match=f"forward.json {message}"):
        Report(tmp_path).run(Console(quiet=True))
    assert not (tmp_path / "index.html").exists()


def test_a_folder_without_results_gets_no_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere has no results; run `unitvar-paper reproduce`"):
        Report(tmp_path / "nowhere").run(Console(quiet=True))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("text", ["<b>", "a & b", '"quoted"'])
def test_words_are_escaped(tmp_path: Path, text: str) -> None:
    Table1(tmp_path).run(Console(quiet=True))
    path = tmp_path / "table1.json"
    saved = json.loads(path.read_text())
    saved["rows"][0]["erratum"] = text
    path.write_text(json.dumps(saved))
    assert text in written(tmp_path).words
