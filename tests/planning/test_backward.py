"""mode="backward": the gradient keeps its variance."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import unitvar
from unitvar import init


def test_backward_keeps_the_gradient() -> None:
    torch.manual_seed(0)
    widths = [100, 200, 400, 200, 100]
    layers: list[nn.Module] = [nn.Linear(50, 100)]
    for a, b in itertools.pairwise(widths):
        layers += [nn.ReLU(), nn.Dropout(0.4), nn.Linear(a, b)]
    model = nn.Sequential(*layers)
    ratios = []
    for _ in range(8):
        unitvar.initialize_(model, torch.zeros(1, 50), mode="backward")
        kept: list[Tensor] = []
        x = torch.randn(200, 50)
        for module in model:
            x = module(x)
            if isinstance(module, nn.Linear):
                x.retain_grad()
                kept.append(x)
        x.backward(torch.randn_like(x))
        ratios.append(kept[0].grad.square().mean().item())  # type: ignore[union-attr]
    assert sum(ratios) / 8 == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("name", ["relu", "tanh", "gelu"])
def test_in_a_chain_backward_scales_are_those_of_the_slopes_where_signals_are(name: str) -> None:
    """s² = p n / (n' E f'²), with z as large as the backward scales make it: E z² = s² E x²."""
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}[name]
    model = nn.Sequential(
        nn.Linear(32, 64), activation(), nn.Dropout(0.4), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 8)
    )
    plan = unitvar.plan(model, torch.zeros(2, 32), mode="backward")
    second = plan.layers[0].scale ** 2
    assert second == pytest.approx(init.gain("identity", mode="backward", fan_ratio=64 / 32) ** 2)
    moments = unitvar.activation_moments(name, std=math.sqrt(second))
    square = plan.layers[1].scale ** 2
    assert square == pytest.approx(0.6 * 64 / 16 / moments.slope, rel=1e-6)
    slope = unitvar.activation_moments("tanh", std=math.sqrt(square * moments.second / 0.6)).slope
    assert plan.layers[2].scale ** 2 == pytest.approx(16 / 8 / slope, rel=1e-6)


@pytest.mark.parametrize("name", ["relu", "tanh", "gelu"])
def test_where_signals_have_unit_size_backward_scales_are_those_of_gain(name: str) -> None:
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}[name]
    model = nn.Sequential(nn.Linear(32, 32), activation(), nn.Dropout(0.4), nn.Linear(32, 16))
    layer = unitvar.plan(model, torch.zeros(2, 32), mode="backward").layers[1]
    assert layer.scale == pytest.approx(init.gain(name, 0.4, mode="backward", fan_ratio=16 / 32), rel=1e-6)
