"""Extremes along dimensions."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.moments.models import Op

EXTREMES: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.amax(1), lambda x: x.amin(1), lambda x: x.max(1)[0], lambda x: x.min(1, keepdim=True)[0],
]  # fmt: skip


@pytest.mark.parametrize("op", EXTREMES)
def test_one_of_fifty_has_the_gradient_of_the_largest(op: Callable[[Tensor], Tensor]) -> None:
    net = nn.Sequential(nn.Linear(8, 8), Op(op), nn.Linear(8, 8))
    scale = unitvar.plan(net, torch.zeros(4, 50, 8), mode="backward")["2.weight"].scale
    assert scale**2 == pytest.approx(50)
