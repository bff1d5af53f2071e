"""What was reported of the first engine, gradients: what measure finds is what it predicts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.composition.spelling import assert_gradients_as_predicted, white
from tests.composition.test_attention import SPELLINGS, Attention
from tests.composition.test_reported import Classifier


class Frozen(nn.Module):
    """A linear layer, batch norm with given statistics, a linear layer."""

    def __init__(self, norm: Callable[[Tensor, Tensor, Tensor], Tensor], variance: float) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(128, 128), nn.Linear(128, 128)
        self.register_buffer("mean", torch.zeros(128))
        self.register_buffer("variance", torch.full((128,), variance))
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.norm(self.a(x), self.mean, self.variance))


NORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "functional": lambda x, mean, variance: F.batch_norm(x, mean, variance, training=False),
    "by hand": lambda x, mean, variance: (x - mean) * torch.rsqrt(variance + 1e-5),
    "division": lambda x, mean, variance: (x - mean) / (variance + 1e-5).sqrt(),
}


@pytest.mark.parametrize("variance", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("kind", NORMS)
def test_a_batch_norm_with_given_statistics_divides_gradients_by_them(kind: str, variance: float) -> None:
    """100 to 300 × at a running variance of 100."""
    assert_gradients_as_predicted(lambda: Frozen(NORMS[kind], variance), white(64, 128), draws=8)


class Averaged(nn.Module):
    """Attention and an average over tokens."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.attention, self.head = Attention(SPELLINGS[kind]), nn.Linear(96, 96)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x).mean(1))


@pytest.mark.parametrize("kind", ["fused", "written", "einsum"])
def test_gradients_before_an_average_over_tokens_after_attention(kind: str) -> None:
    """Up to 10 × too small: the average sends every token the same gradient, and attention adds those up.

    Queries and keys get what a softmax passes on, a tenth of what values get; the bound is 15 % for them too.
    """
    assert_gradients_as_predicted(lambda: Averaged(kind), white(16, 12, 96), tolerance=0.15, draws=8)


@pytest.mark.parametrize("norm_first", [True, False])
def test_gradients_of_a_transformer_classifier(norm_first: bool) -> None:
    assert_gradients_as_predicted(lambda: Classifier(norm_first), white(8, 16, 96), tolerance=0.15, draws=8)


def test_gradients_before_a_global_pool_in_two_steps() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Conv2d(8, 48, 3), nn.Conv2d(48, 48, 3), nn.Linear(48, 48)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.b(self.a(x).relu()).mean(2).mean(2))

    assert_gradients_as_predicted(Net, white(8, 8, 12, 12))


def test_gradients_before_a_crop_and_a_pad() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(8, 48, 3), nn.Conv2d(48, 48, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.pad(F.pad(self.a(x).relu(), (-2, -2, -2, -2)), (1, 1, 1, 1)))

    assert_gradients_as_predicted(Net, white(8, 8, 12, 12))


def test_gradients_before_a_pool_with_a_divisor_of_its_own() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(8, 48, 3), nn.AvgPool2d(2, divisor_override=1), nn.Conv2d(48, 48, 3))

    assert_gradients_as_predicted(build, white(8, 8, 12, 12))


def test_gradients_through_grouped_queries() -> None:
    def build() -> nn.Module:
        return Attention(SPELLINGS["written"], None, 0.0, 2, lambda x: x.repeat_interleave(2, 1))

    assert_gradients_as_predicted(build, white(16, 12, 96), tolerance=0.15)


class Padded(nn.Module):
    """Convolutions without padding of their own, each after a pad that copies numbers of the image."""

    def __init__(self, mode: str, sides: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(32, 32, 3), nn.Conv2d(32, 32, 3)
        self.last, self.mode, self.sides = nn.Conv2d(32, 32, 1), mode, sides

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(F.pad(x, self.sides, self.mode))
        return self.last(self.second(F.pad(x.tanh(), self.sides, self.mode)))


@pytest.mark.parametrize("sides", [(2, 2, 2, 2), (3, 0, 0, 3)], ids=["around", "on two sides"])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_gradients_before_a_pad_that_copies(mode: str, sides: tuple[int, int, int, int]) -> None:
    """A number that was copied gets the gradients of all its copies."""
    assert_gradients_as_predicted(lambda: Padded(mode, sides), lambda: torch.randn(8, 32, 6, 6), draws=8, tolerance=0.1)
