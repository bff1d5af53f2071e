"""Global average pooling in seven spellings, after convolutions and ReLUs whose positions share a mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.composition.spelling import assert_as_predicted, assert_same_plans, shared, white

SIDE = 12
SPELLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean((2, 3))": lambda x: x.mean((2, 3)),
    "mean(2).mean(2)": lambda x: x.mean(2).mean(2),
    "flatten(2).mean(2)": lambda x: x.flatten(2).mean(2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, x.shape[2:]).flatten(1),
    "sum / n": lambda x: x.sum((2, 3)) / (x.shape[2] * x.shape[3]),
    "einsum / n": lambda x: torch.einsum("bchw->bc", x) / (x.shape[2] * x.shape[3]),
}
INPUTS = {
    "white": (white(8, 8, SIDE, SIDE), "standard"),
    "shared": (shared(8, 8, SIDE, SIDE, dims=(2, 3)), "measured"),
}


class Pooled(nn.Module):
    """Three convolutions with ReLUs between them, a pool, and two linear layers with a ReLU."""

    def __init__(self, pool: Callable[[Tensor], Tensor], padding: int = 0) -> None:
        super().__init__()
        self.a = nn.Conv2d(8, 64, 3, padding=padding)
        self.b = nn.Conv2d(64, 64, 3, padding=padding)
        self.c = nn.Conv2d(64, 64, 3, padding=padding)
        self.head, self.last = nn.Linear(64, 128), nn.Linear(128, 64)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        x = self.c(self.b(self.a(x).relu()).relu())
        return self.last(self.head(self.pool(x)).relu())


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("padding", [0, 1])
def test_spellings_of_global_pooling_have_one_plan(padding: int, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    models = {kind: Pooled(pool, padding) for kind, pool in SPELLINGS.items()}
    assert_same_plans(models, sample(), inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", SPELLINGS)
def test_what_follows_a_global_pool_is_what_was_predicted(kind: str, inputs: str) -> None:
    """Padded by one, as people train them: near the border a convolution sees zeros (10 % for that)."""
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Pooled(SPELLINGS[kind], 1), sample, inputs=known, tolerance=0.1, draws=8)


TOKENS = {
    "mean(1)": lambda x: x.mean(1),
    "sum / n": lambda x: x.sum(1) / x.shape[1],
    "einsum": lambda x: torch.einsum("btd->bd", x) / x.shape[1],
    "matmul": lambda x: (torch.full((1, x.shape[1]), 1 / x.shape[1]) @ x).squeeze(1),
    "adaptive": lambda x: F.adaptive_avg_pool1d(x.mT, 1).squeeze(-1),
}


class Averaged(nn.Module):
    """Two linear layers on tokens, a ReLU, their average, a linear layer."""

    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 64)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.b(self.a(x).relu()).tanh()))


@pytest.mark.parametrize("inputs", ["standard", "measured"])
def test_spellings_of_an_average_over_tokens_have_one_plan(inputs: str) -> None:
    sample = white(8, 16, 64) if inputs == "standard" else shared(8, 16, 64, dims=(1,))
    assert_same_plans({kind: Averaged(pool) for kind, pool in TOKENS.items()}, sample(), inputs=inputs)


@pytest.mark.parametrize("inputs", ["standard", "measured"])
@pytest.mark.parametrize("kind", TOKENS)
def test_what_follows_an_average_over_tokens_is_what_was_predicted(kind: str, inputs: str) -> None:
    sample = white(16, 16, 64) if inputs == "standard" else shared(16, 16, 64, dims=(1,))
    assert_as_predicted(lambda: Averaged(TOKENS[kind]), sample, inputs=inputs)
