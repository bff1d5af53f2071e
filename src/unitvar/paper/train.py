"""One training loop, and what a trained model is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unitvar.paper.data import Images
from unitvar.stochastic import evaluating

__all__ = ["Curve", "Schedule", "evaluate", "seeded", "train"]

OPTIMISERS = ("nesterov", "adam")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Schedule:
    """Nesterov momentum or Adam, its rate divided by ten at some fractions of the epochs."""

    epochs: int
    rate: float = 0.1
    batch: int = 64
    momentum: float = 0.9
    weight_decay: float = 2e-4  # the paper's penalty of 1e-4 on squares, whose derivative has a 2
    drops: tuple[float, ...] = (0.5, 0.75)
    optimiser: str = "nesterov"
    precision: str = "float32"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("optimiser", self.optimiser, OPTIMISERS),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}.")

    def rate_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        passed = sum(epoch >= fraction * self.epochs for fraction in self.drops)
        return self.rate / 10.0**passed

    def over(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimiser over parameters. Fused: one kernel for the whole update, on CPUs too."""
        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, lr=self.rate, weight_decay=self.weight_decay, fused=True)
        return torch.optim.SGD(
            parameters, lr=self.rate, momentum=self.momentum, nesterov=True, weight_decay=self.weight_decay, fused=True
        )


@dataclass(frozen=True)
class Curve:
    """The mean log loss of the batches between points, equally spaced in each epoch, and where training diverged."""

    points: int
    training: tuple[float, ...]
    diverged: float | None = None
    """Epochs done when the loss was no longer finite; training stopped there."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch for a block, and give the global generator back as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def train(
    model: nn.Module,
    data: Images,
    schedule: Schedule,
    *,
    seed: int,
    after_epoch: Callable[[int], object] = lambda epoch: None,
    points: int = 1,
    at_point: Callable[[], object] = lambda: None,
) -> Curve:
    """Train in place, deterministically given the seed; leave the model in training mode.

    Args:
        model: changed in place; it may be compiled. The data must be on its device.
        data: what to train on.
        schedule: how.
        seed: of the order of the data and of dropout.
        after_epoch: called with the number of epochs done; what it draws does not disturb training.
        points: how many points of the curve an epoch has.
        at_point: called at each; what it draws does not disturb training.

    Returns:
        The loss on the way. A loss that is not finite ends training at the next point; that is a result, not an error.
    """
    order = torch.Generator().manual_seed(seed)
    optimiser = schedule.over(model.parameters())
    batches = math.ceil(len(data) / schedule.batch)
    ends = {math.ceil(batches * k / points) for k in range(1, points + 1)}
    losses: list[float] = []
    with seeded(seed):
        model.train()
        for epoch in range(schedule.epochs):
            for group in optimiser.param_groups:
                group["lr"] = schedule.rate_at(epoch)
            # Summed as a tensor: reading a number off the device at each step would make every step wait.
            total, count = torch.zeros((), device=data.labels.device), 0
            for i, (images, labels) in enumerate(data.batches(schedule.batch, order), 1):
                if len(labels) > 1:  # BatchNorm cannot normalise a single value
                    total += _step(model, images, labels, optimiser, schedule.precision)
                    count += 1
                if i in ends:
                    losses.append(total.item() / max(count, 1))
                    if not math.isfinite(losses[-1]):
                        return Curve(points, tuple(losses), epoch + i / batches)
                    total.zero_()
                    count = 0
                    with torch.random.fork_rng(devices=[]):
                        at_point()
            with torch.random.fork_rng(devices=[]):
                after_epoch(epoch + 1)
    return Curve(points, tuple(losses))


def _step(model: nn.Module, images: Tensor, labels: Tensor, optimiser: torch.optim.Optimizer, precision: str) -> Tensor:
    optimiser.zero_grad()
    with nullcontext() if precision == "float32" else torch.autocast(images.device.type, torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    torch.autograd.backward(loss)
    optimiser.step()
    return loss.detach()


@torch.no_grad()
def evaluate(model: nn.Module, data: Images, batch: int = 500) -> dict[str, float]:
    """Return the error rate and the mean log loss, in evaluation mode."""
    wrong, loss = 0, 0.0
    with evaluating(model):
        for images, labels in data.batches(batch):
            logits = model(images)
            wrong += int((logits.argmax(dim=1) != labels).sum())
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
    return {"error": wrong / len(data), "log_loss": loss / len(data)}
