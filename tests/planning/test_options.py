"""Options: inputs, rules, and errors that name the value."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import unitvar
from tests.planning.models import Odd, mlp


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "fwd"}, "mode='fwd' is not one of 'forward', 'backward', 'mean', 'paper'"),
        ({"distribution": "cauchy"}, "distribution='cauchy' is not one of"),
        ({"inputs": "none"}, "inputs='none' is not 'auto', 'standard', 'measured', (mean, std) or a list of pairs"),
        ({"inputs": [(0.0, 1.0), (0.0, 1.0)]}, "inputs has 2 pairs, but the example has 1"),
        ({"inputs": (0.0, -1.0)}, "the standard deviation 0 or more"),
        ({"rules": {"relu": lambda x: x}}, "write it with its namespace"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        unitvar.plan(mlp(), torch.zeros(2, 32), **change)


@pytest.mark.parametrize("example", [[torch.zeros(2, 32), torch.zeros(2)], (torch.zeros(2, 32), torch.zeros(2))])
def test_a_loaders_batch_is_explained(example: Any) -> None:
    with pytest.raises(TypeError, match=r"pass batch\[0\]"):
        unitvar.plan(mlp(), example)


def test_unknown_ops_are_sampled_and_reported() -> None:
    plan = unitvar.plan(Odd(), torch.zeros(64, 8))
    assert plan.unsupported == {"aten.cumsum": 2}
    assert "aten.cumsum (2)" in str(plan)
    assert plan.layers[0].second == pytest.approx(4.5, rel=0.4)  # (1 + ... + 8) / 8
    with pytest.raises(ValueError, match=r"aten\.cumsum"):
        unitvar.plan(Odd(), torch.zeros(64, 8), strict=True)


def test_a_rule_for_an_op_that_the_model_does_not_run_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    same = {"aten.max_pool2d": lambda x, *_: x, "aten.relu": lambda x: x, "aten.conv2d.default": lambda x, *_: x}
    unitvar.plan(model, torch.zeros(2, 3, 4, 4), rules=same)  # all are run: no warning, which would be an error
    for run in (unitvar.plan, unitvar.initialize_):
        with pytest.warns(
            UserWarning, match=r"rules\['aten.max_pol2d'\] was not used.*Did you mean 'aten.max_pool2d'"
        ) as w:
            run(model, torch.zeros(2, 3, 4, 4), rules={"aten.max_pol2d": lambda x, *_: x})
        assert "It runs aten.conv2d, aten.max_pool2d, aten.relu." in str(w[0].message)


@pytest.mark.usefixtures("untyped")
def test_a_rule_for_what_cannot_be_an_op_is_refused() -> None:
    for key, kind in ((nn.functional.relu, TypeError), (3, TypeError), ("relu", ValueError)):
        with pytest.raises(kind, match=r"is not the name of an op; .* like 'aten.max_pool2d'"):
            unitvar.plan(nn.Linear(2, 2), torch.zeros(1, 2), rules={key: lambda x: x})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"rules=\['aten.relu'\] is not a dict of op name → rule"):
        unitvar.plan(nn.Linear(2, 2), torch.zeros(1, 2), rules=["aten.relu"])  # type: ignore[arg-type]


def test_a_rule_can_be_added_and_overridden() -> None:
    seven = unitvar.plan(Odd(), torch.zeros(4, 8), rules={"aten.cumsum": lambda x, dim, *_: x.like(second=7.0)})
    assert seven.layers[0].second == 7.0
    assert not seven.unsupported

    @unitvar.rule("aten.cumsum")
    def cumsum(x: unitvar.Moments, dim: int, *_: Any) -> unitvar.Moments:
        return unitvar.Moments(x.mean, 9.0, x.shape)

    try:
        assert unitvar.plan(Odd(), torch.zeros(4, 8)).layers[0].second == 9.0
    finally:
        from unitvar.moments import RULES

        del RULES["aten.cumsum"]
