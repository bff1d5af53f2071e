"""One network: what flows through it before training, whether it trains, and what flows through it then."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from unitvar import VarianceReport
from unitvar_reproduction import data
from unitvar_reproduction.experiments.verdicts.networks import LEVELS, Spec

__all__ = ["OPTIMISERS", "TRAINS", "Trial", "run"]

OPTIMISERS = {"AdamW": (1e-3, 1e-4), "SGD with momentum": (0.03, 0.003)}
"""Optimiser → learning rates; a network trains if it does under any of them."""

TRAINS = 0.85
"""The share of the loss of a constant guess that training has to get below."""

BEGINS = 2.0
"""A first loss above this multiple of that of equal odds, log(outputs), is a failure, too: confident and wrong."""


@dataclass(frozen=True)
class Trial:
    """What was found of one network.

    Attributes:
        name: of the network.
        fill: its initialisation: "PyTorch's default", "ours" or "its own".
        fails: whether it begins above twice the loss of equal odds, or does not get below 0.85 of a constant guess.
        begins: its first loss over that of equal odds.
        ends: its last loss over that of a constant guess, by optimiser and rate, as many as were tried.
        before: the report at initialisation.
        after: the report after training; None if it fails.
    """

    name: str
    fill: str
    fails: bool
    begins: float
    ends: dict[str, float]
    before: VarianceReport = field(repr=False)
    after: VarianceReport | None = field(repr=False)


class Task:
    """The 8x8 digits as a network takes them."""

    def __init__(self, kind: str) -> None:
        train, _ = data.digits(0)
        images, labels = train.images, train.labels
        levels = (
            ((images - images.min()) / (images.max() - images.min()) * (LEVELS - 1)).round().long().flatten(1)[:, 16:48]
        )
        if kind == "rows":
            self.x, self.y = images.flatten(1), labels
        elif kind == "images":
            self.x, self.y = F.interpolate(images, scale_factor=2).expand(-1, 3, -1, -1).contiguous(), labels
        elif kind == "tokens":
            self.x, self.y = levels, labels
        else:  # next
            self.x, self.y = levels[:, :-1], levels[:, 1:]
        shares = torch.bincount(self.y.flatten()).double() / self.y.numel()
        self.constant = -float((shares[shares > 0] * shares[shares > 0].log()).sum())

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the cross entropy."""
        return F.cross_entropy(output.flatten(0, -2), y.flatten())

    def batches(self, steps: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Draw batches by a seed of their own."""
        generator = torch.Generator().manual_seed(1)
        for _ in range(steps):
            index = torch.randint(len(self.x), (size,), generator=generator)
            yield self.x[index], self.y[index]


def run(name: str, spec: Spec, fill: str, *, steps: int, size: int = 32) -> Trial:
    """Measure, train and measure again.

    Args:
        name: of the network.
        spec: how to build it, and its task.
        fill: "ours" plans its weights; any other leaves them as they are built.
        steps: of training, for each optimiser and rate.
        size: examples in a batch.
    """
    task = Task(spec.task)
    before = unitvar.measure(_built(spec, fill, task), task.x[:64])
    begins = _first(_built(spec, fill, task).train(), task)
    ends: dict[str, float] = {}
    best: tuple[float, nn.Module] | None = None
    for optimiser, rate in ((o, r) for o, rates in OPTIMISERS.items() for r in rates):
        model = _built(spec, fill, task)
        end = ends[f"{optimiser}, {rate:g}"] = _trained(model, task, optimiser, rate, steps, size)
        if math.isfinite(end) and (best is None or end < best[0]):
            best = end, model
        if end < TRAINS:
            break
    fails = best is None or best[0] >= TRAINS or not begins < BEGINS
    after = None if fails or best is None else unitvar.measure(best[1], task.x[:64])
    return Trial(name, fill, fails, begins, ends, before, after)


def _built(spec: Spec, fill: str, task: Task) -> nn.Module:
    torch.manual_seed(0)
    model = spec.build()
    if fill == "ours":
        unitvar.initialize_(model, task.x[:64])
    return model


def _trained(model: nn.Module, task: Task, optimiser: str, rate: float, steps: int, size: int) -> float:
    kind = torch.optim.AdamW if optimiser == "AdamW" else partial(torch.optim.SGD, momentum=0.9)
    made: torch.optim.Optimizer = kind(model.parameters(), lr=rate)
    model.train()
    for x, y in task.batches(steps, size):
        loss = task.loss(model(x), y)
        if not math.isfinite(loss.item()):
            return math.inf
        made.zero_grad()
        torch.autograd.backward(loss)
        made.step()
    with torch.no_grad():
        return float(task.loss(model(task.x[:256]), task.y[:256])) / task.constant


@torch.no_grad()
def _first(model: nn.Module, task: Task) -> float:
    output = model(task.x[:256])
    return float(task.loss(output, task.y[:256])) / math.log(output.shape[-1])
