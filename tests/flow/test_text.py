"""A report as text: golden tables, and words that stand there only when it is so."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from unitvar.flow import LayerFlow, NormGap, VarianceReport, watch
from unitvar.flow.table import over_steps
from unitvar.flow.verdict import AGREEING, FALLS, GROWS, LARGE, level, trend, verdict


def layer(name: str, variance: float | None, gradient: float | None, use: int = 1, **more: float | None) -> LayerFlow:
    told = {
        "mean": 0.0,
        "dead": 0.0,
        "predicted_mean": 0.0,
        "predicted_variance": 1.0,
        "predicted_gradient": 1.0,
    } | more
    return LayerFlow(name, use, "addmm", 100, variance=variance, gradient=gradient, **told)


def test_the_table_is_golden() -> None:
    layers = (
        layer("features.0.weight", 1.0, 1234.5, mean=-0.01234),
        layer("features.3.weight", 0.51234, 12.345, dead=0.251, predicted_variance=0.5),
        layer("features.3.weight", 1e-7, None, use=2, dead=None, predicted_gradient=None, mean=-1.5e-9),
        layer("a.very.long.path.to.a.weight.that.does.not.fit", 23456.7, 1e-3, dead=0.001, predicted_variance=None),
    )
    norms = (NormGap("features.1", 1, 2.0, 1.25, 1.0, 1.6), NormGap("norm", 2, 1.0, 1.0, None, None))
    assert str(VarianceReport(layers, norms, 4)) == (
        "4 weights in train mode, 4 runs: z pre-activation, g its gradient\n"
        "weight                     E z     E z² predicted     E g² predicted  dead\n"
        "features.0.weight      -0.0123        1         1     1234         1   0 %\n"
        "features.3.weight            0    0.512       0.5     12.3         1  25 %\n"
        "features.3.weight #2 -1.50e-09 1.00e-07         1        -         -     -\n"
        "a.very.long.path.to.a.weight.that.does.not.fit\n"
        "                             0 2.35e+04         -    0.001         1  <1 %\n"
        "batch norm    var on   var off   running  on/off predicted\n"
        "features.1         2      1.25         1     1.6         -\n"
        "norm #2            1         1         -       -         -\n"
        "signal variance grows 56-fold from features.0.weight to\n"
        "  a.very.long.path.to.a.weight.that.does.not.fit (median trend): steady; squared\n"
        "  gradient norm grows 1.2e+06-fold from\n"
        "  a.very.long.path.to.a.weight.that.does.not.fit to features.0.weight (median\n"
        "  trend): exploding; the output of\n"
        "  a.very.long.path.to.a.weight.that.does.not.fit has E z² = 2.35e+04: too large\n"
        "train/eval gap of batch norms: up to 1.6, at features.1"
    )


def test_a_report_without_prediction_says_why() -> None:
    text = str(VarianceReport((layer("0.weight", 1.0, None, predicted_variance=None),), (), 1, "ValueError: no"))
    assert text.splitlines()[0] == "1 weight in train mode, 1 run: z pre-activation, g its gradient"
    assert "no prediction: ValueError: no" in text


def test_a_history_lays_the_last_step_beside_the_first() -> None:
    def row(step: int, name: str, use: int, *values: float | None) -> dict[str, object]:
        told = zip(("variance", "gradient", "weight_gradient_norm"), values, strict=True)
        return {"step": step, "name": name, "use": use, **dict(told)}

    rows = [
        row(0, "0.weight", 1, 1.0, 0.5, 2.0),
        row(0, "0.weight", 2, 4.0, None, 2.0),
        row(20, "0.weight", 1, 9.0, 9.0, 9.0),
        row(40, "0.weight", 1, 1e-9, 0.25, 0.125),
        row(40, "embedding.weight", 1, None, None, 3.0),
    ]
    assert over_steps(rows, 41) == (
        "41 steps, observed 3 times, first at 0 and last at 40: z pre-activation, g its\n"
        "  gradient, dW the weight's\n"
        "weight                E z²     last      E g²     last      |dW|     last\n"
        "0.weight                 1 1.00e-09       0.5     0.25         2    0.125\n"
        "0.weight #2              4        4         -        -         2        2\n"
        "embedding.weight         -        -         -        -         3        3"
    )
    assert str(watch(nn.Linear(2, 2))) == (
        "0 steps, none observed: the model was not called in train mode with gradients on"
    )


@given(st.lists(st.floats(1e-30, 1e30, allow_subnormal=False), min_size=0, max_size=12), st.integers(1, 60))
def test_lines_fit_in_80_columns(values: list[float], length: int) -> None:
    layers = tuple(layer("x" * length + str(i), v, v, mean=-v, predicted_variance=v) for i, v in enumerate(values))
    assert all(len(line) <= 80 for line in str(VarianceReport(layers, (), 4)).splitlines())


@given(st.floats(-2, 2, allow_subnormal=False), st.integers(2, 40), st.floats(-20, 20, allow_subnormal=False))
def test_a_trend_is_the_factor_of_a_geometric_series(rate: float, count: int, start: float) -> None:
    values = [10 ** (start + rate * i) for i in range(count)]
    factor, share = trend(values)
    assert factor == pytest.approx(10 ** (rate * (count - 1)), rel=1e-6)
    assert share == 1.0 or abs(rate) < 1e-9


@given(st.floats(-8, 8, allow_subnormal=False), st.integers(3, 30))
def test_words_stand_there_only_when_it_is_so(total: float, count: int) -> None:
    assume(min(abs(total - math.log10(limit)) for limit in (GROWS, FALLS)) > 1e-6)
    text = verdict("it", [str(i) for i in range(count)], [10 ** (total * i / (count - 1)) for i in range(count)])
    assert text.endswith("exploding") == (10**total > GROWS)
    assert text.endswith("vanishing") == (10**total < FALLS)
    assert text.endswith("steady") == (FALLS <= 10**total <= GROWS)


def test_two_layers_have_no_depth() -> None:
    assert verdict("it", ["a", "b"], [1.0, 1e-9]) == "it falls to 1e-09 of its value from a to b (median trend): steady"


def test_one_jump_is_no_trend() -> None:
    """A global average pool before the last layer shrinks all gradients before it once."""
    text = verdict("it", list("abcdefghij"), [1.0, *([1e-8, 1.1e-8, 0.9e-8] * 3)])
    assert text.endswith("steady")


def test_most_pairs_must_agree() -> None:
    values = [1.0, 1e4, 2.0, 5e5, 3.0, 2e6, 1.0, 3e9]
    factor, share = trend(values)
    assert factor > GROWS
    assert share < AGREEING
    assert verdict("it", list("abcdefgh"), values).endswith("steady")


def test_an_output_is_too_large_by_what_is_measured_and_by_what_its_weights_alone_would_give() -> None:
    assert level("head", 67.0, 64.0) == "the output of head has E z² = 67: too large"
    assert level("head", 67.0, 1.0) == ""  # made so by training, which fits weights to data
    assert level("head", 1.0, 64.0) == ""
    assert level("head", LARGE, LARGE) == ""
    assert level("head", 67.0, None) == "the output of head has E z² = 67: too large"
    assert level("head", None, 64.0) == ""
    loud = VarianceReport((layer("a", 1.0, 1.0), layer("b", 67.0, 1.0, predicted_variance=64.0)), (), 1)
    assert loud.verdict.endswith("the output of b has E z² = 67: too large")
    assert not loud.healthy
    hidden = VarianceReport((layer("a", 67.0, 1.0, predicted_variance=64.0), layer("b", 1.0, 1.0)), (), 1)
    assert hidden.healthy


def test_what_is_not_finite_explodes_and_what_is_nothing_vanishes() -> None:
    assert verdict("it", ["a", "b"], [1.0, float("inf")]) == "it is inf at b: exploding"
    assert verdict("it", ["a", "b"], [float("nan"), 1.0]) == "it is nan at a: exploding"
    assert verdict("it", list("abc"), [1.0, 0.0, 0.0]) == "it is 0 at 2 of 3 layers: vanishing"
    assert verdict("it", ["a", "b"], [1.0, 1.0]) == "it holds from a to b (median trend): steady"
    # Zeros that something bypasses, as it does residual branches that start at zero, are none of its trend.
    assert (
        verdict("it", list("abcdef"), [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]) == "it holds from a to f (median trend): steady"
    )
    assert verdict("it", list("abcdef"), [1.0, 0.0, 0.0, 1e-3, 0.0, 1e-6]).endswith(
        "from a to f (median trend): vanishing"
    )
    assert verdict("it", ["a", "b"], [1.0, None]) == ""
