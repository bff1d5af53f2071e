"""Findings of long experiments: verdicts by the numbers, and sentences that have them."""

from dataclasses import asdict, replace
from typing import Any

import pytest

import test_densenet
import test_vgg
from unitvar_reproduction.experiments.densenet.section import densenet
from unitvar_reproduction.experiments.densenet.summary import sensitivity_rows
from unitvar_reproduction.experiments.densenet.summary import summarise as summarise_densenets
from unitvar_reproduction.experiments.section import Section, verdict
from unitvar_reproduction.experiments.sections.trained import mnist
from unitvar_reproduction.experiments.vgg.experiment import summarise as summarise_vggs
from unitvar_reproduction.experiments.vgg.experiment import written_error
from unitvar_reproduction.experiments.vgg.section import vgg
from unitvar_reproduction.experiments.vgg.trial import Trial
from unitvar_reproduction.statistics import estimate
from unitvar_reproduction.training.batchnorm import VARIANTS


@pytest.mark.parametrize(
    ("parts", "expected"), [((True, True), "held"), ((True, False), "partly"), ((False, False), "not held")]
)
def test_a_claim_is_held_in_all_parts_in_some_or_in_none(parts: tuple[bool, ...], expected: str) -> None:
    assert verdict(parts) == expected
    assert verdict(parts, shrunk=True) == expected.replace("not held", "not at this scale")
    assert verdict(()) == ""  # nothing was run


def vgg_payload(
    nesterov: tuple[float, float],
    adam: tuple[float, float],
    large: tuple[float, float] = (0.9, 0.9),
    rates: tuple[float, ...] = (1e-2,),
) -> dict[str, Any]:
    """Make up the errors of the paper's weights and of He's at the best rate, and at large ones."""
    records = [
        test_vgg.record(optimiser, rate, init, error if rate == 1e-3 else large[init == "he"])
        for optimiser, errors in (("nesterov", nesterov), ("adam", adam))
        for init, error in zip(("paper", "he"), errors, strict=True)
        for rate in (*rates, 1e-3)
    ]
    records += [{**r, "config": {**r["config"], "seed": 1}} for r in records if r["config"]["rate"] == 1e-3]
    records.append(test_vgg.record("adam", 1e-3, "plan", 0.123))
    config = {
        "scale": "small",
        "base": asdict(Trial("adam", 1e-3, "paper", 0, width=16)),
        "images": {"training": 45_000, "test": 10_000},
    }
    return {
        "experiment": "vgg_small",
        "config": config,
        "done": {"trials": 9, "planned": 12},
        "rows": summarise_vggs(records),
    }


@pytest.mark.parametrize(
    ("nesterov", "adam", "large", "expected"),
    [
        ((0.1, 0.2), (0.1, 0.2), (0.7, 0.9), "partly"),  # but the first layer does not wait
        ((0.1, 0.2), (0.1, 0.2), (0.9, 0.9), "partly"),  # lower errors, but no rate that only He's cannot learn at
        ((0.1, 0.2), (0.2, 0.1), (0.7, 0.9), "partly"),
        ((0.2, 0.1), (0.2, 0.1), (0.9, 0.9), "not at this scale"),
        ((0.2, 0.1), (0.2, 0.1), (0.9, 0.7), "not at this scale"),
    ],
)
def test_vgg_is_judged_by_the_errors_of_both_optimisers_and_by_the_rates_that_learn(
    nesterov: tuple[float, float], adam: tuple[float, float], large: tuple[float, float], expected: str
) -> None:
    section = vgg(vgg_payload(nesterov, adam, large))
    assert section.verdict == expected
    # The records' test error is a point above the validation error.
    errors = f"{100 * nesterov[0] + 1:.2f} ± 0.00 % with the paper's weights, {100 * nesterov[1] + 1:.2f} ± 0.00 %"
    assert errors in section.found[0]
    assert f"learns at {1 + (large[0] < 0.8)} of 2 rates with the paper's weights" in section.found[0]
    assert f"{100 * large[0]:.1f} % with the paper's weights" in section.found[2]
    assert "unitvar, plan with Adam 13.30 %" in section.found[4]
    assert "first stack 16 wide" in section.ran


def test_vgg_holds_only_if_the_error_is_lower_beyond_chance_and_the_first_layer_waits() -> None:
    rates = (0.01, 0.02, 0.03)
    for waits, expected in (((0, 0, 0, 3), "partly"), ((1, 1, 2, 3), "held")):
        payload = vgg_payload((0.1, 0.2), (0.1, 0.2), (0.7, 0.9), rates)
        for row in payload["rows"]:
            row["waited"] = waits if row["init"] == "he" else (0, 0, 0, 0)
        section = vgg(payload)
        assert section.verdict == expected
        assert "at most 0 epochs with the paper's weights and 3 epochs with He's" in section.found[3]
    fewer = vgg_payload((0.1, 0.2), (0.1, 0.2), (0.7, 0.9), rates[:2])  # four pairs of rates: chance may do it
    fewer["rows"][1]["waited"] = fewer["rows"][3]["waited"] = (1, 2, 3)
    assert vgg(fewer).verdict == "partly"
    ours, he = payload["rows"][:2]
    he["by_seed"] = {"0": 0.9}
    assert vgg(payload).verdict == "partly"  # a single seed cannot tell
    # Over seeds it is the difference that counts, not how much the networks of each kind vary.
    for change, expected in ((0.0051, "held"), (0.0099, "partly")):
        ours["by_seed"], he["by_seed"] = {"0": 0.1, "1": 0.3}, {"0": 0.105, "1": 0.3 + change}
        section = vgg(payload)
        assert section.verdict == expected
        words = "lower" if expected == "held" else "not significant"
        assert f"points, paired by seed: {words}). The network learns at 4 of 4 rates" in section.found[0]


def test_half_the_width_is_judged_by_its_errors_alone_and_says_what_integrating_dropout_changes() -> None:
    records = [
        {**test_vgg.record("nesterov", rate, init, error + 0.01 * seed, seed=seed), "integrated": {"error": error}}
        for init, rate, error in (("paper", 1e-2, 0.2), ("he", 1e-3, 0.3), ("plan", 1e-2, 0.25))
        for seed in (0, 1)
    ]
    payload = vgg_payload((0.1, 0.2), (0.1, 0.2))
    payload |= {"rows": summarise_vggs(records), "config": {**payload["config"], "scale": "medium"}}
    section = vgg(payload)
    assert (section.title[-14:], section.verdict) == (", half as wide", "held")
    # The records' test error is 0.01 above the validation error, and 0.01 more with the second seed.
    assert "the test error of 6 networks changes by -2.00 to -1.00 points (in the mean -1.50" in section.found[-1]
    payload["rows"] = summarise_vggs(records[:1] + records[2:])
    assert vgg(payload).verdict == "not at this scale"  # one pair of seeds has no interval


def test_the_error_with_dropout_on_stands_beside_that_of_its_rate() -> None:
    payload = vgg_payload((0.1, 0.2), (0.1, 0.2), (0.7, 0.9))
    assert {line[-1] for line in vgg(payload).tables[1].rows} == {"–"}  # trials from before it was measured
    records = [
        {**test_vgg.record("adam", rate, "he", 9 * rate), "dropout_on": {"error": 7 * rate}} for rate in (0.01, 0.1)
    ]
    payload["rows"] = summarise_vggs(records)
    assert (
        "Of 1 networks that learn and were tested both ways, 1 have a lower error with dropout left on"
        in vgg(payload).found[-1]
    )
    assert "change by -2.0 to -2.0 points" in vgg(payload).found[-1]
    assert vgg(payload).tables[1].rows == (("Adam", "He", "0.1", "90.0", "70.0"), ("Adam", "He", "0.01", "9.0", "7.0"))


def test_what_the_last_layer_puts_out_before_training_is_said_of_each_initialisation() -> None:
    payload = vgg_payload((0.1, 0.2), (0.1, 0.2))
    assert not any("Before training" in sentence for sentence in vgg(payload).found)
    for row, seconds in zip(payload["rows"][:2], ((0.8, 4e-4), (None, 0.22)), strict=True):
        row["start"] = {"on": [1.0, seconds[0]], "off": [1.0, seconds[1]]}
    assert vgg(payload).found[-1].endswith("dropout on and off: paper 0.8 and 0.0004, He not finite and 0.22.")


def test_vgg_is_not_judged_before_both_have_been_tried_at_the_same_rates() -> None:
    payload = vgg_payload((0.1, 0.2), (0.1, 0.2), (0.7, 0.9))
    ours, he = payload["rows"][:2]
    assert vgg({**payload, "rows": [ours]}).verdict == ""
    assert vgg({**payload, "rows": [ours]}).found == ("Not enough trials yet to compare.",)
    fewer = {**he, **{name: he[name][:1] for name in ("rates", "errors", "dropout_on")}}
    assert vgg({**payload, "rows": [ours, fewer, *payload["rows"][2:]]}).verdict == ""


def test_a_network_that_diverged_is_told_beside_the_error_of_the_others() -> None:
    records = [test_vgg.record("adam", 1e-3, "he", 0.2, seed=seed, diverged=seed == 2) for seed in range(3)]
    (row,) = summarise_vggs(records)
    assert written_error(row, " %") == "21.00 ± 0.00 % (1 of 3 diverged)"
    (row,) = summarise_vggs([test_vgg.record("adam", 1e-3, "he", 0.2, diverged=True)])
    assert written_error(row) == "(diverged)"


def test_a_rate_that_diverged_is_not_given_an_error() -> None:
    payload = vgg_payload((0.1, 0.2), (0.1, 0.2), (0.7, 0.9))
    payload["rows"][1]["errors"][0] = None  # He's at 0.01
    section = vgg(payload)
    assert "70.0 % with the paper's weights, diverged with He's" in section.found[2]
    assert ("Nesterov momentum", "He", "0.01", "diverged", "–") in section.tables[1].rows


def test_densenets_that_diverged_are_counted_and_none_that_did_not_is_said() -> None:
    payload = densenet_payload(0.02)
    assert "diverged" not in densenet(payload).ran
    payload["done"]["diverged"] = 2
    assert "networks done, 2 of which diverged." in densenet(payload).ran
    assert "re-estimated from" not in densenet(payload).ran
    fewer = [{**row, "reestimated": 10_000} for row in payload["rows"]]
    assert "re-estimated from 10,000" in densenet({**payload, "rows": fewer}).ran
    empty = densenet({**payload, "rows": [], "sensitivity": None})
    assert (empty.found, empty.verdict) == (("No network has been measured yet.",), "")


def test_a_plan_of_the_papers_scale_that_was_shrunk_is_not_called_full_size() -> None:
    payload = vgg_payload((0.2, 0.1), (0.2, 0.1))
    payload["config"]["scale"] = "paper"
    assert (vgg(payload).verdict, vgg(payload).ran[:6]) == ("not at this scale", "Shrunk")
    payload["config"]["base"]["width"] = 64
    assert (vgg(payload).verdict, vgg(payload).ran[:9]) == ("not held", "Full size")
    dense = densenet_payload(-0.01)
    assert densenet(dense).ran.startswith("Shrunk: CIFAR-10: L = 7, k = 4, 4 epochs, 60 images, 100 to test on. 3 of")
    for row in dense["rows"]:
        row |= {"depth": 100, "growth": 12, "epochs": 300, "images": {"training": 50_000, "test": 10_000}}
    assert (densenet(dense).verdict, densenet(dense).ran[:9]) == ("not held", "Full size")
    dense["config"]["precision"] = "bfloat16"
    assert "10,000 to test on, in bfloat16." in densenet(dense).ran
    for row in dense["rows"]:
        row |= {"dataset": "svhn", "depth": 40, "epochs": 40, "images": {"training": 73_257, "test": 26_032}}
    assert (densenet(dense).verdict, densenet(dense).ran[:6]) == ("not at this scale", "Shrunk")  # without the extra


def densenet_payload(gain: float, better: int = 30) -> dict[str, Any]:
    errors = dict(zip(VARIANTS, (0.30, 0.29, 0.30 - gain, 0.27), strict=True))
    records = [test_densenet.record(seed, errors, 3, better) for seed in range(3)]
    for record in records:
        record["config"] = asdict(replace(test_densenet.SMALL, seed=record["config"]["seed"]))
    return {
        "experiment": "densenet_small",
        "config": {"scale": "small", "precision": "float32"},
        "done": {"trials": 3, "planned": 9},
        "rows": summarise_densenets(records),
        "sensitivity": sensitivity_rows(records),
    }


def test_what_may_be_chance_does_not_hold() -> None:
    section = densenet(densenet_payload(0.02, better=10))  # of 13 images that changed: p = 0.09
    assert section.verdict == "not at this scale"
    assert "in 2 of 2 cases, significantly in 0 (and significantly higher in 0)" in section.found[-1]


def test_what_the_networks_do_not_agree_on_does_not_hold() -> None:
    """Two gain much, one loses a little, each beyond chance by its own images; then all gain, but not alike."""

    def section(*gains: float) -> Section:
        records = []
        for seed, gain in enumerate(gains):
            errors = dict(zip(VARIANTS, (0.30, 0.30, 0.30 - gain, 0.30), strict=True))
            split = (30, 100) if gain > 0 else (100, 30)
            records.append(test_densenet.record(seed, errors, *split))
        return densenet(densenet_payload(0.0) | {"rows": summarise_densenets(records)})

    assert section(0.06, 0.06, 0.07).verdict == "held"
    for gains in ((0.06, 0.06, -0.02), (0.01, 0.01, 0.30)):
        assert section(*gains).verdict == "not at this scale"
        assert "in 2 of 2 cases, significantly in 0" in section(*gains).found[2]


@pytest.mark.parametrize(("gain", "expected"), [(0.02, "held"), (-0.01, "not at this scale")])
def test_densenets_are_judged_by_the_papers_arm(gain: float, expected: str) -> None:
    section = densenet(densenet_payload(gain))
    assert section.verdict == expected
    assert f"{100 * (0.30 - gain):.2f} ± 0.00 % with the variance re-estimated" in section.found[0]
    assert (
        "in 2 of 2 cases, significantly in 2 (and significantly higher in 0); at the end in 3 of 3 networks"
        in section.found[-1]
    )
    variants = ("30.00 ± 0.00", "29.00 ± 0.00", f"{100 * (0.30 - gain):.2f} ± 0.00", "27.00 ± 0.00")
    assert section.tables[0].rows == (
        ("CIFAR-10, 0.8", "half-way", "3", *variants, "6.37 → 6.07"),
        ("CIFAR-10, 0.8", "at the end", "3", *variants, "5.62 → 5.38"),
    )
    printed = {(row[2], row[3]): row[-2] for row in section.tables[1].rows}
    assert [row[-1] for row in section.tables[1].rows] == ["–"] * 4 + ["5.77", "–", "–", "–"]
    assert printed["half-way", "as trained"] == "6.37"
    assert printed["at the end", "variance only"] == "5.38"
    assert printed["at the end", "dropout on"] == "–"
    assert section.tables[2].rows == (("1", "50.00 ± 0.00", "0.00 ± 0.00"),)


def mnist_row(keep: float, init: str, errors: list[float], epochs: list[float | None]) -> dict[str, Any]:
    """Make up a row of as many seeds as there are errors."""
    reached = None if None in epochs else asdict(estimate([e for e in epochs if e is not None]))
    by_seed = {"by_seed": dict(enumerate(errors)), "epochs_by_seed": dict(enumerate(epochs)), "epochs": 25}
    measured = {"error": asdict(estimate(errors)), "epochs_to_target": reached, "target": 0.2}
    tuned_row = {"rate": 1e-3, "rates": 3, "seeds": len(errors)}
    return {"activation": "relu", "keep": keep, "init": init, "inputs": "raw", **tuned_row, **measured, **by_seed}


def mnist_payload(rows: list[dict[str, Any]]) -> dict[str, Any]:
    base = {"hidden": 7, "width": 256, "batch": 64, "held_out": 5000}
    done = {"trials": len(rows), "planned": 288}
    return {"experiment": "mnist", "config": {"scale": "paper", "base": base}, "done": done, "rows": rows}


NEVER = [None, None, None]


def test_mnist_counts_where_the_papers_weights_win_with_dropout() -> None:
    rows = [
        mnist_row(1.0, "paper", [0.03, 0.03, 0.03], [2.0, 2.0, 2.0]),
        mnist_row(1.0, "he", [0.02, 0.02, 0.02], [1.0, 1.0, 1.0]),  # without dropout nothing is claimed
        mnist_row(0.5, "paper", [0.030, 0.031, 0.032], [4.0, 4.1, 4.2]),
        mnist_row(0.5, "xavier", [0.029, 0.040, 0.032], [3.0, 3.1, 3.2]),  # a lower mean is not enough
        mnist_row(0.5, "he", [0.040, 0.041, 0.042], NEVER),
        mnist_row(0.3, "paper", [0.50, 0.51, 0.52], NEVER),
        mnist_row(0.3, "xavier", [0.40, 0.41, 0.42], NEVER),
        mnist_row(0.3, "he", [0.8], [None]),
    ]
    section = mnist(mnist_payload(rows))
    counted = "in 1 of 4 comparisons (higher in 1, not significant in 1, one seed only in 1)"
    assert f"lower with the paper's weights than with Xavier's or He's {counted}" in section.found[0]
    assert "sooner in 1 of 2 comparisons (later in 1)" in section.found[0]
    assert section.found[1].endswith("51.00 ± 2.48 % against He's 80.00 % (one seed, so no interval).")
    assert section.found[2].endswith("against Xavier's 41.00 ± 2.48 % (+10.00 ± 0.00 points, higher).")
    assert section.verdict == "partly"
    assert section.tables[0].rows[1][-1] == "4.10 ± 0.25 (–)"
    assert mnist(mnist_payload(rows[2:3])).found == ("Not enough trials yet to compare.",)
    assert mnist(mnist_payload(rows[5:])).found[0].endswith("no network reaches a validation loss of 0.2.")


@pytest.mark.parametrize(
    ("paper", "he", "expected"),
    [
        ([0.10, 0.11, 0.12], [0.20, 0.21, 0.22], "held"),
        ([0.10, 0.11, 0.12], [0.10, 0.30, 0.12], "not shown"),  # a lower mean, but the interval holds zero
        ([0.20, 0.21, 0.22], [0.10, 0.11, 0.12], "not held"),
        ([0.1], [0.2], "not shown"),  # one seed
    ],
)
def test_a_comparison_is_judged_by_paired_differences_never_by_bare_means(
    paper: list[float], he: list[float], expected: str
) -> None:
    rows = [mnist_row(0.5, "paper", paper, [None] * len(paper)), mnist_row(0.5, "he", he, [None] * len(he))]
    assert mnist(mnist_payload(rows)).verdict == expected
    small = mnist_payload(rows)
    small["config"]["scale"] = "small"
    assert mnist(small).verdict == ("held" if expected == "held" else "not at this scale")


def test_mnist_says_what_the_corrected_rules_and_the_first_layer_do() -> None:
    errors = {1.0: (0.02, 0.019, 0.021), 0.5: (0.03, 0.035, 0.03), 0.3: (0.5, 0.4, 0.45)}
    rows = [
        mnist_row(keep, init, [error, error + 0.001], [None, None])
        for keep, own in errors.items()
        for init, error in zip(("paper", "forward", "paper-half"), own, strict=True)
    ]
    found = mnist(mnist_payload(rows)).found
    assert "“unitvar, forward” is lower than the paper's in 1 of 2 comparisons (higher in 1)" in found[-3]
    assert "Without dropout, the error of “unitvar, forward” is lower than the paper's in 1 of 1" in found[-2]
    assert "+0.10 ± 0.00 points at keep rate 1 (higher), +0.00 ± 0.00 points at keep rate 0.5" in found[-1]
