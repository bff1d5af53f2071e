"""unitvar explain: plan and measurement of the user's own model, from the command line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.paper.test_cli import run
from unitvar.paper.cli import main
from unitvar.paper.explain import drawn

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


def test_plan_measurement_and_figure(folder: Path) -> None:
    done = run(
        "explain", "mine:Net", "--input", "64x16", "--kwargs", '{"width": 64}', "--plot", "out/f.png", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert "sphere weights, mode forward: 2 weights" in done.stdout
    assert "linear 64x16 after input" in done.stdout
    assert "2 weights in train mode, 4 runs" in done.stdout
    assert "signal variance" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert (folder / "out" / "f.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "arguments",
    [
        ["mine:tokens", "--input", "8x12:int:50", "--kwargs", '{"vocabulary": 50}'],
        ["mine:Two", "--input", "8x8", "--input", "5:int:8"],
        ["mine.ready", "--input", "8x16", "--initialize"],
    ],
)
def test_tokens_several_inputs_and_models_that_are_there_already(
    inside: None, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["explain", *arguments]) == 0
    assert "E g²" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere:Net", "--input", "8x16"], "'nowhere:Net' cannot be imported"),
        (["mine:Nett", "--input", "8x16"], "write package.module:name"),
        (["mine/net.py:Net", "--input", "8x16"], "cannot be imported"),
        (["mine:number", "--input", "8x16"], "mine:number is a int, not a function"),
        (["mine:wrong", "--input", "8x16"], "returned a list, not an nn.Module"),
        (["mine:broken", "--input", "8x16"], "failed: RuntimeError: no data"),
        (["mine:ready", "--input", "8x16", "--kwargs", '{"a": 1}'], "--kwargs has nothing to go to"),
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


def test_inputs_are_drawn_as_they_are_written() -> None:
    x = drawn("100x200")
    assert x.shape == (100, 200)
    assert abs(float(x.mean())) < 4 / 20000**0.5
    tokens = drawn("100x200:int:7")
    assert tokens.dtype == torch.int64
    assert (int(tokens.min()), int(tokens.max())) == (0, 6)
