"""gain: the radius that keeps a variance at one."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.init.fills import NAMES, RATES
from unitvar import activation_moments, init


@given(RATES)
def test_relu_gain_is_hes_times_the_square_root_of_keep(dropout: float) -> None:
    assert init.gain("relu", dropout) == pytest.approx(math.sqrt(2 * (1 - dropout)))


def test_selu_forward_gain_is_one() -> None:
    assert init.gain("selu") == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", ["linear", "relu", "leaky_relu"])
def test_gain_extends_torchs(name: str) -> None:
    assert init.gain(name) == pytest.approx(nn.init.calculate_gain(name))


@given(NAMES, RATES, st.floats(0.1, 10))
def test_gains_are_those_of_the_design(name: str, dropout: float, ratio: float) -> None:
    m, keep = activation_moments(name), 1 - dropout
    forward, backward, mean, paper = (
        init.gain(name, dropout, mode=mode, fan_ratio=ratio) ** 2 for mode in ("forward", "backward", "mean", "paper")
    )
    assert forward == pytest.approx(keep / m.second)
    assert backward == pytest.approx(keep / (ratio * m.slope))
    assert mean == pytest.approx(2 / (1 / forward + 1 / backward))
    assert paper == pytest.approx(1 / (m.second / keep + ratio * keep * m.slope))


@given(NAMES, NAMES, RATES, RATES)
def test_paper_gain_takes_the_slope_from_the_next_layer(
    before: str, after: str, drop: float, drop_after: float
) -> None:
    s = init.gain(before, drop, mode="paper", next_nonlinearity=after, next_dropout=drop_after)
    loss = activation_moments(before).second / (1 - drop) + (1 - drop_after) * activation_moments(after).slope
    assert s**-2 == pytest.approx(loss)


def test_unknown_nonlinearity_without_dropout_is_the_bare_sphere() -> None:
    assert init.gain(None, mode="paper") == 1.0
    torch.testing.assert_close(init.sphere_(torch.empty(300, 20), None, mode="paper").norm(dim=1), torch.ones(300))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"mode": "fwd"}, ValueError, "mode='fwd' is not one of 'forward', 'backward', 'mean', 'paper'"),
        ({"dropout": 1.0}, ValueError, r"dropout=1.0 is not in \[0, 1\)"),
        ({"dropout": -0.1}, ValueError, "dropout=-0.1"),
        ({"dropout": math.nan}, ValueError, "dropout=nan"),
        ({"dropout": nn.Dropout(0.5)}, TypeError, r"pass the drop probability, as in nn.Dropout\(p\)"),
        ({"mode": "paper", "next_dropout": 1.5}, ValueError, "next_dropout=1.5"),
        ({"next_dropout": 0.5}, ValueError, "belong to mode='paper'"),
        ({"next_nonlinearity": None}, ValueError, "belong to mode='paper'"),
        ({"fan_ratio": 0.0}, ValueError, "fan_ratio=0.0"),
        ({"fan_ratio": "wide"}, TypeError, "fan_ratio='wide' is not a number"),
        ({"nonlinearity": "rleu"}, ValueError, "did you mean 'relu'"),
        ({"nonlinearity": torch.zeros_like}, ValueError, "has value 0 everywhere"),
        ({"nonlinearity": torch.ones_like, "mode": "backward"}, ValueError, "has slope 0 everywhere"),
    ],
)
def test_bad_gains_are_named(kwargs: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        init.gain(**kwargs)  # type: ignore[arg-type]
