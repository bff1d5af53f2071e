"""Dropout in six spellings, after a ReLU and before a pool, where masks are averaged away and signals are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.composition.spelling import assert_as_predicted, assert_same_plans, shared, white

RATE = 0.4
KEEP = 1 - RATE
SPELLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "module": nn.Dropout(RATE),
    "functional": lambda x: F.dropout(x, RATE),
    "bernoulli_": lambda x: x * torch.empty_like(x).bernoulli_(KEEP) / KEEP,
    "rand": lambda x: x * (torch.rand(x.shape) < KEEP) / KEEP,
    "bernoulli": lambda x: x * torch.bernoulli(torch.full(x.shape, KEEP)) * (1 / KEEP),
    "masked_fill": lambda x: x.masked_fill(torch.rand_like(x) < RATE, 0.0) / KEEP,
    "where": lambda x: torch.where(torch.rand_like(x) < RATE, torch.zeros_like(x), x / KEEP),
    "in place": lambda x: x.mul_(torch.empty_like(x).bernoulli_(KEEP)).div_(KEEP),
}
INPUTS = {
    "white": (white(16, 12, 96), "standard"),
    "shared": (shared(16, 12, 96, dims=(1,)), "measured"),
}


class Dropped(nn.Module):
    """A linear layer, a ReLU and dropout, twice; an average over tokens; a linear layer."""

    def __init__(self, drop: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(96, 128), nn.Linear(128, 128), nn.Linear(128, 96)
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.a(x).relu())
        return self.head(self.drop(self.b(x)).mean(1))


@pytest.mark.parametrize("inputs", INPUTS)
def test_spellings_of_dropout_have_one_plan(inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_same_plans({kind: Dropped(drop) for kind, drop in SPELLINGS.items()}, sample(), inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", SPELLINGS)
def test_what_follows_dropout_is_what_was_predicted(kind: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Dropped(SPELLINGS[kind]), sample, inputs=known)


ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "broadcast": lambda x: x * x.new_empty(x.shape[0], 1, 1).bernoulli_(KEEP) / KEEP,
    "divided": lambda x: x / KEEP * (torch.rand(x.shape[0], 1, 1) < KEEP),
    "floored": lambda x: x.div(KEEP) * (KEEP + torch.rand(x.shape[0], 1, 1)).floor_(),
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_spellings_of_a_mask_for_each_example_have_one_plan(inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_same_plans({kind: Dropped(drop) for kind, drop in ROWS.items()}, sample(), inputs=known)


@pytest.mark.parametrize("kind", ROWS)
def test_what_follows_a_mask_for_each_example_is_what_was_predicted(kind: str) -> None:
    """An example is kept whole or dropped whole: its tokens' mean is not averaged away. 64 examples a draw."""
    assert_as_predicted(lambda: Dropped(ROWS[kind]), white(64, 12, 96), draws=8)


CHANNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout1d": lambda x: F.dropout1d(x.mT, RATE).mT,
    "broadcast": lambda x: x * x.new_empty(x.shape[0], 1, x.shape[2]).bernoulli_(KEEP) / KEEP,
    "rand": lambda x: torch.where(torch.rand(x.shape[0], 1, x.shape[2]) < KEEP, x / KEEP, 0.0),
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_spellings_of_channel_dropout_have_one_plan(inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_same_plans({kind: Dropped(drop) for kind, drop in CHANNELS.items()}, sample(), inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", CHANNELS)
def test_what_follows_channel_dropout_is_what_was_predicted(kind: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Dropped(CHANNELS[kind]), sample, inputs=known)
