"""Masks of attention, however they are written."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar

CAUSAL = torch.ones(32, 32).tril().bool()


LOW = torch.zeros(32, 32).masked_fill(~CAUSAL, -math.inf)


Mixing = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5


def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (scores(q, k) + mask).softmax(-1) @ v


MASKINGS: dict[str, tuple[Mixing, Tensor]] = {
    "boolean": (F.scaled_dot_product_attention, CAUSAL),
    "minus infinity": (F.scaled_dot_product_attention, LOW),
    "causal": (lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, is_causal=True), CAUSAL),
    "added": (added, LOW),
    "filled": (lambda q, k, v, mask: scores(q, k).masked_fill(~mask, -math.inf).softmax(-1) @ v, CAUSAL),
    "where": (lambda q, k, v, mask: torch.where(mask, scores(q, k), -math.inf).softmax(-1) @ v, CAUSAL),
}


class Masked(nn.Module):
    def __init__(self, mixing: Mixing, mask: Tensor, buffered: bool) -> None:
        super().__init__()
        self.mixing = mixing
        self.q, self.k, self.v, self.out = (nn.Linear(64, 64, bias=False) for _ in range(4))
        if buffered:
            self.register_buffer("mask", mask)
        else:
            self.mask = mask

    def mixed(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (4, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.mixing(q, k, v, self.mask).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mixed(x))


@pytest.fixture(scope="module")
def attended() -> tuple[float, float]:
    """Measure E x² after causal attention, over draws of weights and tokens; its mean and standard error."""
    found = []
    for seed in range(30):
        torch.manual_seed(seed)
        net = Masked(*MASKINGS["boolean"], buffered=False)
        for layer in (net.q, net.k, net.v):
            unitvar.init.sphere_(layer.weight, gain=1.0)
        found.append(net.mixed(torch.randn(8, 32, 64)).square().mean().item())
    return float(np.mean(found)), float(np.std(found, ddof=1)) / len(found) ** 0.5


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("name", MASKINGS)
def test_every_way_to_write_a_mask_is_the_same_mask(name: str, buffered: bool, attended: tuple[float, float]) -> None:
    """Its rows count, not their average: the first token sees itself alone."""
    found = unitvar.plan(Masked(*MASKINGS[name], buffered), torch.zeros(8, 32, 64))["out.weight"].second
    assert found == pytest.approx(attended[0], abs=5 * attended[1])


def test_a_mask_may_be_an_input(attended: tuple[float, float]) -> None:
    class Given(Masked):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
            self.mask = mask
            return super().forward(x)

    for name in ("boolean", "minus infinity", "added"):
        mixing, mask = MASKINGS[name]
        plan = unitvar.plan(Given(mixing, mask, buffered=False), (torch.zeros(8, 32, 64), mask))
        assert plan["out.weight"].second == pytest.approx(attended[0], abs=5 * attended[1])
