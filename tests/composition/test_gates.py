"""Gated units: F.glu, two halves, two linear layers; and SwiGLU, whose gate and value see the same input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.composition.spelling import assert_as_predicted, assert_same_plans, shared, white

WIDTH = 128
Gate = Callable[[Tensor, Tensor], Tensor]


def halves(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, -1)
    return value * torch.sigmoid(gate)


def sliced(x: Tensor) -> Tensor:
    return x[..., :WIDTH] * x[..., WIDTH:].sigmoid()


def split(x: Tensor) -> Tensor:
    value, gate = torch.split(x, [WIDTH, WIDTH], -1)
    return torch.mul(gate.sigmoid(), value)


def exponential(x: Tensor) -> Tensor:
    value, gate = x.unflatten(-1, (2, WIDTH)).unbind(-2)
    return value / (1 + torch.exp(-gate))


PACKED: dict[str, Callable[[Tensor], Tensor]] = {
    "F.glu": F.glu,
    "nn.GLU": nn.GLU(),
    "chunk": halves,
    "slices": sliced,
    "split": split,
    "unbind": exponential,
}
INPUTS = {
    "white": (white(16, 8, WIDTH), "standard"),
    "shared": (shared(16, 8, WIDTH, dims=(1,)), "measured"),
}


class Packed(nn.Module):
    """A linear layer, a ReLU, a linear layer twice as wide, its gate, an average over tokens and a linear layer."""

    def __init__(self, gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.down(self.gate(self.up(self.first(x).relu()))).mean(1))


class Two(nn.Module):
    """The same with a linear layer for each half."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.first, self.up, self.gates = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.down, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.last(self.down(self.gate(self.up(x), self.gates(x))).mean(1))


@pytest.mark.parametrize("inputs", INPUTS)
def test_spellings_of_a_gated_unit_have_one_plan(inputs: str) -> None:
    sample, known = INPUTS[inputs]
    models: dict[str, nn.Module] = {kind: Packed(gate) for kind, gate in PACKED.items()}
    assert_same_plans(models, sample(), inputs=known)
    models = {"F.glu": models["F.glu"], "two": Two(lambda a, b: a * b.sigmoid())}
    assert_same_plans(models, sample(), inputs=known, last=2)


SWIGLU: dict[str, Gate] = {
    "F.silu": lambda a, b: F.silu(b) * a,
    "nn.SiLU": lambda a, b: a * nn.SiLU()(b),
    "by hand": lambda a, b: a * (b * torch.sigmoid(b)),
    "three factors": lambda a, b: a * b * torch.sigmoid(b),
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_spellings_of_swiglu_have_one_plan(inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_same_plans({kind: Two(gate) for kind, gate in SWIGLU.items()}, sample(), inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", ["F.glu", "chunk", "unbind"])
def test_what_a_gated_unit_gives_is_what_was_predicted(kind: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Packed(PACKED[kind]), sample, inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", ["F.silu", "three factors"])
def test_what_swiglu_gives_is_what_was_predicted(kind: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Two(SWIGLU[kind]), sample, inputs=known)
