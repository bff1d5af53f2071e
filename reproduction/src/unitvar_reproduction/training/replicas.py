"""One training in several processes: each takes its part of every batch, and they average their gradients.

``torchrun --nproc-per-node 4 --no-python unitvar-paper vgg …`` starts them; without it a process is alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["Replica", "joined", "launched", "leave", "replica"]


@dataclass(frozen=True)
class Replica:
    """A process's place among those that train one model together."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    def part(self, index: Tensor) -> Tensor:
        """Return this process's part of a batch."""
        return index if self.count == 1 else index[self.rank :: self.count]

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model to call in training: its gradients are the mean over all processes."""
        return nn.parallel.DistributedDataParallel(model) if self.count > 1 else model

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Let the processes run a block one after the other; an error in it ends this one, and torchrun the others."""
        for _ in range(self.rank):
            self.gather(None)
        yield
        for _ in range(self.rank, self.count):
            self.gather(None)

    def share_buffers(self, model: nn.Module) -> None:
        """Give all processes the first one's buffers.

        Each updates BatchNorm from its own part of a batch, and takes over the first one's only at its next step: in
        between, what they measure together would be of as many different models.
        """
        if self.count > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def sum(self, value: Tensor) -> Tensor:
        """Add up a tensor over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return everyone's value, by rank."""
        everyone: list[Any] = [value]
        if self.count > 1:
            everyone = [None] * self.count
            dist.all_gather_object(everyone, value)
        return everyone


def replica() -> Replica:
    """Return this process's place: alone, unless the processes of a torchrun have been joined."""
    if dist.is_available() and dist.is_initialized():
        return Replica(dist.get_rank(), dist.get_world_size())
    return Replica()


def launched() -> bool:
    """Return whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


@contextmanager
def joined() -> Iterator[Replica]:
    """Join the processes that torchrun started, by gloo, and by NCCL for what is on GPUs."""
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
    else:  # the processes share the cores
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["LOCAL_WORLD_SIZE"])))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield replica()
    finally:
        dist.destroy_process_group()


def leave(status: int) -> NoReturn:
    """End a process that has been joined with others, without taking the interpreter apart.

    ``DistributedDataParallel`` keeps gloo's threads alive beyond ``destroy_process_group``. Where one of them wants the
    interpreter's lock while that ends, the process aborts after all its work is done, rarely but truly.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
