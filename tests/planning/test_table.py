"""What a plan says: a table of 80 columns, and advice."""

import pytest
import torch
from torch import nn

import unitvar
from tests.planning.models import mlp


def test_chi_is_reported_with_advice() -> None:
    gelu = unitvar.plan(mlp(depth=10, act=nn.GELU, dropout=0.2), torch.zeros(2, 32))
    assert gelu.chi == pytest.approx(unitvar.activation_moments("gelu").chi, rel=1e-6)
    assert gelu.depth == 9
    assert "depth amplifies deviations" in " ".join(str(gelu).split())
    assert 'method="measured"' in str(gelu)
    relu = unitvar.plan(mlp(depth=10), torch.zeros(2, 32))
    assert relu.chi == pytest.approx(1.0)
    assert "amplifies" not in str(relu)
    normed = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())))
    assert unitvar.plan(normed, torch.zeros(2, 8)).chi <= 1


def test_a_plan_reads_like_a_table_of_80_columns() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4)
    )
    plan = unitvar.plan(
        model, torch.zeros(2, 3, 4, 4), rules={"aten.max_pool2d": lambda x, *_: x.like(shape=(2, 8, 1, 1))}
    )
    assert str(plan) == (
        "sphere weights, mode forward: 2 weights, 0 left alone\n"
        "weight      fan-in       E x      E x²     scale\n"
        "0.weight        27         0         1         1\n"
        "  conv2d 8x3x3x3 after input\n"
        "5.weight         8    0.3989         1         1\n"
        "  linear 4x8 after relu → dropout 0.5 → maxpool 2x2\n"
        "chi 1.000 a layer over 1 layers without a norm: deviations do not grow"
    )
    long = nn.Sequential()
    inside = long
    for _ in range(5):
        inside.add_module("a_rather_long_name_of_a_block", block := nn.Sequential())
        inside = block
    inside.append(nn.Linear(4, 4))
    text = str(unitvar.plan(long, torch.zeros(1, 4)))
    assert max(map(len, text.splitlines())) <= 80
    assert "".join(text.split()).count("a_rather_long_name_of_a_block") == 5
    assert {"name", "op", "scale", "path"} <= plan.rows[0].keys()
