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
    assert "deviations grow " in " ".join(str(gelu).split())
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
        "inputs: standard (mean 0, std 1), as the example is constant\n"
        "weight      fan-in       E x      E x²     scale  signal   noise\n"
        "0.weight        27         0         1         1   100 %     0 %\n"
        "  conv2d 8x3x3x3 after input\n"
        "5.weight         8    0.3989         1         1    34 %    50 %\n"
        "  linear 4x8 after relu → dropout 0.5 → maxpool 2x2\n"
        "shares of E z²: signal tells examples apart, noise comes from dropout masks\n"
        "chi 1.000 per layer over 1 layer without a norm: deviations do not grow"
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


def test_one_is_not_many_and_nothing_is_zero() -> None:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x - x.mean(-1, keepdim=True))

    text = str(unitvar.plan(Alone(), torch.randn(64, 8, dtype=torch.float64).float()))
    assert text.startswith("sphere weights, mode forward: 1 weight, 0 left alone")
    plan = unitvar.plan(nn.Linear(8, 4), torch.tensor([[1.0] * 4 + [-1.0] * 4]) + 1e-11)
    row = next(line for line in str(plan).splitlines() if line.startswith("weight  "))
    assert [line.split()[2] for line in str(plan).splitlines() if line.split()[:2] == ["weight", "8"]] == ["0"], row


def test_what_only_left_out_is_one_line() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(30)))
    model[3].requires_grad_(False)
    plan = unitvar.plan(model, torch.zeros(2, 4), only="0.*")
    left = [line for line in str(plan).splitlines() if line.startswith("left alone")]
    assert left == [
        "left alone: 3.weight (frozen: requires_grad is False)",
        "left alone: 28 weights not selected by only='0.*'",
    ]
    assert len(plan.skipped) == 29  # each with its reason


def test_a_pattern_that_matches_nothing_gets_a_suggestion() -> None:
    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Sequential(nn.Linear(4, 2))})
    model.forward = lambda x: model["head"](model["body"](x))  # type: ignore[method-assign]
    for pattern, guess in (("head", "head.*"), ("head.0", "head.0.*"), ("hed.0.weight", "head.0.weight")):
        with pytest.raises(ValueError, match=r"matches no parameter\. Did you mean") as caught:
            unitvar.plan(model, torch.zeros(2, 4), only=pattern)
        assert f"only={pattern!r} matches no parameter. Did you mean {guess!r}? Names are" in str(caught.value)
    with pytest.raises(ValueError, match=r"only='zzz' matches no parameter\. Names are those of named_parameters"):
        unitvar.plan(model, torch.zeros(2, 4), only="zzz")
    assert len(unitvar.plan(model, torch.zeros(2, 4), only="head.*")) == 1
