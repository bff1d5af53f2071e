"""Convolutions as unfolded products; pads and crops; and what borders do to both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.composition.spelling import assert_as_predicted, assert_same_plans, shared, white

SIDE, WIDTH = 10, 48
INPUTS = {
    "white": (white(8, WIDTH, SIDE, SIDE), "standard"),
    "shared": (shared(8, WIDTH, SIDE, SIDE, dims=(2, 3)), "measured"),
}


class Convolved(nn.Module):
    """Two 3 x 3 convolutions around a ReLU and an op on images; a global pool; a linear layer."""

    def __init__(
        self,
        convolve: Callable[[Tensor, Tensor], Tensor] = F.conv2d,
        between: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(WIDTH, WIDTH, 3, 3)) for _ in range(2))
        self.last = nn.Linear(WIDTH, WIDTH)
        self.convolve, self.between = convolve, between

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolve(x, self.a).relu()
        if self.between is not None:
            x = self.between(x)
        return self.last(self.convolve(x, self.b).mean((2, 3)))


def unfolded(x: Tensor, w: Tensor) -> Tensor:
    return (w.flatten(1) @ F.unfold(x, 3)).unflatten(-1, (x.shape[2] - 2, x.shape[3] - 2))


def unfolded_einsum(x: Tensor, w: Tensor) -> Tensor:
    patches = F.unfold(x, 3).unflatten(1, w.shape[1:])
    return torch.einsum("oikl,biklp->bop", w, patches).unflatten(-1, (x.shape[2] - 2, x.shape[3] - 2))


def windows(x: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("bihwkl,oikl->bohw", x.unfold(2, 3, 1).unfold(3, 3, 1), w)


CONVOLUTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "conv2d": F.conv2d,
    "unfold": unfolded,
    "unfold, einsum": unfolded_einsum,
    "windows": windows,
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_spellings_of_a_convolution_have_one_plan(inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_same_plans({kind: Convolved(f) for kind, f in CONVOLUTIONS.items()}, sample(), inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_what_a_convolution_gives_is_what_was_predicted(kind: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Convolved(CONVOLUTIONS[kind]), sample, inputs=known, draws=8)


def padded(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(F.pad(x, (1, 1, 1, 1)), w)


def joined(x: Tensor, w: Tensor) -> Tensor:
    x = torch.cat((torch.zeros_like(x[..., :1]), x, torch.zeros_like(x[..., :1])), -1)
    return F.conv2d(torch.cat((torch.zeros_like(x[..., :1, :]), x, torch.zeros_like(x[..., :1, :])), -2), w)


def written(x: Tensor, w: Tensor) -> Tensor:
    frame = x.new_zeros(*x.shape[:2], x.shape[2] + 2, x.shape[3] + 2)
    frame[..., 1:-1, 1:-1] = x
    return F.conv2d(frame, w)


PADDINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "padding=1": lambda x, w: F.conv2d(x, w, padding=1),
    "same": lambda x, w: F.conv2d(x, w, padding="same"),
    "F.pad": padded,
    "ZeroPad2d": lambda x, w: F.conv2d(nn.ZeroPad2d(1)(x), w),
    "constant_pad_nd": lambda x, w: F.conv2d(torch.constant_pad_nd(x, [1, 1, 1, 1]), w),
    "cat": joined,
    "written": written,
    "unfold": lambda x, w: (w.flatten(1) @ F.unfold(x, 3, padding=1)).unflatten(-1, x.shape[2:]),
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_spellings_of_zero_padding_have_one_plan(inputs: str) -> None:
    sample, known = INPUTS[inputs]
    models = {kind: Convolved(f) for kind, f in PADDINGS.items()}
    assert_same_plans(models, sample(), inputs=known, scales=True)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", PADDINGS)
def test_what_a_padded_convolution_gives_is_what_was_predicted(kind: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Convolved(PADDINGS[kind]), sample, inputs=known, draws=8)


CROPS: dict[str, Callable[[Tensor], Tensor]] = {
    "slices": lambda x: x[..., 1:-1, 1:-1],
    "F.pad": lambda x: F.pad(x, (-1, -1, -1, -1)),
    "constant_pad_nd": lambda x: torch.constant_pad_nd(x, [-1, -1, -1, -1]),
    "module": nn.ConstantPad2d(-1, 0.0),
    "narrow": lambda x: x.narrow(2, 1, x.shape[2] - 2).narrow(3, 1, x.shape[3] - 2),
    "padded first": lambda x: F.pad(x, (2, 2, 2, 2))[..., 3:-3, 3:-3],
    "padded, then cropped by F.pad": lambda x: F.pad(F.pad(x, (2, 2, 2, 2)), (-3, -3, -3, -3)),
    "one side at a time": lambda x: F.pad(F.pad(x, (-1, 0, -1, 0)), (0, -1, 0, -1)),
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_spellings_of_a_crop_have_one_plan(inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_same_plans({kind: Convolved(between=f) for kind, f in CROPS.items()}, sample(), inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", CROPS)
def test_what_follows_a_crop_is_what_was_predicted(kind: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Convolved(between=CROPS[kind]), sample, inputs=known, draws=8)


def test_a_crop_on_one_side_and_a_pad_on_the_other_are_both_seen() -> None:
    spellings: dict[str, Callable[[Tensor], Tensor]] = {
        "cat": lambda x: torch.cat((x[..., 2:], torch.zeros_like(x[..., :2])), -1),
        "F.pad": lambda x: F.pad(x, (-2, 2)),
        "two pads": lambda x: F.pad(F.pad(x, (0, 2)), (-2, 0)),
    }
    models = {kind: Convolved(between=f) for kind, f in spellings.items()}
    assert_same_plans(models, torch.randn(4, WIDTH, SIDE, SIDE), scales=True)
