"""Four ways to set the statistics of BatchNorm after training with dropout."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from unitvar import reestimated_bn
from unitvar_reproduction.data.images import Images
from unitvar_reproduction.networks.architectures import drop_

__all__ = ["VARIANTS", "Batches", "in_every_variant", "variant"]

Found = TypeVar("Found")

VARIANTS = ("as trained", "dropout on", "variance only", "mean and variance")


@dataclass(frozen=True)
class Batches:
    """The training images in batches, shuffled in the same way each time they are read."""

    images: Images
    size: int = 100
    seed: int = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.images.batches(self.size, torch.Generator().manual_seed(self.seed))


def variant(name: str, model: nn.Module, batches: Iterable[Any]) -> AbstractContextManager[object]:
    """Give the model a variant's statistics for a while."""
    if name == "as trained":
        return nullcontext()
    if name == "dropout on":
        return _dropout_on(model, batches)
    return reestimated_bn(model, batches, stats="var" if name == "variance only" else "both")


@contextmanager
def _dropout_on(model: nn.Module, batches: Iterable[Any]) -> Iterator[None]:
    """Re-estimate just as otherwise, but with dropout on: what is left of the gain is not dropout's."""

    def forward(inner: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return drop_(inner)(batch[0])  # type: ignore[no-any-return]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Two forward passes")  # which is the point here
        context = reestimated_bn(model, batches, forward=forward)
        context.__enter__()
    try:
        yield
    finally:
        context.__exit__(None, None, None)


def in_every_variant(model: nn.Module, batches: Iterable[Any], measure: Callable[[], Found]) -> dict[str, Found]:
    """Measure under each variant's statistics; the model is as it was before."""
    found = {}
    for name in VARIANTS:
        with variant(name, model, batches):
            found[name] = measure()
    return found
