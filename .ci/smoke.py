"""Build wheel and sdist, install each alone into an empty environment, and try what a new user tries first.

An empty environment would download torch for every run. Ours has nothing but a link to the packages that the library
depends on, with those of this interpreter behind it: what is not declared is not found.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL = """
from torch import nn


def build(width=32):
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 4))
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command; show what it said if it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def needed(name: str, found: set[str]) -> set[str]:
    """Return the distributions that one depends on, by what it declares, extras left out."""
    for requirement in importlib.metadata.requires(name) or ():
        other = re.match(r"[\w.-]+", requirement)
        key = re.sub(r"[-_.]+", "-", other[0]).lower() if other else ""
        if "extra ==" in requirement or key in found:
            continue
        try:
            importlib.metadata.distribution(key)
        except importlib.metadata.PackageNotFoundError:  # for another platform
            continue
        found.add(key)
        needed(key, found)
    return found


def link_dependencies(site: Path) -> None:
    """Link every top-level file and folder of the dependencies of the library into a folder of packages."""
    for name in needed("unitvar", set()):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            top = file.parts[0]
            source = Path(str(distribution.locate_file(top)))
            if top not in ("..", "__pycache__", "bin") and not (site / top).exists() and source.exists():
                (site / top).symlink_to(source.resolve())


def try_out(package: Path, folder: Path) -> None:
    """Install a wheel or an sdist alone, and use it."""
    home = folder / package.suffix[1:]
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    link_dependencies(site)
    # The sdist is built by a second pip, which finds the build backend of this environment.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    run(*pip, package, cwd=folder)
    work = home / "work"
    work.mkdir()
    (work / "mine.py").write_text(MODEL, encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    snippet = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert snippet, "README.md has no Python block"
    run(python, "-c", snippet[1] + "\nprint(plan, report)", cwd=work)
    unitvar = home / "bin" / "unitvar"
    text = run(unitvar, "explain", "mine:build", "--input", "64x16", cwd=work)
    assert all(heading in text for heading in ("Plan", "Before", "After")), text
    run(unitvar, "activations", "relu", cwd=work)
    refused = subprocess.run([unitvar, "table1"], cwd=work, capture_output=True, text=True, check=False)
    assert refused.returncode == 2, refused
    assert "unitvar-paper table1" in refused.stderr, refused
    version = run(python, "-c", "import unitvar, importlib.metadata as m; print(m.version('unitvar'))", cwd=work)
    typed = run(
        python, "-c", "import importlib.resources as r; print((r.files('unitvar') / 'py.typed').is_file())", cwd=work
    )
    assert (version.strip(), typed.strip()) == (importlib.metadata.version("unitvar"), "True"), (version, typed)
    sys.stdout.write(f"{package.name}: installed alone, the README's first lines and unitvar explain run\n")


def main() -> None:
    """Build, look at what the wheel has, and try both."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT, cwd=folder)
        (wheel,) = (folder / "dist").glob("*.whl")
        (sdist,) = (folder / "dist").glob("*.tar.gz")
        tops = {entry.partition("/")[0] for entry in zipfile.ZipFile(wheel).namelist()}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"unitvar"}, tops
        for package in (wheel, sdist):
            try_out(package, folder)


if __name__ == "__main__":
    main()
