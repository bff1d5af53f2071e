"""Training that stops and goes on: everything an epoch starts from, in one file that torch loads as data only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unitvar_reproduction import record
from unitvar_reproduction.training.replicas import replica

__all__ = ["State", "check"]


@dataclass
class State:
    """What training has come to: with it, an epoch ends in the same bits whether or not the last one was just now."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    order: torch.Generator
    notes: dict[str, Any]
    """What the caller keeps beside training; numbers, strings, tensors, and lists and dicts of them."""

    epoch: int = 0
    losses: list[float] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write a checkpoint whole or not at all; if several processes train, the first writes for all."""
        place = replica()
        random = place.gather(_random())
        if not place.first:
            return
        saved = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "order": self.order.get_state(),
            "random": random,
            "notes": self.notes,
            "epoch": self.epoch,
            "losses": self.losses,
        }
        with record.replacing(path) as file:
            torch.save(saved, file)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint; the notes' dict is filled, not replaced."""
        place = replica()
        saved = check(path)
        processes = len(saved["random"])
        if processes != place.count:
            raise ValueError(
                f"{path} was saved by {processes} processes and this is one of {place.count}: they would not go on "
                "with the same random numbers. Start as many as before, or delete the file to start over."
            )
        with _explained(path):
            self.model.load_state_dict(saved["model"])
            self.optimiser.load_state_dict(saved["optimiser"])
            self.order.set_state(saved["order"])
            _set_random(saved["random"][place.rank])
            self.notes.clear()
            self.notes.update(saved["notes"])
            self.epoch = saved["epoch"]
            self.losses = saved["losses"]


PARTS: dict[str, type] = {
    "model": dict,
    "optimiser": dict,
    "order": torch.Tensor,
    "random": list,
    "notes": dict,
    "epoch": int,
    "losses": list,
}


def check(path: Path) -> dict[str, Any]:
    """Read a checkpoint and refuse what is none, in milliseconds: before data are read or a network is built.

    Args:
        path: the file.

    Returns:
        Its parts, each of its type.
    """
    with _explained(path):
        saved = torch.load(path, map_location="cpu", weights_only=True)
        for name, kind in PARTS.items():
            if not isinstance(saved[name], kind) or isinstance(saved[name], bool):
                raise TypeError(f"{name} is a {type(saved[name]).__name__}, not a {kind.__name__}")
        if not all(isinstance(loss, float) for loss in saved["losses"]):
            raise TypeError("losses are not all floats")
        if not saved["random"] or not all(isinstance(r, list) and r for r in saved["random"]):
            raise TypeError("random is not a list of random states for each process")
        if saved["epoch"] < 0:
            raise ValueError(f"epoch is {saved['epoch']}")
        return dict(saved)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Name the file in whatever error a broken or foreign one leads to, of which there are many kinds."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{path} is no checkpoint of this training that can be read ({reason}). Delete it to start over."
        ) from error


def _random() -> list[torch.Tensor]:
    """Return the state of torch's random numbers, on the CPU and on the GPU in use."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if torch.cuda.is_available() else states


def _set_random(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[1])
