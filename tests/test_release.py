"""What a release needs: metadata that index and citation tools accept, one version, a wheel with the library only."""

import ast
import datetime
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import unitvar

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

# Citation File Format 1.2.0: the keys of the whole file and of a reference, as far as this project may want them.
CITED = {
    *("abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords"),
    *("license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact"),
    *("repository-code", "title", "type", "url", "version"),
}
REFERRED = CITED - {"cff-version", "message", "preferred-citation", "references"} | {
    *("collection-title", "conference", "issue", "journal", "month", "pages", "publisher", "scope", "start", "end"),
    *("volume", "year"),
}
PERSON = {"affiliation", "email", "family-names", "given-names", "name-particle", "name-suffix", "orcid", "website"}
ENTITY = {"name", "alias", "city", "country", "email", "orcid", "website"}


def check_authors(authors: Any) -> None:
    assert isinstance(authors, list)
    assert authors
    for author in authors:
        assert set(author) <= (ENTITY if "name" in author else PERSON), author
        assert all(isinstance(value, str) and value for value in author.values())


def check_reference(reference: dict[str, Any]) -> None:
    assert {"authors", "title", "type"} <= set(reference) <= REFERRED, reference
    assert reference["type"] in ("article", "book", "conference-paper", "generic", "software", "thesis")
    assert isinstance(reference.get("year", 2000), int)
    assert re.match(r"https?://", reference.get("url", "https://"))
    check_authors(reference["authors"])


def test_the_citation_is_valid() -> None:
    assert {"authors", "cff-version", "message", "title"} <= set(CITATION) <= CITED
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] in ("software", "dataset")
    assert all(isinstance(CITATION[key], str) for key in ("message", "title", "license", "abstract", "repository-code"))
    assert len(set(CITATION["keywords"])) == len(CITATION["keywords"])
    assert isinstance(CITATION.get("date-released", datetime.date(2026, 1, 1)), datetime.date)
    check_authors(CITATION["authors"])
    for reference in (*CITATION["references"], CITATION["preferred-citation"]):
        check_reference(reference)


def test_there_is_one_version() -> None:
    assert str(CITATION["version"]) == unitvar.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", unitvar.__version__)
    reproduction = tomllib.loads((ROOT / "reproduction" / "pyproject.toml").read_text(encoding="utf-8"))
    for folder, project in ((ROOT, PROJECT), (ROOT / "reproduction", reproduction)):
        assert "version" in project["project"]["dynamic"]
        source = folder / project["tool"]["hatch"]["version"]["path"]
        assert source.resolve() == Path(unitvar.__file__).resolve()
    first = re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first is not None
    assert first[1] in (unitvar.__version__, "Unreleased")


def test_the_project_says_where_it_lives_and_which_pythons_it_is_tested_on() -> None:
    project = PROJECT["project"]
    assert {"Homepage", "Documentation", "Source", "Changelog", "Issues"} <= set(project["urls"])
    assert all(url.startswith(CITATION["repository-code"]) for url in project["urls"].values())
    named = {c.rsplit(" ", 1)[1] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)}
    tested = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert named == set(tested["jobs"]["test"]["strategy"]["matrix"]["python"])
    assert project["requires-python"] == f">={min(named, key=lambda v: int(v.partition('.')[2]))}"
    assert "Typing :: Typed" in project["classifiers"]
    assert (ROOT / "src/unitvar/py.typed").exists()


def test_only_a_tag_publishes_and_without_a_password() -> None:
    text = (ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    job = workflow["jobs"]["publish"]
    assert job["permissions"] == {"id-token": "write"}
    assert job["needs"] == "build"
    assert "secrets." not in text
    assert any("make smoke" in step.get("run", "") for step in workflow["jobs"]["build"]["steps"])


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.name)
def test_issue_templates_are_forms(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == "config.yml":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_pre_commit_runs_what_check_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    entries = [hook["entry"] for hook in hooks]
    check = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ncheck:")[2].partition("\n\n")[0]
    for tool in ("ruff format", "ruff check", "mypy"):
        assert f"$(BIN)/{tool}" in check
        assert any(entry.startswith(f".venv/bin/{tool}") for entry in entries)


@pytest.mark.parametrize(
    ("target", "packages"),
    [
        (".venv/reproduction", ["--editable . --editable ./reproduction"]),
        (".venv/development", ["--editable '.[dev]' --editable './reproduction[ray]'", "--no-deps timm"]),
        (".venv/docs", ["--editable '.[docs]'"]),
    ],
)
def test_a_target_installs_what_it_needs_and_compiles_none_of_it(target: str, packages: list[str]) -> None:
    """With PIP_NO_COMPILE=1 pip compiles: the environment sets the option's value, which is whether to compile."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    commands = [line.partition("  #")[0] for line in done.stdout.splitlines() if " pip " in line]
    assert [command.partition(" --no-compile ")[2] for command in commands] == packages
    assert "PIP_NO_COMPILE" not in re.sub(r"#.*", "", (ROOT / "Makefile").read_text(encoding="utf-8"))


def imported(path: Path) -> set[str]:
    """Return the top-level packages and, of unitvar itself, the modules that a file imports anywhere in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return found | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_library_imports_neither_reproduction_nor_zoo_nor_integrations(path: Path) -> None:
    names = imported(path)
    assert not {name for name in names if name.partition(".")[0] in ("unitvar_reproduction", "zoo")}
    if path.parent.name != "integrations":
        assert not {name for name in names if name.startswith("unitvar.integrations")}
