"""The command line, as a user meets it: in a process of its own, piped."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from unitvar_reproduction import cli
from unitvar_reproduction.commands import COMMANDS
from unitvar_reproduction.sweep.run import TrialError

EXPERIMENTS = ("table1", "stability", "forward", "backward", "factors", "digits", "reestimation", "cost")
PICTURES = ("stability", "forward", "forward_others", "backward", "factors", "digits", "reestimation")


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "unitvar_reproduction", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_table1_prints_and_saves(tmp_path: Path) -> None:
    done = run("table1", "--out", "found", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("0.216 ✗", "0.4644", "0.444 ✗", "0.4559", "0.671 ✗", "0.6681"))
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "…" not in done.stdout
    saved = json.loads((tmp_path / "found" / "table1.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in saved["rows"]] == ["identity", "relu", "gelu", "tanh", "elu"]


def test_reproduce_runs_every_experiment(tmp_path: Path) -> None:
    done = run("reproduce", "--quick", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "reproduced").iterdir() if path.is_file()}
    assert names == {f"{n}.json" for n in EXPERIMENTS} | {f"{n}.png" for n in PICTURES} | {"index.html"}
    *_, last = lines = done.stdout.splitlines()
    assert last == f"The report: {tmp_path / 'reproduced' / 'index.html'}"
    assert max(len(line) for line in lines[:-1]) <= 80
    assert sum(line.startswith("•") for line in lines) == 3


def test_without_arguments_it_says_what_there_is(tmp_path: Path) -> None:
    done = run(cwd=tmp_path)
    assert all(word in done.stdout for word in ("reproduce", "table1", "report"))


def test_trials_that_failed_are_named_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(self: object, console: object) -> None:
        raise TrialError("2 of 5 trials failed; the others are saved")

    monkeypatch.setattr("unitvar_reproduction.experiments.table1.Table1.run", failing)
    assert cli.main(["table1"]) == 2
    assert capsys.readouterr().err == "unitvar-paper: 2 of 5 trials failed; the others are saved\n"


def test_every_command_stands_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    page = page.partition("## `unitvar-paper`")[2]
    shown = set(re.findall(r"`(?:unitvar-paper )?([a-z0-9]+)\b[^`]*`", page))
    commands = {kind.__metadata__[0].name for kind in get_args(COMMANDS)}
    assert commands <= shown
