"""The command line, as a user meets it: in a process of its own, piped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unitvar.paper import cli
from unitvar.paper.sweep import TrialError

EXPERIMENTS = ("table1", "stability", "forward", "backward", "factors", "digits", "reestimation", "cost")
PICTURES = ("stability", "forward", "forward_others", "backward", "factors", "digits", "reestimation")


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "unitvar"), *arguments]
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
    names = {path.name for path in (tmp_path / "results").iterdir() if path.is_file()}
    assert names == {f"{n}.json" for n in EXPERIMENTS} | {f"{n}.png" for n in PICTURES} | {"index.html"}
    *_, last = lines = done.stdout.splitlines()
    assert last == f"The report: {tmp_path / 'results' / 'index.html'}"
    assert max(len(line) for line in lines[:-1]) <= 80
    assert sum(line.startswith("•") for line in lines) == 3


def test_activations_takes_names_import_paths_and_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\n\ndef act(x):\n    return torch.tanh(x) + 2\n")
    done = run("activations", "relu", "torch.nn.functional.silu", "torch.nn.ELU", "mine:act", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("0.3558", "0.6449", "4.3943", "torch.nn.functional.silu"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rleu"], "did you mean 'relu'"),
        (["nowhere.act"], "'nowhere.act' cannot be imported"),
        (["torch.nn.nothing"], "cannot be imported"),
        (["torch.nn.functional.softmax"], "softmax"),
        (["relu", "--dropout", "1"], r"dropout=1.0 is not in [0, 1)"),
        (["relu", "--std", "-1"], "std=-1.0 is negative"),
    ],
)
def test_errors_are_clear_and_have_no_traceback(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run("activations", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_without_arguments_it_says_what_there_is(tmp_path: Path) -> None:
    done = run(cwd=tmp_path)
    assert all(word in done.stdout for word in ("reproduce", "table1", "activations"))


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    script = "import sys; sys.modules['tyro'] = None; from unitvar.paper.cli import main; sys.exit(main(['table1']))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'unitvar[paper]'" in done.stderr


def test_trials_that_failed_are_named_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(self: object, console: object) -> None:
        raise TrialError("2 of 5 trials failed; the others are saved")

    monkeypatch.setattr("unitvar.paper.table1.Table1.run", failing)
    assert cli.main(["table1"]) == 2
    assert capsys.readouterr().err == "unitvar: 2 of 5 trials failed; the others are saved\n"
