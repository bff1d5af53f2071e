"""What holds for the package as a whole: what importing it costs, and that what its pages say runs."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import unitvar

ROOT = Path(__file__).parent.parent
MODULES = [  # unitvar.paper only says where it went
    module.name for module in pkgutil.walk_packages(unitvar.__path__, "unitvar.") if module.name != "unitvar.paper"
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))  # which `make docs` runs


def test_version_is_the_one_installed() -> None:
    assert unitvar.__version__ == version("unitvar")
    assert f"version: {unitvar.__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_oldest_torch_that_is_declared_is_the_one_that_is_pinned() -> None:
    declared = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pinned = re.search(r"^torch==([\d.]+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert declared is not None
    assert pinned is not None
    assert f"{pinned[1]}.".startswith(f"{declared[1]}.")


def test_import_brings_nothing_that_torch_does_not() -> None:
    """Modules are what an import costs: those of every optional package wait for their first use."""
    script = "import sys, torch; before = set(sys.modules); import unitvar; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    new = {name for name in done.stdout.split() if not name.startswith("unitvar")}
    packages = {name.partition(".")[0] for name in new}
    assert packages <= sys.stdlib_module_names | {"numpy", "torch"}


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_run(module: str) -> None:
    found = importlib.import_module(module)
    results = doctest.testmod(found, extraglobs={"torch": torch})
    assert results.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_snippets_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Every Python block of a page, in order, in one fresh interpreter, with warnings as errors."""
    content = page.read_text(encoding="utf-8")
    found = re.findall(r"^ *```(python|output)\n(.*?)^ *```$", content, re.MULTILINE | re.DOTALL)  # in lists, too
    assert len(found) == sum(line.lstrip().startswith(("```py", "```output")) for line in content.splitlines())
    fences = [(kind, textwrap.dedent(text)) for kind, text in found]
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error::UserWarning",
            "-c",
            "\n".join(text for kind, text in fences if kind == "python"),
        ],
        cwd=tmp_path,
        # The zoo and the reproduction, as from a checkout.
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # What a page says a line or a block prints, it prints.
    promised = [
        line
        for kind, text in fences
        for line in (
            re.findall(r"^print\(.*?\)  # (.*)$", text, re.MULTILINE) if kind == "python" else text.splitlines()
        )
    ]
    assert [line for line in done.stdout.splitlines() if line] == promised


@pytest.mark.parametrize("page", [*PAGES, *TUTORIALS, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", prose):  # models[0](x) in code is no link
        assert (page.parent / target).exists(), target


def test_every_public_name_is_there_and_unknown_ones_are_not() -> None:
    script = (
        "import unitvar; assert set(unitvar.__all__) <= set(dir(unitvar)); "
        "[getattr(unitvar, name) for name in unitvar.__all__]; from unitvar import *; print(reestimate_bn_.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "reestimate_bn_"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        unitvar.nothing  # noqa: B018
