"""The unitvar command: what a plain installation can do for a model of the user's own, from the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import unitvar
from unitvar.cli import MOVED, _shape, main

MINE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 4))
    def forward(self, x):
        return self.body(x)

def tokens(vocabulary):
    return nn.Sequential(nn.Embedding(vocabulary, 16), Net())

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
    def forward(self, x, indices):
        return self.a(x)[indices]

ready = Net()
number = 3
def wrong():
    return [1, 2]
def broken():
    raise RuntimeError("no data")
"""


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "unitvar", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("COLUMNS", None)
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stand in the folder, in this process: a process of its own takes seconds."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield
    sys.modules.pop("mine", None)


def test_explain_has_headings_both_measurements_and_a_figure(folder: Path) -> None:
    done = run(
        "explain", "mine:Net", "--input", "64x16", "--kwargs", '{"width": 64}', "--plot", "out/f.png", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    headings = [lines[i - 1] for i, line in enumerate(lines) if line and set(line) == {"─"}]
    assert headings == ["Plan", "Before", "After"]
    assert "linear 64x16 after input" in done.stdout
    assert done.stdout.count("2 weights in train mode, 4 runs") == 2
    assert max(map(len, lines)) <= 80
    assert "…" not in done.stdout
    assert (folder / "out" / "f.png").read_bytes()[:4] == b"\x89PNG"


def test_as_it_is_and_as_planned_differ_by_the_plan(inside: None, capsys: pytest.CaptureFixture[str]) -> None:
    def second(*command: str) -> float:
        assert main([*command, "mine:Net", "--input", "500x16", "--json"]) == 0
        return float(json.loads(capsys.readouterr().out)[0]["variance"])

    # Inputs, weights and masks have numbers of their own: the first layer's input is not its weight.
    assert main(["explain", "mine:Net", "--input", "16x16", "--kwargs", '{"width": 16}']) == 0
    last = capsys.readouterr().out.split("After\n")[1]
    row = next(line for line in last.splitlines() if "body.0.weight" in line)
    assert float(row.split()[2]) == pytest.approx(1, abs=0.5)
    # torch's default for a linear layer: uniform, of variance 1 / (3 fan_in).
    assert second("measure") == pytest.approx(1 / 3, rel=0.5)
    assert main(["explain", "mine:Net", "--input", "500x16"]) == 0
    before, after = capsys.readouterr().out.split("After\n")
    row = next(line for line in after.splitlines() if "body.0.weight" in line)
    assert any(0.9 < float(word) < 1.1 for word in row.split() if word.replace(".", "").isdigit())
    assert row not in before


@pytest.mark.parametrize("command", ["explain", "plan", "measure"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["mine:tokens", "--input", "8x12:int:50", "--kwargs", '{"vocabulary": 50}'],
        ["mine:Two", "--input", "8x8", "--input", "5:int:8"],
        ["mine.ready", "--input", "8x16"],
    ],
)
def test_tokens_several_inputs_and_models_that_are_there_already(
    inside: None, capsys: pytest.CaptureFixture[str], command: str, arguments: list[str]
) -> None:
    assert main([command, *arguments]) == 0
    out = capsys.readouterr().out
    assert ("E g²" in out) == (command != "plan")
    assert ("mode forward" in out) == (command != "measure")


def test_plan_takes_the_options_of_the_function(inside: None, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--mode", "mean", "--distribution", "normal", "--only", "body.3.*", "--strict", "--json"]
    assert main(["plan", "mine:Net", "--input", "8x16", *options]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["body.3.weight"]
    assert main(["plan", "mine:Net", "--input", "8x16", "--gain", "0.5", "--json"]) == 0
    half = json.loads(capsys.readouterr().out)[0]["scale"]
    assert main(["plan", "mine:Net", "--input", "8x16", "--gain", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["scale"] == pytest.approx(2 * half)
    for option in ("mode", "distribution", "residual", "embeddings"):
        assert main(["plan", "mine:Net", "--input", "8x16", f"--{option}", "fwd"]) == 2
        assert f"unitvar: {option}='fwd' is not one of '" in capsys.readouterr().err


def test_explain_says_what_it_knows_as_soon_as_it_knows_it(
    inside: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large model takes minutes to measure; its plan does not wait for that."""
    said = []

    def measured(*_: object, **__: object) -> None:
        said.append(capsys.readouterr().out)
        raise KeyboardInterrupt

    monkeypatch.setattr("unitvar.cli._measured", measured)
    assert main(["explain", "mine:Net", "--input", "64x16"]) == 130
    assert "body.3.weight" in said[0]
    assert said[0].startswith("Plan\n────\n")
    assert capsys.readouterr().err == "unitvar: interrupted\n"


def test_explain_takes_lazy_layers(inside: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text(MINE + "lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))\n")
    assert main(["explain", "mine:lazy", "--input", "64x16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("0.weight ") for line in lines) == 3  # planned, as it is and as planned


def test_the_version_is_that_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"unitvar {unitvar.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere:Net", "--input", "8x16"], "'nowhere:Net' cannot be imported"),
        (["mine:Nett", "--input", "8x16"], "write package.module:name"),
        (["mine/net.py:Net", "--input", "8x16"], "cannot be imported"),
        (["mine:number", "--input", "8x16"], "mine:number is a int, not a model, its class or a function"),
        (["mine:wrong", "--input", "8x16"], "returned a list, not an nn.Module"),
        (["mine:broken", "--input", "8x16"], "failed: RuntimeError: no data"),
        (["mine:ready", "--input", "8x16", "--kwargs", '{"a": 1}'], "it takes no --kwargs"),
        (["mine:Net", "--input", "8x16", "--kwargs", '{"depth": 1}'], "unexpected keyword argument 'depth'"),
        (["mine:Net", "--input", "8x16", "--kwargs", "{width: 1}"], "is not JSON"),
        (["mine:Net", "--input", "8x16", "--kwargs", "[1]"], "is not a JSON object"),
        (["mine:Net", "--input", "8x"], "--input '8x' is not a shape"),
        (["mine:Net", "--input", "8,16"], "is not a shape"),
        (["mine:Net", "--input", "0x16"], "has a size of 0"),
        (["mine:Net", "--input", "8x16:int:0"], "has a size of 0"),
        (["mine:Net", "--input", "8x15"], "mine:Net cannot be run on --input 8x15: RuntimeError: mat1 and mat2"),
        (["mine:Net"], "--input is missing"),
    ],
)
def test_errors_are_clear(inside: None, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["explain", *arguments]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("figure.xyz", "is not a picture format: use ."),
        ("figure", "is not a picture format"),
        ("mine.py/f.png", "cannot be written"),
        ("folder.png", "is a folder; pass a file in it"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "measure"])
def test_a_bad_plot_is_refused_before_the_model_is_built(
    inside: None, capsys: pytest.CaptureFixture[str], command: str, path: str, message: str
) -> None:
    Path("folder.png").mkdir()
    assert main([command, "mine:broken", "--input", "8x16", "--plot", path]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    assert "no data" not in error


def test_a_plot_without_matplotlib_says_what_to_install(
    inside: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["measure", "mine:Net", "--input", "8x16", "--plot", "f.png"]) == 2
    assert "pip install 'unitvar[plot]'" in capsys.readouterr().err


def test_shapes_are_read_as_they_are_written() -> None:
    assert _shape("100x200") == ([100, 200], None)
    assert _shape("8:int:7") == ([8], 7)


def test_a_seed_gives_the_same_numbers_again(inside: None, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for seed in ("1", "1", "2"):
        torch.manual_seed(9)
        assert main(["measure", "mine:Net", "--input", "8x16", "--seed", seed]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] != found[2]


def test_activations_takes_names_import_paths_and_the_users_own(folder: Path) -> None:
    (folder / "acts.py").write_text("import torch\n\ndef act(x):\n    return torch.tanh(x) + 2\n")
    done = run("activations", "relu", "torch.nn.functional.silu", "torch.nn.ELU", "acts:act", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("0.3558", "0.6449", "4.3943", "torch.nn.functional.silu"))


def test_a_long_name_does_not_push_numbers_off(inside: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["activations", "torch.nn.modules.activation.Hardswish", "relu", "--dropout", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    relu = next(line for line in lines if line.startswith("relu"))
    assert relu.split()[1:] == ["0.3989", "0.5000", "0.5000", "1.000", "1.0000"]


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
def test_errors_of_activations_are_clear(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["activations", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("arguments", [[], ["--help"], ["explain", "-h"], ["plan", "-h"], ["activations", "-h"]])
def test_help_needs_no_torch_and_fits_in_80_columns(folder: Path, arguments: list[str]) -> None:
    (folder / "torch.py").write_text("raise RuntimeError('torch was imported')\n")  # the current folder comes first
    done = run(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: unitvar")
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_runs_must_be_one_or_more(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["measure", "mine:Net", "--input", "8x16", "--runs", "0"])
    assert ended.value.code == 2
    assert "--runs: 0 is not an integer of 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(MOVED))
def test_old_commands_say_in_one_line_where_they_went(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--out", "x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"unitvar {name} is now unitvar-paper {name}; install it from a checkout: pip install ./reproduction"


def test_the_old_package_says_where_it_went() -> None:
    done = subprocess.run([sys.executable, "-c", "import unitvar.paper"], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: unitvar.paper is now the package unitvar_reproduction")
