"""Numbers of a plan that can be written down in closed form, or counted by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unitvar
from unitvar import init


def tanh_moments() -> tuple[float, float]:
    """Integrate E f² and E f'² of tanh, by a quadrature that the library does not use."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    f = np.tanh(nodes)
    second, slope = (float(weights @ values / weights.sum()) for values in (f**2, (1 - f**2) ** 2))
    return second, slope


@pytest.mark.parametrize("distribution", ["sphere", "orthonormal", "normal", "uniform"])
def test_the_papers_formula_at_both_ends_of_a_network(distribution: str) -> None:
    """s² = 1 / (E f²/p of the layer before + p E f'² of the layer after); what lies outside counts as the identity."""
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Dropout(0.4), nn.Linear(64, 16))
    first, last = unitvar.plan(model, torch.zeros(2, 32), mode="paper", distribution=distribution)
    second, slope = tanh_moments()
    weighed = distribution in ("normal", "uniform")  # the backward term times fan_out / fan_in, as Xavier has it
    assert first.scale**-2 == pytest.approx(1 + (64 / 32 if weighed else 1) * 0.6 * slope, rel=1e-6)
    assert last.scale**-2 == pytest.approx(second / 0.6 + (16 / 64 if weighed else 1), rel=1e-6)
    assert [(layer.fan_in, layer.fan_out) for layer in (first, last)] == [(32, 64), (64, 16)]


def test_dropout_between_the_layers_of_an_lstm_takes_its_share() -> None:
    plain, dropped = (
        unitvar.plan(nn.LSTM(16, 32, 2, dropout=p), torch.zeros(5, 4, 16))["weight_ih_l1"] for p in (0.0, 0.3)
    )
    # Nearly: under masks the states differ a little, and so does what the input is to make of a gate.
    assert (dropped.scale / plain.scale) ** 2 == pytest.approx(0.7, rel=0.02)


@pytest.mark.parametrize("norm", [nn.LayerNorm(32), nn.BatchNorm1d(32), nn.GroupNorm(4, 32)], ids=str)
def test_after_a_trained_norm_its_scale_and_shift_are_left(norm: nn.Module) -> None:
    nn.init.constant_(norm.weight, 3.0)
    nn.init.constant_(norm.bias, 0.5)
    (layer,) = unitvar.plan(nn.Sequential(norm, nn.Linear(32, 16)), torch.zeros(8, 32), inputs=(2.0, 5.0))
    assert layer.mean == pytest.approx(0.5)
    assert layer.second == pytest.approx(3**2 + 0.5**2, rel=1e-5)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of_x, self.of_y = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.of_y(y), self.of_x(x)


def test_pairs_of_inputs_come_in_the_order_of_the_arguments() -> None:
    plan = unitvar.plan(Two(), (torch.zeros(2, 8), torch.zeros(2, 8)), inputs=[(0.0, 2.0), (1.0, 3.0)])
    assert (plan["of_x.weight"].mean, plan["of_x.weight"].second) == pytest.approx((0, 2**2))
    assert (plan["of_y.weight"].mean, plan["of_y.weight"].second) == pytest.approx((1, 1**2 + 3**2))


@pytest.mark.parametrize(
    ("wide", "options", "seen"),
    [
        (7, {"kernel_size": (1, 5), "padding": (0, 2), "stride": (2, 1)}, (3 + 4 + 5 + 5 + 5 + 4 + 3) / 35),
        (7, {"kernel_size": (1, 5), "padding": (0, 2), "stride": (1, 2)}, (3 + 5 + 5 + 3) / 20),
        (7, {"kernel_size": (1, 3), "padding": (0, 2), "dilation": (1, 2)}, (2 + 2 + 3 + 3 + 3 + 2 + 2) / 21),
    ],
)
def test_each_side_of_a_convolution_has_its_own_kernel_stride_and_padding(
    wide: int, options: dict[str, tuple[int, int]], seen: float
) -> None:
    """Only the columns are padded: the windows along them see these shares of their taps."""
    (layer,) = unitvar.plan(nn.Sequential(nn.Conv2d(8, 128, **options)), torch.zeros(2, 8, 6, wide))
    assert layer.scale**-2 == pytest.approx(seen)


def test_each_phase_of_an_uneven_transposed_convolution_is_as_loud() -> None:
    layer = nn.ConvTranspose2d(32, 16, (3, 5), stride=(1, 3), bias=False)
    init.sphere_(layer.weight, "identity", transposed=True, stride=(1, 3))
    y = layer(torch.randn(200, 32, 8, 8)).detach()[:, :, 2:8, 3:24]  # where every tap meets an input
    for phase in range(3):
        loud = y[..., phase::3].double().square().flatten(1).mean(1)  # of each example, which are independent
        assert loud.mean().item() == pytest.approx(1.0, abs=5 * loud.std().item() / len(loud) ** 0.5)


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


def test_strict_names_the_module_that_ran_an_op_without_a_rule() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), Odd()), nn.Linear(8, 8))
    with pytest.raises(ValueError, match=r"aten.cumsum in module '1\.1' has no rule"):
        unitvar.plan(model, torch.zeros(4, 8), strict=True)


def test_on_the_meta_device_a_weight_left_alone_counts_as_standard_normal() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))
    (layer,) = unitvar.plan(model, torch.zeros(2, 16), only="1.*")
    assert (layer.mean, layer.second) == (0.0, 16.0)  # sixteen inputs of unit second moment, and a bias of zeros


def test_a_rule_for_one_overload_of_a_call_keeps_the_weights_of_its_op() -> None:
    def passed_on(x: unitvar.Moments, *_: object) -> unitvar.Moments:
        return x

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    plan = unitvar.plan(model, torch.zeros(2, 8), rules={"aten.linear.default": passed_on})
    assert [layer.name for layer in plan] == ["0.weight", "1.weight"]
