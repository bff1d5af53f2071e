"""judgement: three answers, and a test for every verdict of a section that is not tested beside its experiment."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unitvar_reproduction import record
from unitvar_reproduction.experiments.sections import SECTIONS
from unitvar_reproduction.judgement import at_most, clearly_lower, in_words, lower, more_often, paired, verdict, within
from unitvar_reproduction.statistics import Estimate, median_interval

RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize(
    ("parts", "full", "shrunk"),
    [
        ((True, True), "held", "held"),
        ((True, None), "partly", "partly"),
        ((True, False), "partly", "partly"),
        ((False, None), "not held", "not at this scale"),
        ((None, None), "not shown", "not at this scale"),
        ((), "", ""),
    ],
)
def test_a_verdict_needs_every_part_and_what_cannot_be_told_refutes_nothing(
    parts: tuple[bool | None, ...], full: str, shrunk: str
) -> None:
    assert (verdict(parts), verdict(parts, shrunk=True)) == (full, shrunk)


def test_only_an_interval_without_zero_tells() -> None:
    cases = {(-2.0, 1.0): True, (2.0, 1.0): False, (-1.0, 2.0): None, (-1.0, None): None, (-1.0, math.inf): None}
    for (mean, half_width), expected in cases.items():
        assert lower(Estimate(mean, half_width)) is expected
    words = [in_words(Estimate(m, 1.0)) for m in (-2.0, 2.0, 0.5)]
    assert words == ["lower", "higher", "not significant"]
    assert in_words(Estimate(-2.0, 1.0), "sooner") == "sooner"
    assert in_words(Estimate(-2.0, None)) == "one seed, so no interval"
    assert clearly_lower(Estimate(-2.0, 1.0), 0.2) is None  # chance, by its images
    assert clearly_lower(Estimate(-2.0, None), 0.01) is True


def test_pairs_are_of_the_same_seed_and_what_never_ends_counts_as_the_whole() -> None:
    assert paired({0: 1.0, 1: 2.0, 2: 9.0}, {0: 2.0, 1: 3.0}) == Estimate(-1.0, 0.0)
    assert paired({0: 5.0, 1: 5.0}, {0: None, 1: None}, cap=25.0) == Estimate(-20.0, 0.0)
    assert paired({0: None}, {0: None}, cap=25.0) is None
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_ranges_and_limits_have_three_answers() -> None:
    assert [within(v, 0.5, 2) for v in ([1, 1.5], [1, 3], [3, None])] == [True, None, False]
    assert [at_most(i, 1.3) for i in ((1.1, 1.2), (1.2, 1.4), (1.4, 1.8))] == [True, None, False]


def test_a_sign_test_needs_six_wins_without_a_loss() -> None:
    """Both sides count, so n wins of n have p = 2^(1 - n): 1/16 at five, 1/32 at six."""
    assert more_often(5, 0) == (None, pytest.approx(2**-4))
    assert more_often(6, 0) == (True, pytest.approx(2**-5))
    assert more_often(0, 6) == (False, pytest.approx(2**-5))
    assert more_often(0, 0) == (None, 1.0)


def test_the_interval_of_a_median_covers_it_95_times_in_100_or_more() -> None:
    rng = np.random.default_rng(0)
    draws = (median_interval(rng.exponential(size=25).tolist()) for _ in range(1000))
    covered = np.mean([low <= math.log(2) <= high for low, high in draws])
    assert covered > 0.95 - 5 * math.sqrt(0.95 * 0.05 / 1000)


def saved(name: str) -> dict[str, Any]:
    return copy.deepcopy(dict(record.load(RESULTS / f"{name}.json")))


def told(name: str, payload: dict[str, Any]) -> str:
    return SECTIONS[name](payload).verdict


def test_table1_is_judged_by_its_digits() -> None:
    payload = saved("table1")
    assert told("table1", payload) == "partly"
    for answer, expected in ((True, "held"), (False, "not held")):
        for row in payload["rows"]:
            row["second_agrees"] = row["slope_agrees"] = answer
        assert told("table1", payload) == expected


def test_figure_1_is_judged_by_every_network() -> None:
    payload = saved("forward")
    assert told("forward", payload) == "held"
    next(r for r in payload["relu"] if (r["keep"], r["init"]) == (0.6, "forward"))["second"][0][20] = 50.0
    assert told("forward", payload) == "partly"
    for row in payload["relu"]:
        row["second"] = [[1.0 if row["init"] != "forward" else 9.0] * 21 for _ in row["second"]]
    assert told("forward", payload) == "not held"


def test_appendix_a_is_judged_under_autograd() -> None:
    payload = saved("backward")
    assert told("backward", payload) == "partly"
    for factor, expected in ((1.0, "held"), (1e8, "not held")):
        for row in payload["relu"]:
            row["second"] = [[factor] * 20 + [1.0] for _ in row["second"]]
        assert told("backward", payload) == expected


def test_the_factors_are_judged_by_the_last_layer() -> None:
    payload = saved("factors")
    assert told("factors", payload) == "partly"
    for value, expected in ((0.5, "held"), (0.01, "not held")):
        for row in payload["rows"]:
            row["layers"][6]["f"] = value
        assert told("factors", payload) == expected


def test_costs_are_judged_by_the_interval_of_the_median() -> None:
    payload = saved("cost")
    for interval, expected in (((1.1, 1.2), "held"), ((1.2, 1.4), "not shown"), ((1.7, 1.8), "not held")):
        for row in payload["rows"]:
            row["low"], row["high"] = interval
        assert told("cost", payload) == expected
    payload["rows"][0]["low"], payload["rows"][0]["high"] = 1.1, 1.2
    assert told("cost", payload) == "partly"


@pytest.mark.parametrize(
    ("half", "end", "expected"),
    [
        ((-0.02, 0.01), (-0.02, 0.01), "held"),
        ((-0.02, 0.01), (-0.02, 0.03), "partly"),
        ((-0.0192, 0.0376), (-0.02, 0.03), "not at this scale"),  # −1.92 ± 3.76: a fall that no sentence may claim
        ((0.02, 0.01), (0.02, 0.01), "not at this scale"),
    ],
)
def test_reestimation_is_judged_by_paired_differences(
    half: tuple[float, float], end: tuple[float, float], expected: str
) -> None:
    payload = saved("reestimation")
    for row in payload["rows"]:
        if row["arm"] in ("variance only", "mean and variance"):
            mean, half_width = half if row["moment"] == "halfway" else end
            row["error minus as trained"] = {"mean": mean, "half_width": half_width}
    section = SECTIONS["reestimation"](payload)
    assert section.verdict == expected
    shown = "lower" if half[0] < -half[1] else "higher" if half[0] > half[1] else "not significant"
    assert f"points ({shown})" in section.found[0]
    assert "falls" not in " ".join(section.found)


def test_digits_are_judged_as_mnist_is_and_nothing_is_compared_with_infinity() -> None:
    payload = saved("digits")
    for row in payload["rows"]:
        row["by_seed"] = {"0": 0.1, "1": 0.2, "2": 0.3 if row["init"] == "paper" else 0.35}
        row["epochs_by_seed"] = dict.fromkeys("012")
    assert told("digits", payload) == "not at this scale"
    for row in payload["rows"]:
        shift = 0.0 if row["init"] == "paper" else 0.1
        row["by_seed"] = dict.fromkeys("012", 0.1 + shift)
    assert told("digits", payload) == "held"


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (("held", "held"), "held"),
        (("held", "open"), "partly"),
        (("contrary", "held"), "partly"),
        (("open", "open"), "not at this scale"),
        (("contrary", "contrary"), "not at this scale"),  # the networks are smaller than the paper's
    ],
)
def test_where_the_vgg_trains_is_judged_claim_by_claim(claims: tuple[str, ...], expected: str) -> None:
    payload = saved("trainability_small")
    payload["claims"] = [{**payload["claims"][0], "verdict": claim} for claim in claims]
    section = SECTIONS["trainability_small"](payload)
    assert section.verdict == expected
    counts = [claims.count(word) for word in ("held", "contrary", "open")]
    words = f"{counts[0]} of {len(claims)} tests support it, {counts[1]} show the opposite and {counts[2]} are open"
    assert words in section.found[0]


@pytest.mark.parametrize("name", [name for name in SECTIONS if (RESULTS / f"{name}.json").exists()])
def test_every_picture_says_what_to_see_and_what_it_shows(name: str) -> None:
    for picture in SECTIONS[name](saved(name)).pictures:
        assert len(picture.caption.split()) >= 10, picture
        assert len(picture.alt.split()) >= 6, picture
        assert picture.caption != picture.alt


def test_sections_that_claim_nothing_of_the_paper_are_not_judged() -> None:
    assert [told(name, saved(name)) for name in ("stability", "training")] == ["", ""]
