"""Findings of long experiments: verdicts by the numbers, and sentences that have them."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.paper import test_densenet, test_vgg
from unitvar.paper.arms import ARMS
from unitvar.paper.densenet.summary import sensitivity_rows
from unitvar.paper.densenet.summary import summarise as summarise_densenets
from unitvar.paper.findings.densenet import densenet
from unitvar.paper.findings.section import verdict
from unitvar.paper.findings.vgg import vgg
from unitvar.paper.vgg.experiment import summarise as summarise_vggs
from unitvar.paper.vgg.trial import Trial


@pytest.mark.parametrize(
    ("parts", "expected"), [((True, True), "held"), ((True, False), "partly"), ((False, False), "not held")]
)
def test_a_claim_is_held_in_all_parts_in_some_or_in_none(parts: tuple[bool, ...], expected: str) -> None:
    assert verdict(parts) == expected
    assert verdict(parts, shrunk=True) == expected.replace("not held", "not at this scale")


def vgg_payload(nesterov: tuple[float, float], adam: tuple[float, float]) -> dict[str, Any]:
    records = [
        test_vgg.record(optimiser, rate, init, error if rate == 1e-3 else 0.9)
        for optimiser, errors in (("nesterov", nesterov), ("adam", adam))
        for init, error in zip(("paper", "he"), errors, strict=True)
        for rate in (1e-2, 1e-3)
    ]
    records.append(test_vgg.record("adam", 1e-3, "plan", 0.123))
    config = {
        "scale": "small",
        "base": asdict(Trial("adam", 1e-3, "paper", 0, width=16)),
        "images": {"training": 45000},
    }
    return {
        "experiment": "vgg_small",
        "config": config,
        "done": {"trials": 9, "planned": 12},
        "rows": summarise_vggs(records),
    }


@pytest.mark.parametrize(
    ("nesterov", "adam", "expected"),
    [
        ((0.1, 0.2), (0.1, 0.2), "held"),
        ((0.1, 0.2), (0.2, 0.1), "partly"),
        ((0.2, 0.1), (0.2, 0.1), "not at this scale"),
    ],
)
def test_vgg_is_judged_by_the_errors_of_both_optimisers(
    nesterov: tuple[float, float], adam: tuple[float, float], expected: str
) -> None:
    section = vgg(vgg_payload(nesterov, adam))
    assert section.verdict == expected
    # The records' test error is a point above the validation error.
    assert f"{100 * nesterov[0] + 1:.2f} % with the paper's weights, {100 * nesterov[1] + 1:.2f}" in section.found[0]
    assert "1 of 2 of the rates learn" in section.found[0]
    assert "90.0 % with the paper's weights" in section.found[2]
    assert "ours, plan with Adam 13.30 %" in section.found[3]
    assert "first stack 16 wide" in section.ran


def densenet_payload(gain: float) -> dict[str, Any]:
    errors = dict(zip(ARMS, (0.30, 0.29, 0.30 - gain, 0.27), strict=True))
    records = [test_densenet.record(seed, errors, 3, 10) for seed in range(3)]
    for record in records:
        record["config"] = asdict(replace(test_densenet.SMALL, seed=record["config"]["seed"]))
    return {
        "experiment": "densenet_small",
        "config": {"scale": "small"},
        "done": {"trials": 3, "planned": 9},
        "rows": summarise_densenets(records),
        "sensitivity": sensitivity_rows(records),
    }


@pytest.mark.parametrize(("gain", "expected"), [(0.02, "held"), (-0.01, "not at this scale")])
def test_densenets_are_judged_by_the_papers_arm(gain: float, expected: str) -> None:
    section = densenet(densenet_payload(gain))
    assert section.verdict == expected
    assert f"{100 * (0.30 - gain):.2f} ± 0.00 % with the variance re-estimated" in section.found[0]
    assert "lower error in 2 of 2 cases" in section.found[-1]
    printed = {(row[2], row[3]): row[-2] for row in section.tables[0].rows}
    assert [row[-1] for row in section.tables[0].rows] == ["–"] * 4 + ["5.77", "–", "–", "–"]
    assert printed["half-way", "as trained"] == "6.37"
    assert printed["at the end", "variance only"] == "5.38"
    assert printed["at the end", "dropout on"] == "–"
    assert section.tables[1].rows == (("1", "50.00 ± 0.00", "0.00 ± 0.00"),)
