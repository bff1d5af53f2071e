"""A linear layer in ten spellings, and the sums that make a residual stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.composition.spelling import assert_as_predicted, assert_same_plans, shared, white

WIDTH, TOKENS = 96, 8


def through_convolution(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(x.mT, w[:, :, None]).mT


def through_image(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x.mT[..., None], w[:, :, None, None]).squeeze(-1).mT


def added(x: Tensor, w: Tensor) -> Tensor:
    return torch.addmm(torch.zeros(len(w)), x.flatten(0, 1), w.T).unflatten(0, x.shape[:2])


def plainly(x: Tensor, w: Tensor) -> Tensor:
    return torch.mm(x.flatten(0, 1), w.t()).unflatten(0, x.shape[:2])


def batched(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(x, w.mT.expand(len(x), -1, -1))


SPELLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "F.linear": F.linear,
    "x @ W.T": lambda x, w: x @ w.T,
    "matmul": lambda x, w: torch.matmul(x, w.transpose(0, 1)),
    "W @ x.T": lambda x, w: (w @ x.mT).mT,
    "einsum": lambda x, w: torch.einsum("bti,oi->bto", x, w),
    "einsum swapped": lambda x, w: torch.einsum("oi,bti->bto", w, x),
    "tensordot": lambda x, w: torch.tensordot(x, w, ([2], [1])),
    "addmm": added,
    "mm": plainly,
    "bmm": batched,
    "conv1d": through_convolution,
    "conv2d": through_image,
}
INPUTS = {
    "white": (white(16, TOKENS, WIDTH), "standard"),
    "shared": (shared(16, TOKENS, WIDTH, dims=(1,)), "measured"),
}


class Linear(nn.Module):
    """Three weights with a ReLU and dropout between them, an average over tokens, and one more."""

    def __init__(self, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        sizes = [(128, WIDTH), (WIDTH, 128), (128, WIDTH)]
        self.a, self.b, self.c = (nn.Parameter(torch.randn(size)) for size in sizes)
        self.last = nn.Linear(128, 64)
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.product(x, self.a).relu(), 0.3)
        return self.last(self.product(self.product(x, self.b).tanh(), self.c).mean(1))


@pytest.mark.parametrize("inputs", INPUTS)
def test_spellings_of_a_linear_layer_have_one_plan(inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_same_plans({kind: Linear(f) for kind, f in SPELLINGS.items()}, sample(), inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", SPELLINGS)
def test_what_a_linear_layer_gives_is_what_was_predicted(kind: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Linear(SPELLINGS[kind]), sample, inputs=known, draws=8)


def in_place(x: Tensor, b: Tensor) -> Tensor:
    x = x.clone()
    x += b
    return x


SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x + b": lambda x, b: x + b,
    "b + x": lambda x, b: b + x,
    "torch.add": torch.add,
    "alpha": lambda x, b: torch.add(x, b, alpha=1),
    "+=": in_place,
    "add_": lambda x, b: b.add_(x),
    "stack": lambda x, b: torch.stack((x, b)).sum(0),
    "sum": lambda x, b: sum((x, b), torch.zeros(())),
    "x - (-b)": lambda x, b: x - (-b),
    "einsum": lambda x, b: torch.einsum("nbtd->btd", torch.stack((x, b))),
    "cat": lambda x, b: torch.cat((x, b), -1).unflatten(-1, (2, -1)).sum(-2),
}


class Residual(nn.Module):
    """Four residual blocks of ReLUs, whose outputs have a mean, and a linear layer."""

    def __init__(self, add: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(WIDTH, 128) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(128, WIDTH) for _ in range(4))
        self.last = nn.Linear(WIDTH, WIDTH)
        self.add = add

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = self.add(x, down(up(x).relu()).relu())
        return self.last(x.mean(1))


@pytest.mark.parametrize("inputs", INPUTS)
def test_spellings_of_a_residual_sum_have_one_plan(inputs: str) -> None:
    sample, known = INPUTS[inputs]
    models = {kind: Residual(add) for kind, add in SUMS.items()}
    assert_same_plans(models, sample(), inputs=known, residual="unit")
    # A stream is found where tensors are added; a sum along a dimension of a joined tensor is not taken for one.
    added = {kind: model for kind, model in models.items() if kind not in ("stack", "einsum", "cat")}
    assert_same_plans(added, sample(), inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", ["x + b", "+=", "stack", "einsum", "cat"])
def test_what_a_residual_stream_gives_is_what_was_predicted(kind: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Residual(SUMS[kind]), sample, inputs=known, draws=8)
