"""Training for a number of steps: a short warm-up, then a cosine down to zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unitvar_reproduction.data.tasks import Examples, scores_loss
from unitvar_reproduction.networks.architectures import evaluating
from unitvar_reproduction.training.loop import seeded
from unitvar_reproduction.training.schedule import Schedule

__all__ = ["Steps", "judge_scores", "train_steps"]

OPTIMISERS = ("adamw", "nesterov")


@dataclass(frozen=True)
class Steps:
    """How to train: AdamW, or Nesterov momentum 0.9, its rate warmed up linearly and then lowered by a cosine to 0."""

    steps: int
    rate: float
    batch: int
    optimiser: str = "adamw"
    warmup: float = 0.05
    """Fraction of the steps."""

    weight_decay: float = 0.01
    """Of AdamW, on matrices alone; momentum has none."""

    clip: float | None = None
    """The largest norm of all gradients together."""

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            raise ValueError(f"optimiser={self.optimiser!r} is not one of {', '.join(map(repr, OPTIMISERS))}.")
        if self.steps < 1 or self.batch < 2 or not self.rate > 0:
            raise ValueError(f"{self} needs a step, two examples a batch and a rate above 0.")

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return self.rate * (step + 1) / rising
        return self.rate * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, self.steps - rising)))

    def over(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimiser over a model's parameters."""
        if self.optimiser == "nesterov":
            return Schedule(1, self.rate, weight_decay=0.0).over(model.parameters())
        matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == wanted] for wanted in (True, False))
        groups = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.rate, fused=True)


def train_steps(
    model: nn.Module, examples: Examples, how: Steps, *, seed: int, points: int = 20
) -> tuple[list[float], int | None]:
    """Train in place, deterministically given the seed; leave the model in training mode.

    The seed draws the order of the examples, and by another generator the masks: two networks of one shape that differ
    in their weights alone see the same examples under the same masks.

    Args:
        model: changed in place.
        examples: what to train on; an epoch is a shuffle, without a last batch that is not full.
        how: optimiser, rate, batch, steps.
        seed: of everything drawn here.
        points: of the curve.

    Returns:
        The mean loss between points, the first point being the first step alone; the step at which the loss was found
        not to be finite, which ends training, else None.
    """
    next_batch = _shuffled(len(examples), how.batch, torch.Generator().manual_seed(seed))
    optimiser = how.over(model)
    ends = {1, *(math.ceil(how.steps * k / points) for k in range(1, points + 1))}
    curve: list[float] = []
    total, count = torch.zeros(()), 0
    model.train()
    with seeded(seed):
        for step in range(how.steps):
            for group in optimiser.param_groups:
                group["lr"] = how.rate_at(step)
            inputs, targets = examples[next_batch()]
            optimiser.zero_grad()
            loss = scores_loss(model(inputs), targets)
            torch.autograd.backward(loss)
            if how.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), how.clip)
            optimiser.step()
            total += loss.detach()
            count += 1
            if step + 1 in ends:
                curve.append(total.item() / count)
                if not math.isfinite(curve[-1]):
                    return curve, step + 1
                total, count = torch.zeros(()), 0
    return curve, None


def _shuffled(length: int, batch: int, generator: torch.Generator) -> Callable[[], Tensor]:
    if length < batch:
        raise ValueError(f"{length} examples do not fill a batch of {batch}; take smaller batches.")
    waiting: list[Tensor] = []

    def following() -> Tensor:
        if not waiting:
            order = torch.randperm(length, generator=generator)
            waiting.extend(part for part in torch.split(order, batch) if len(part) == batch)
            waiting.reverse()
        return waiting.pop()

    return following


@torch.no_grad()
def judge_scores(model: nn.Module, examples: Examples, batch: int = 250) -> dict[str, float]:
    """Return the mean log loss and the rate of wrong classes or pixels, with the model in evaluation."""
    loss, wrong, count = 0.0, 0, 0
    with evaluating(model):
        for start in range(0, len(examples), batch):
            inputs, targets = examples[slice(start, start + batch)]
            scores = model(inputs)
            loss += scores_loss(scores, targets, "sum").item()
            if targets.is_floating_point():
                wrong += int(((scores > 0) != (targets > 0.5)).sum())
            else:
                wrong += int((scores.argmax(-1) != targets).sum())
            count += targets.numel()
    return {"log_loss": loss / count, "error": wrong / count}
