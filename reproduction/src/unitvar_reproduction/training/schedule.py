"""How to train: optimiser, learning rate, penalty, batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["Schedule"]

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
    decay_vectors: bool = True
    """Whether biases and norms are penalised, too."""

    drops: tuple[float, ...] = (0.5, 0.75)
    forget: int | None = None
    """Forget the momentum every so many epochs."""

    shift: int = 0
    """If not 0: shift every image by up to so many pixels each way, and mirror half of them."""

    optimiser: str = "nesterov"
    precision: str = "float32"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("optimiser", self.optimiser, OPTIMISERS),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}.")
        for name, number, least in (("epochs", self.epochs, 1), ("batch", self.batch, 2), ("shift", self.shift, 0)):
            if number < least:
                raise ValueError(f"{name}={number} is not {least} or more.")
        if not self.rate > 0:
            raise ValueError(f"rate={self.rate} is not above 0.")

    def rate_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        # Rounded: two thirds of 150 epochs are 100, not the 101st.
        passed = sum(epoch >= round(fraction * self.epochs, 6) for fraction in self.drops)
        return self.rate / 10.0**passed

    def forgets_at(self, epoch: int) -> bool:
        """Return whether the momentum is forgotten before an epoch, counted from 0."""
        return self.forget is not None and epoch > 0 and epoch % self.forget == 0

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimiser over parameters. Fused: one kernel for the whole update, on CPUs too."""
        groups = self._groups(list(parameters))
        if self.optimiser == "adam":
            return torch.optim.Adam(groups, lr=self.rate, fused=True)
        return torch.optim.SGD(groups, lr=self.rate, momentum=self.momentum, nesterov=True, fused=True)

    def _groups(self, parameters: list[nn.Parameter]) -> list[dict[str, object]]:
        if self.decay_vectors:
            return [{"params": parameters, "weight_decay": self.weight_decay}]
        weights = [p for p in parameters if p.ndim > 1]
        vectors = [p for p in parameters if p.ndim <= 1]
        groups = ({"params": weights, "weight_decay": self.weight_decay}, {"params": vectors, "weight_decay": 0.0})
        return [group for group in groups if group["params"]]
