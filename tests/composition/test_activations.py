"""Activations: module, function and by hand give one plan, and activation_moments the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from tests.composition.spelling import assert_as_predicted, assert_same_plans, shared, white

WIDTH = 128
Activation = Callable[[Tensor], Tensor]


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FAMILIES: dict[str, dict[str, Activation]] = {
    "relu": {
        "module": nn.ReLU(),
        "functional": F.relu,
        "clamp": lambda x: x.clamp(min=0),
        "maximum": lambda x: torch.maximum(x, torch.zeros(())),
        "product": lambda x: x * (x > 0),
        "where": lambda x: torch.where(x > 0, x, 0.0),
        "absolute": lambda x: (x + x.abs()) / 2,
    },
    "gelu": {
        "module": nn.GELU(),
        "functional": F.gelu,
        "erf": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
        "ndtr": lambda x: x * torch.special.ndtr(x),
    },
    "gelu, tanh": {
        "module": nn.GELU(approximate="tanh"),
        "functional": lambda x: F.gelu(x, approximate="tanh"),
        "by hand": tanh_gelu,
    },
    "silu": {
        "module": nn.SiLU(),
        "functional": F.silu,
        "sigmoid": lambda x: x * torch.sigmoid(x),
        "exponential": lambda x: x / (1 + torch.exp(-x)),
        "in place": lambda x: x.clone().mul_(x.sigmoid()),
    },
    "mish": {
        "module": nn.Mish(),
        "functional": F.mish,
        "softplus": lambda x: x * torch.tanh(F.softplus(x)),
        "logarithm": lambda x: x * torch.tanh(torch.log1p(torch.exp(x))),
    },
    "hardswish": {
        "module": nn.Hardswish(),
        "functional": F.hardswish,
        "relu6": lambda x: x * F.relu6(x + 3) / 6,
        "clamp": lambda x: x * (x / 6 + 0.5).clamp(0, 1),
    },
    "elu": {
        "module": nn.ELU(),
        "functional": F.elu,
        "where": lambda x: torch.where(x > 0, x, torch.expm1(x)),
        "sum": lambda x: x.clamp(min=0) + x.clamp(max=0).expm1(),
    },
}


class Activated(nn.Module):
    """Two linear layers with an activation after each, dropout, an average over tokens, and a linear layer."""

    def __init__(self, f: Activation) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.f(self.a(x)), 0.2)
        return self.last(self.f(self.b(x)).mean(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_spellings_of_an_activation_have_one_plan(family: str) -> None:
    for inputs, x in (("standard", torch.randn(8, 6, WIDTH)), ("measured", shared(64, 6, WIDTH, dims=(1,))())):
        assert_same_plans({kind: Activated(f) for kind, f in FAMILIES[family].items()}, x, inputs=inputs)


@pytest.mark.parametrize("family", FAMILIES)
def test_spellings_of_an_activation_have_the_same_moments(family: str) -> None:
    found = {kind: unitvar.activation_moments(f, 0.3, 1.7) for kind, f in FAMILIES[family].items()}
    reference = found["module"]
    for kind, m in found.items():
        expected = pytest.approx((reference.mean, reference.second, reference.slope), rel=1e-6)
        assert (m.mean, m.second, m.slope) == expected, kind


@pytest.mark.parametrize(("family", "inputs"), [(f, i) for f in FAMILIES for i in ("white", "shared")])
def test_what_follows_an_activation_is_what_was_predicted(family: str, inputs: str) -> None:
    sample = white(16, 6, WIDTH) if inputs == "white" else shared(16, 6, WIDTH, dims=(1,))
    known = "standard" if inputs == "white" else "measured"
    f = list(FAMILIES[family].values())[-1]
    assert_as_predicted(lambda: Activated(f), sample, inputs=known, draws=8)
