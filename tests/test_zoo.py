"""The zoo: every family is traced, every weight found or left alone for a reason, and predicted is measured."""

import pytest
import torch

import unitvar
from tests import zoo
from unitvar_reproduction.experiments.zoo import row

FAMILIES = {**zoo.PLAIN, **zoo.OTHER}
NOT_YET = {
    family: pytest.mark.xfail(reason=reason)
    for family, reason in {
        "LeViT": "two of 22 weights, both after attention and Hardswish, are 1.8 × off",
        "NF-ResNet": "its one weight, after 30 standardised ones, is 1.53 × off",
    }.items()
}


@pytest.mark.parametrize("family", FAMILIES)
def test_predicted_is_measured(family: str) -> None:
    found = row(family, FAMILIES[family], draws=16)  # draws of small networks differ much
    assert found.near / found.measured >= 0.95, found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", zoo.HUGGING_FACE)
def test_predicted_is_measured_in_transformers(family: str) -> None:
    found = row(family, zoo.HUGGING_FACE[family], draws=4)
    assert found.near / found.measured >= 0.95, found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", [pytest.param(f, marks=NOT_YET.get(f, ())) for f in zoo.TIMM])
def test_predicted_is_measured_in_timm(family: str) -> None:
    found = row(family, zoo.TIMM[family], draws=24)  # a gate of a few units gives few numbers a draw
    assert found.near / found.measured >= 0.97, found
    assert 1 / 3 < found.worst < 3, found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", [*FAMILIES, *zoo.HUGGING_FACE, *zoo.TIMM])
def test_no_weight_is_skipped_in_silence(family: str) -> None:
    torch.manual_seed(0)
    model, example = {**FAMILIES, **zoo.HUGGING_FACE, **zoo.TIMM}[family]()
    plan = unitvar.plan(model, example)
    weights = {n for n, p in model.named_parameters(remove_duplicate=False) if p.dim() > 1}
    assert weights == set(plan.skipped) | {layer.name for layer in plan}
    assert not plan.unsupported
    assert all(len(line) <= 80 for line in str(plan).splitlines())


# What measure says of the others; whether they train was not tried.
UNHEALTHY = {
    "VGG": "gradient norm falls to",  # 13 convolutions with dropout and no norm, torch's default
    "U-Net": "gradient norm falls to",  # no norm, torch's default
    "CaiT": "gradient norm falls to",  # timm's own
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", [*FAMILIES, *zoo.HUGGING_FACE, *zoo.TIMM])
def test_the_zoo_is_healthy_under_its_own_initialisation_and_under_ours(family: str) -> None:
    torch.manual_seed(0)
    model, example = {**FAMILIES, **zoo.HUGGING_FACE, **zoo.TIMM}[family]()
    report = unitvar.measure(model, example, runs=1)
    assert report.healthy == (family not in UNHEALTHY), report.verdict
    assert UNHEALTHY.get(family, "") in report.verdict
    unitvar.initialize_(model, example)
    assert unitvar.measure(model, example, runs=1).healthy
