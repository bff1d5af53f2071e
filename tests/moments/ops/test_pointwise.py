"""Pointwise ops of channels and of several tensors."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import unitvar


@pytest.mark.parametrize("channels", [5, 9])
def test_a_slope_for_each_channel_is_averaged(channels: int) -> None:
    net = nn.Sequential(nn.Conv2d(3, channels, 1), nn.PReLU(channels), nn.Conv2d(channels, 4, 1))
    slopes = torch.linspace(-1, 2, channels)
    net[1].weight.data = slopes  # type: ignore[assignment]
    layer = unitvar.plan(net, torch.zeros(2, 3, 9, 9))["2.weight"]
    assert layer.second == pytest.approx((1 + slopes.square().mean().item()) / 2)
    assert layer.mean == pytest.approx((1 - slopes.mean().item()) / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("op", [torch.max, torch.min])
def test_the_larger_of_two_independent_tensors_is_clark_s(op: Callable[..., Tensor]) -> None:
    """Clark (1961): of independent normals E max = √((a + b) / 2π) and E max² = (a + b) / 2; the minimum mirrors it."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(op(self.a(x), self.b(x)))

    sign = 1 if op is torch.max else -1
    for mode, square in (("forward", 1.0), ("backward", 0.5)):  # x gets half of its E g² = 1 from each
        plan = unitvar.plan(Two(), torch.zeros(4, 8), mode=mode)
        a, b = (plan[name].scale ** 2 for name in ("a.weight", "b.weight"))
        # Gradients are drawn: with a standard error of √(E g⁴ / 2 / (E g² / 2)² - 1) / √4096 at most.
        assert (a, b) == pytest.approx((square, square), rel=1e-6 if mode == "forward" else 4 * math.sqrt(5 / 4096))
        assert plan["c.weight"].mean == pytest.approx(sign * math.sqrt((a + b) / (2 * math.pi)), rel=0.02)
        assert plan["c.weight"].second == pytest.approx((a + b) / 2, rel=0.02)
