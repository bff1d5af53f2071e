"""Factors and cost: what is measured inside a network is what its layers hold."""

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from unitvar import activation_moments
from unitvar.init import sphere_
from unitvar_reproduction.experiments.cost import Cost
from unitvar_reproduction.experiments.factors import Factors, layer_factors


@pytest.mark.parametrize(("module", "name"), [(nn.ReLU(), "relu"), (nn.Tanh(), "tanh"), (nn.ELU(), "elu")])
def test_factors_of_normal_inputs_are_the_exact_ones(module: nn.Module, name: str) -> None:
    model = nn.Sequential(
        nn.Linear(400, 400, bias=False), module, nn.Dropout(0.5), nn.Linear(400, 400, bias=False), module
    )
    sphere_(model[0].weight, "identity")
    sphere_(model[3].weight, name, 0.5)
    first, second = layer_factors(model, torch.randn(2000, 400))
    exact = activation_moments(name)
    for found, rel in ((first, 0.02), (second, 0.05)):
        assert found["z"] == pytest.approx(1, rel=rel)
        assert found["f"] == pytest.approx(exact.second, rel=rel)
        assert found["slope"] == pytest.approx(exact.slope, rel=rel)


def test_ours_keeps_the_factors_of_table_1_in_every_layer_and_the_papers_sum_does_not(tmp_path: Path) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    Factors(out=tmp_path, seeds=2, examples=300).run(console)
    rows = json.loads((tmp_path / "factors.json").read_text())["rows"]
    last = {
        (row["init"], row["activation"]): row["layers"][-1]["f"]
        for row in rows
        if row["keep"] == 1 and row["inputs"] == "standardised"
    }
    # At keep rate 1 the sum of both factors halves a ReLU's second moment at each of seven layers.
    assert last["paper", "relu"] == pytest.approx(0.5 / 1.5 / 2**6, rel=0.6)
    assert last["forward", "relu"] == pytest.approx(0.5, rel=0.4)
    assert json.loads((tmp_path / "factors.json").read_text())["config"]["examples"] == 300
    assert (tmp_path / "factors.png").stat().st_size > 10_000
    assert "…" not in console.export_text()


def test_factors_are_said_to_be_of_as_many_images_as_there_were(tmp_path: Path) -> None:
    Factors(out=tmp_path, seeds=1, examples=5000).run(Console(quiet=True))
    assert json.loads((tmp_path / "factors.json").read_text())["config"]["examples"] == 1000


def test_cost_compares_both_networks_in_both_modes(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    Cost(out=tmp_path, rounds=2).run(Console(quiet=True))
    assert torch.get_num_threads() == threads
    rows = json.loads((tmp_path / "cost.json").read_text())["rows"]
    assert [row["mode"] for row in rows] == ["training", "evaluation"] * 2
    assert all(row["low"] <= row["median"] <= row["high"] for row in rows)
