"""The calls under attack. A new function of the library is one more row."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import unitvar

__all__ = ["BATCHES", "CALLS", "Call", "first", "victim"]

BATCHES = list(torch.randn(3, 12, 6, generator=torch.Generator().manual_seed(0)))


Run = Callable[[nn.Module, Iterable[Tensor]], Any]


@dataclass(frozen=True)
class Call:
    """A call under attack.

    Attributes:
        run: the call.
        all_or_nothing: whether a call that succeeds changes the model; one that fails never does.
        bare: for a block of the user's, what happens in it without the library, which may change what it likes.
    """

    run: Run
    all_or_nothing: bool = False
    bare: Run | None = None


def _in_context(model: nn.Module, batches: Iterable[Tensor]) -> None:
    with unitvar.reestimated_bn(model, batches):
        pass


def _trained(model: nn.Module, batches: Iterable[Tensor]) -> None:
    for batch in batches:
        leaves = [p for p in model.parameters() if p.requires_grad]
        torch.autograd.grad(model(batch).square().mean(), leaves, allow_unused=True)


def _watched(model: nn.Module, batches: Iterable[Tensor]) -> None:
    with unitvar.watch(model, every=2):
        _trained(model, batches)


def _applied(model: nn.Module, batches: Iterable[Tensor]) -> None:
    unitvar.plan(model, first(batches)).apply_(model)


def first(batches: Iterable[Tensor]) -> Tensor:
    """Give the first batch, for calls that take an example."""
    return next(iter(batches))


CALLS: dict[str, Call] = {
    "plan": Call(lambda model, batches: unitvar.plan(model, first(batches))),
    "initialize_, analytic": Call(lambda model, batches: unitvar.initialize_(model, first(batches)), True),
    "initialize_, measured": Call(
        lambda model, batches: unitvar.initialize_(model, first(batches), method="measured"), True
    ),
    "measure": Call(lambda model, batches: unitvar.measure(model, first(batches), runs=1)),
    "watch": Call(_watched, bare=_trained),
    "reestimate_bn_, one-pass": Call(lambda model, batches: unitvar.reestimate_bn_(model, batches), True),
    "reestimate_bn_, sequential": Call(
        lambda model, batches: unitvar.reestimate_bn_(model, batches, method="sequential"), True
    ),
    "reestimated_bn": Call(_in_context),
    "bn_statistics": Call(lambda model, batches: unitvar.bn_statistics(model, batches)),
    "Plan.apply_": Call(_applied, True),
    "expect": Call(lambda model, batches: unitvar.expect(model, first(batches))),
    "expect, with samples": Call(lambda model, batches: unitvar.expect(model, first(batches), samples=2)),
    "expected": Call(lambda model, batches: unitvar.expected(model)(first(batches))),
}


class Stateful(nn.Module):
    """State of every kind that a forward pass may change: buffers, attributes, containers, data, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("replaced", torch.zeros(()))
        self.calls, self.seen, self.by_name = 0, [], {}
        self.plain = torch.zeros(3)
        self.generator = torch.Generator().manual_seed(7)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.by_name[str(self.calls)] = 1
        self.average.lerp_(x.detach().mean(0), 0.1)
        self.replaced = self.replaced + 1
        self.plain.data.add_(1)
        noise = torch.randn(1, generator=self.generator) if self.training else 0.0
        return x + 0.01 * self.average + 0.0 * noise


class Clipped(nn.Linear):
    """A layer that writes to its own weight in every forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.clamp_(-0.3, 0.3)
        self.weight.data = self.weight.data * 0.99
        return super().forward(x)


def victim() -> nn.Sequential:
    """Build a model with all that a call could leave changed: state, gradients, hooks, mixed flags, a frozen layer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 6), nn.Dropout(0.3), nn.BatchNorm1d(6), Stateful(), Clipped(6, 6), nn.BatchNorm1d(6), nn.ReLU(),
        nn.Linear(6, 4),
    )  # fmt: skip
    model(BATCHES[0]).sum().backward()
    model[0].bias.grad = None
    model[6].eval()
    model[7].bias.requires_grad_(False)
    model[2].register_forward_hook(lambda *_: None)
    model[4].weight.register_hook(lambda g: None)
    model[7].weight.register_post_accumulate_grad_hook(lambda p: None)
    return model
