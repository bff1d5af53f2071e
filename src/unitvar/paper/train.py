"""One training loop, and what a trained model is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from unitvar.paper.data import Images
from unitvar.stochastic import evaluating

__all__ = ["Schedule", "evaluate", "seeded", "train"]


@dataclass(frozen=True)
class Schedule:
    """Nesterov momentum, its rate divided by ten at some fractions of the epochs."""

    epochs: int
    rate: float = 0.1
    batch: int = 64
    momentum: float = 0.9
    weight_decay: float = 2e-4  # the paper's penalty of 1e-4 on squares, whose derivative has a 2
    drops: tuple[float, ...] = (0.5, 0.75)

    def rate_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        passed = sum(epoch >= fraction * self.epochs for fraction in self.drops)
        return self.rate / 10.0**passed


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
) -> nn.Module:
    """Train in place, deterministically given the seed.

    Args:
        model: changed in place.
        data: what to train on.
        schedule: how.
        seed: of the order of the data and of dropout.
        after_epoch: called with the number of epochs done; what it draws does not disturb training.

    Returns:
        The model, in training mode.
    """
    order = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=schedule.rate,
        momentum=schedule.momentum,
        nesterov=True,
        weight_decay=schedule.weight_decay,
    )
    with seeded(seed):
        for epoch in range(schedule.epochs):
            model.train()
            for group in optimiser.param_groups:
                group["lr"] = schedule.rate_at(epoch)
            for images, labels in data.batches(schedule.batch, order):
                if len(labels) == 1:  # BatchNorm cannot normalise a single value
                    continue
                optimiser.zero_grad()
                torch.autograd.backward(F.cross_entropy(model(images), labels))
                optimiser.step()
            with torch.random.fork_rng(devices=[]):
                after_epoch(epoch + 1)
    return model.train()


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
