"""Agreeing between processes, once a sweep, in a way that no failure can hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from unitvar._torch import default_store

Result = TypeVar("Result")
Group = Any  # None, False or a torch.distributed.ProcessGroup


def resolve(group: Group) -> Group:
    """Return the process group to merge over, or None when this process is alone."""
    if group is False or not dist.is_available() or not dist.is_initialized():
        if group not in (None, False):
            raise ValueError("group is a process group, but torch.distributed is not initialised: pass group=False.")
        return None
    if group is None:
        group = dist.group.WORLD
    if dist.get_rank(group) < 0:
        raise ValueError("This process is not in group: pass a group that it belongs to, or group=False.")
    return group if dist.get_world_size(group) > 1 else None


def first(group: Group) -> bool:
    """Return whether this process is alone, or the group's rank 0."""
    return group is None or dist.get_rank(group) == 0


class _Arrivals:
    """Count in the group's store how often each rank has come so far: a broken collective does not name who is missing.

    Args:
        group: a resolved group.
    """

    def __init__(self, group: Group) -> None:
        self.ranks = dist.get_process_group_ranks(group)
        self.mine = self._count(dist.get_rank(), 1)

    def missing(self) -> list[int]:
        """List the ranks of the group that have come less often than this one."""
        counts = enumerate(self._count(rank, 0) for rank in self.ranks)
        return [i for i, count in counts if count is not None and self.mine is not None and count < self.mine]

    def _count(self, rank: int, more: int) -> int | None:
        """Raise a rank's count; None if there is no store any more, whose host may be the one that is missing."""
        try:
            key = f"unitvar/{'-'.join(map(str, self.ranks))}/{rank}"
            return int(default_store().add(key, more))
        except (RuntimeError, ValueError):
            return None


def gather(work: Callable[[], Result], group: Group) -> list[Result]:
    """Run a piece of work on every rank and give all results, in rank order, to each of them.

    A rank whose work fails still takes part, so nobody waits for it in vain: it raises its own error, the others one
    that names it.

    Args:
        work: what this rank does; no collective may run inside it.
        group: a resolved group; None gives the one result.

    Returns:
        The results of all ranks, the same list everywhere.
    """
    if group is None:
        return [work()]
    result, failure = None, None
    try:
        result = work()
    except BaseException as error:  # KeyboardInterrupt too: it is raised again below
        failure = error
    mine = (None if failure is None else f"{type(failure).__name__}: {failure}", result)
    everyone: list[Any] = [None] * dist.get_world_size(group)
    arrivals, lost = _Arrivals(group), None
    try:
        dist.all_gather_object(everyone, mine, group=group)
    except RuntimeError as error:
        lost = error
    if failure is not None:
        raise failure
    if lost is not None:
        missing = ", ".join(map(str, arrivals.missing()))
        who = f"Rank {missing} stopped" if missing else "The process group failed"
        raise RuntimeError(
            f"{who} while re-estimating BatchNorm: it was killed, ran out of memory or lost its connection "
            f"({lost}). This rank's model was not changed. Restart all ranks."
        ) from lost
    for rank, (message, _) in enumerate(everyone):
        if message is not None:
            raise RuntimeError(
                f"Rank {rank} failed while re-estimating BatchNorm ({message}). This rank's model was not changed."
            )
    return [result for _, result in everyone]
