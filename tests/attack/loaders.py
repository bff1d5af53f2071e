"""Odd loaders: infinite, empty, dying, of every shape of batch."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import unitvar
from tests.attack.calls import BATCHES, victim
from tests.attack.case import Case
from tests.attack.snapshot import differences, snapshot

__all__ = ["LOADERS", "odd_loaders"]

X = torch.cat(BATCHES)


class _Dying(Dataset[Tensor]):
    """A dataset whose worker is killed, or raises."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Tensor:
        if index == 20:
            if self.how == "killed":
                os.kill(os.getpid(), 9)
            raise StopIteration if self.how == "stops" else OSError("a broken file")
        return X[index]


class _Endless:
    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield BATCHES[0]


class _Pair(NamedTuple):
    x: Tensor
    y: Tensor


def _bad(value: float) -> list[Tensor]:
    worse = BATCHES[1].clone()
    worse[3, 2] = value
    return [BATCHES[0], worse, BATCHES[2]]


def _shuffled() -> list[Tensor]:
    """Batches of changing size, one with a single example."""
    return [X[:5], X[5:6], X[6:]]


# What is passed, how, and whether it succeeds; anything else has to raise and leave no trace.
LOADERS: dict[str, tuple[Callable[[], Iterable[Any]], dict[str, Any], bool]] = {
    "infinite, max_batches": (_Endless, {"max_batches": 3}, True),
    "infinite, tolerance": (_Endless, {"tolerance": 0.1}, True),
    "empty": (list, {}, False),
    "a used-up generator": (lambda: iter(()), {}, False),
    "a generator": (lambda: (b for b in BATCHES), {}, True),
    "a generator, sequential": (lambda: (b for b in BATCHES), {"method": "sequential"}, False),
    "tuples": (lambda: [(b, 0) for b in BATCHES], {}, True),
    "named tuples": (lambda: [_Pair(b, b) for b in BATCHES], {}, True),
    "lists": (lambda: [[b, b] for b in BATCHES], {}, True),
    "dicts": (lambda: [{"input": b} for b in BATCHES], {}, True),
    "dicts of other keys": (lambda: [{"x": b} for b in BATCHES], {}, False),
    "nested": (lambda: [({"deep": (b,)},) for b in BATCHES], {"forward": lambda m, b: m(b[0]["deep"][0])}, True),
    "one tensor": (lambda: BATCHES[0], {}, False),
    "a dict": (lambda: {"x": BATCHES[0]}, {}, False),
    "numbers": (lambda: [1, 2, 3], {}, False),
    "NaN": (lambda: _bad(torch.nan), {}, False),
    "infinity": (lambda: _bad(torch.inf), {}, False),
    "changing sizes": (_shuffled, {}, True),
    "changing shapes": (lambda: [X[:8], torch.zeros(8, 7)], {}, False),
    "an empty batch, whose mean is NaN": (lambda: [X[:8], X[:0], X[8:]], {}, False),
    "integers": (lambda: [b.long() for b in BATCHES], {}, False),
    "a worker that raises": (lambda: DataLoader(_Dying("raises"), batch_size=9, num_workers=1), {}, False),
    "a worker that raises StopIteration": (lambda: DataLoader(_Dying("stops"), batch_size=9, num_workers=1), {}, False),
    "a dataset that raises StopIteration": (lambda: DataLoader(_Dying("stops"), batch_size=9), {}, False),
    "a worker that is killed": (lambda: DataLoader(_Dying("killed"), batch_size=9, num_workers=1), {}, False),
}


def odd_loaders() -> Iterator[Case]:
    """Re-estimate from every odd loader: the right statistics, or an error and no trace."""
    for name, (make, options, works) in LOADERS.items():
        model: nn.Module = victim()
        before = snapshot(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                unitvar.reestimate_bn_(model, make(), **options)
            except Exception as error:
                left = differences(before, snapshot(model))
                yield Case(name, not works and not left, f"{type(error).__name__}: {str(error)[:100]}; {left}")
            else:
                yield Case(name, works, "done")
