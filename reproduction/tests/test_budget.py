"""What the paper's scale costs, against sums written out."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from unitvar_reproduction.experiments.budget import Budget, lines, step_flop


def test_a_convolution_costs_three_times_two_operations_for_each_weight_and_pixel_but_the_first() -> None:
    # Forward, gradient of the weights, gradient of the input; nobody asks for that of the images.
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.Flatten())
    first, second = (2 * 32 * 32 * weights for weights in (3 * 8 * 9, 8 * 16 * 9))
    assert step_flop(model) == 2 * first + 3 * second


def test_cost_is_the_same_for_any_batch() -> None:
    flop = [step_flop(next(iter(lines())).make(), images) for images in (1, 4)]
    assert flop[0] == flop[1]


def test_every_network_of_the_paper_is_counted_and_saved(tmp_path: Path) -> None:
    Budget(tmp_path, teraflops=20).run(Console(quiet=True))
    rows = json.loads((tmp_path / "budget.json").read_text())["rows"]
    assert [row["command"] for row in rows] == ["vgg", "trainability", *["densenet"] * 4]
    for row in rows:
        assert row["petaflop"] == pytest.approx(
            row["gigaflop_an_image"] * row["images"] * row["epochs"] * row["networks"] / 1e6
        )
        assert row["gpu_hours"] == pytest.approx(row["petaflop"] * 1e15 / 20e12 / 3600)
    assert torch.get_default_device() == torch.device("cpu")


def test_a_speed_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match=r"--teraflops 0 is not above 0"):
        Budget(teraflops=0)


def test_the_docs_have_the_saved_numbers() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "reproduction.md").read_text(encoding="utf-8")
    saved = json.loads((root / "reproduction" / "results" / "budget.json").read_text(encoding="utf-8"))["rows"]
    for row in saved[:4]:
        cells = f"{row['networks']} × {row['epochs']} | {row['gigaflop_an_image']:.2f} | {row['petaflop']:,.0f} |"
        assert cells in page
