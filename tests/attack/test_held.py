"""State that a model keeps where torch does not look comes back, and torch's surroundings do not change a result."""

from collections import deque

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.attack.calls import BATCHES, CALLS

pytestmark = pytest.mark.usefixtures("untyped")


class Keeper(nn.Module):
    """Change, in every forward pass, state in slots, in containers, in arrays, in a hidden module and in flags."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "slot", 0)
        self.weight = nn.Parameter(torch.eye(6))
        self.cache = {"deep": [torch.zeros(6)], "pair": (torch.zeros(1),)}
        self.window, self.array, self.raw = deque([1], maxlen=3), np.zeros(2), bytearray(b"ab")
        self.teacher = [nn.BatchNorm1d(6)]
        self.grown = torch.zeros(3)
        self.generators = [torch.Generator().manual_seed(1)]

    def forward(self, x: Tensor) -> Tensor:
        object.__setattr__(self, "slot", self.slot + 1)
        self.cache["deep"][0].add_(1)
        self.cache["pair"][0].add_(1)
        self.window.append(2)
        self.array += 1
        self.raw[0] += 1
        self.grown.resize_(5)
        torch.rand(6, generator=self.generators[0])
        self.weight.requires_grad_(False)
        hook = self.weight.detach().requires_grad_().register_hook(lambda g: g)
        hook.remove()
        return x @ self.weight + 0 * self.teacher[0](x)


def kept(model: nn.Sequential) -> list[object]:
    own = model[0]
    return [
        own.slot, own.cache["deep"][0].tolist(), own.cache["pair"][0].tolist(), list(own.window), own.array.tolist(),
        bytes(own.raw), own.grown.tolist(), own.generators[0].get_state().tolist(), own.weight.requires_grad,
        [b.tolist() for b in own.teacher[0].buffers()],
    ]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CALLS if name != "watch"])
def test_state_that_torch_does_not_know_of_comes_back(name: str) -> None:
    model = nn.Sequential(Keeper(), nn.Linear(6, 6), nn.Dropout(0.3), nn.BatchNorm1d(6))
    before = kept(model)
    CALLS[name].run(model, BATCHES)
    assert kept(model) == before


def test_hooks_that_a_forward_pass_adds_to_a_parameter_are_gone() -> None:
    class Hooking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.weight.register_hook(lambda g: g)
            return super().forward(x)

    model = nn.Sequential(Hooking(6, 6), nn.BatchNorm1d(6))
    unitvar.reestimate_bn_(model, BATCHES)
    assert not model[0].weight._backward_hooks


def test_every_run_inside_autocast_is_measured() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = unitvar.measure(model, BATCHES[0], runs=3)
    plain = unitvar.measure(model, BATCHES[0], runs=3)
    assert [row["size"] for row in found.rows] == [row["size"] for row in plain.rows]


def test_weights_filled_inside_autocast_are_used_at_once() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(BATCHES[0])
        unitvar.initialize_(model, BATCHES[0])
        inside = model(BATCHES[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(inside, model(BATCHES[0]))


def test_the_default_device_does_not_matter_to_measure() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    with torch.device("meta"):
        found = unitvar.measure(model, BATCHES[0], runs=1)
    assert found.rows == unitvar.measure(model, BATCHES[0], runs=1).rows


def test_statistics_that_are_expanded_come_back() -> None:
    norm = nn.BatchNorm1d(6)
    norm.running_var = torch.ones(1).expand(6)
    unitvar.measure(nn.Sequential(nn.Linear(6, 6), norm), BATCHES[0], runs=1)
    assert norm.running_var.tolist() == [1.0] * 6
