"""One tensor in two places, one weight in many: what meets what decides, not where it came from."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.composition.spelling import assert_as_predicted, white


class Reading(nn.Module):
    """A linear layer on a function of the input."""

    def __init__(self, function: object, width: int = 16) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(width, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.function(x))  # type: ignore[operator]


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x[:, :, None] - x[:, None], id="differences of all pairs"),
        pytest.param(lambda x: x[:, :, None] + x[:, None], id="sums of all pairs"),
        pytest.param(lambda x: x[:, :, None] * x[:, None], id="products of all pairs"),
        pytest.param(lambda x: x - x.transpose(1, 2), id="a matrix less its transpose"),
        pytest.param(lambda x: x.transpose(1, 2).relu().transpose(1, 2) + x, id="transposed and back"),
    ],
)
def test_a_tensor_that_meets_other_elements_of_itself(function: object) -> None:
    assert_as_predicted(lambda: Reading(function), white(32, 16, 16), draws=8, tolerance=0.1)


class Loop(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.again, self.last, self.times = nn.Linear(128, 128), nn.Linear(128, 8), times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.again(x).relu()
        return self.last(x)


@pytest.mark.parametrize("times", [2, 3, 4, 5, 8, 16])
def test_a_weight_used_many_times_has_unit_second_moment_on_average(times: int) -> None:
    """s² Σ E x² / n = 1, where E x² of use i is (s² / 2)^(i - 1) / 2^(i > 1)."""
    (again, last) = unitvar.plan(Loop(times), torch.zeros(1, 128))
    reaching = [1.0]
    for _ in range(times - 1):
        reaching.append(again.scale**2 * reaching[-1] / 2)
    assert again.scale**2 * math.fsum(reaching) / times == pytest.approx(1.0, rel=1e-3)
    assert last.second == pytest.approx(again.scale**2 * reaching[-1] / 2, rel=1e-3)


class Stepwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.h, self.last = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 64)
        for t in range(x.shape[1]):
            h = torch.tanh(self.x(x[:, t]) + self.h(h))
        return self.last(h)


def test_a_state_that_starts_from_zero_does_not_leave_its_weight_alone() -> None:
    plan = unitvar.plan(Stepwise(), torch.zeros(2, 6, 16))
    assert not plan.skipped
    assert plan["h.weight"].second > 0


def test_a_chunk_of_what_was_joined_is_the_part_it_was() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.cat([10 * self.a(x), self.b(x)], -1).chunk(2, -1)[1])

    assert unitvar.plan(Joined(), torch.zeros(1, 16))["last.weight"].second == pytest.approx(1.0)


def test_a_batch_with_nan_is_refused_where_its_moments_are_wanted() -> None:
    batch = torch.randn(4, 16)
    batch[0, 0] = math.nan
    with pytest.raises(ValueError, match="1 of the example's 64 numbers are NaN or infinite"):
        unitvar.plan(nn.Sequential(nn.Linear(16, 4)), batch, inputs="measured")
