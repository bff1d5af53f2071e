"""Depth: what each layer multiplies, over many layers."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from unitvar import activation_moments
from unitvar_reproduction.experiments import depth
from unitvar_reproduction.experiments.depth import FILLS, Case, Depth, chain, second_moments


def trial(case: Case, fill: str, *, layers: int, width: int, seed: int = 0) -> list[float]:
    torch.manual_seed(seed)
    net = chain(case, depth=layers, width=width)
    x = torch.randn(64, width) if case.network == "dense" else torch.randn(4, 3, 8, 8)
    FILLS[fill](net, x)
    return second_moments(net, x)


@pytest.mark.parametrize(("fill", "square"), [("kaiming_normal_", 2.0), ("xavier_uniform_", 1.0), ("orthogonal_", 1.0)])
def test_torchs_own_multiply_by_what_they_leave_out(fill: str, square: float) -> None:
    # s² E f² / p a layer: DESIGN §2 with the s of the initialiser instead of ours.
    case, layers = Case("dense", "relu", 0.3), 30
    ends = [trial(case, fill, layers=layers, width=256, seed=seed) for seed in range(4)]
    grown = sum(q[-1] / q[0] for q in ends) / len(ends)
    expected = (square * activation_moments("relu").second / 0.7) ** (layers - 1)
    assert 1 / 3 < grown / expected < 3


@pytest.mark.parametrize("network", ["dense", "conv"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_measured_pass_gives_unit_second_moments_on_its_own_batch(network: str, activation: str) -> None:
    # Other dropout masks than those of the pass: their share of E z² averages out over the batch.
    found = trial(Case(network, activation, 0.3), "initialize_, measured", layers=10, width=64)
    assert all(0.7 < q < 1.4 for q in found)


def test_the_command_saves_draws_and_marks_what_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("dense", "conv")
    cases = tuple(Case(kind, name, 0.3) for kind in kinds for name in ("relu", "elu"))
    monkeypatch.setattr(depth, "CASES", cases)
    console = Console(record=True, width=80)
    Depth(out=tmp_path, seeds=1, dense=(4, 32), conv=(3, 8), examples=(8, 2)).run(console)
    printed = console.export_text()
    assert printed.count("conv ") == 2
    assert "…" not in printed
    assert (tmp_path / "depth.json").stat().st_size > 1000
    assert (tmp_path / "depth.png").stat().st_size > 10_000
