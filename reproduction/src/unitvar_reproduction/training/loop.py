"""One training loop, and what a trained model is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from unitvar_reproduction.data.augment import draw_moves, moved
from unitvar_reproduction.data.images import Images
from unitvar_reproduction.networks.architectures import drop_, evaluating
from unitvar_reproduction.training.checkpoint import State
from unitvar_reproduction.training.replicas import Replica, replica
from unitvar_reproduction.training.schedule import Schedule

__all__ = ["Curve", "Schedule", "averages", "evaluate", "judge", "seeded", "train"]


@dataclass(frozen=True)
class Curve:
    """The mean log loss of the batches between points, equally spaced in each epoch, and where training diverged."""

    points: int
    training: tuple[float, ...]
    diverged: float | None = None
    """Epochs done when loss or weights were no longer finite; training stopped there."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch for a block, and give its generators back as they were."""
    with undisturbed():
        torch.manual_seed(seed)
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Give torch's generators, the CPU's and the GPU's in use, back as they were."""
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
        yield


def train(
    model: nn.Module,
    data: Images,
    schedule: Schedule,
    *,
    seed: int,
    after_epoch: Callable[[int], object] = lambda epoch: None,
    enough: Callable[[Sequence[float]], bool] = lambda losses: False,
    points: int = 1,
    at_point: Callable[[], object] = lambda: None,
    notes: dict[str, Any] | None = None,
    checkpoint: Path | None = None,
    compiled: bool = False,
) -> Curve:
    """Train in place, deterministically given the seed; leave the model in training mode.

    Called in each process of a torchrun, all train one model: the batch is the schedule's, each process has a part.

    Args:
        model: changed in place. The data must be on its device.
        data: what to train on.
        schedule: how.
        seed: of the order of the data, of their augmentation and of dropout.
        after_epoch: called with the number of epochs done; what it draws does not disturb training.
        enough: asked before each epoch, given the losses so far, whether to stop there.
        points: how many points of the curve an epoch has.
        at_point: called at each; what it draws does not disturb training.
        notes: what the two callbacks have to remember; it goes into the checkpoint, and comes out of it.
        checkpoint: a file, written after every epoch; if it is there, training goes on from it.
        compiled: whether to compile the model first.

    Returns:
        The loss on the way. A loss that is not finite ends training at the next point, and so do weights or statistics
        that are not finite at the end of an epoch; that is a result, not an error.
    """
    place = replica()
    optimiser, order = schedule.over(model.parameters()), torch.Generator().manual_seed(seed)
    state = State(model, optimiser, order, {} if notes is None else notes)
    with seeded(seed + 1_000_003 * place.rank):  # every process drops other units
        if checkpoint is not None and checkpoint.exists():
            state.load(checkpoint)
        model.train()
        called = place.wrap(model)
        if compiled:
            # Each size of a batch by itself: else a second one, the last of an epoch, makes code for any size, which
            # the first takes over from then on, but not yet where training has just gone on from a checkpoint.
            called = torch.compile(called, dynamic=False)  # type: ignore[assignment]
        for epoch in range(state.epoch, schedule.epochs):
            if enough(state.losses):
                break
            diverged = _epoch(called, data, schedule, state, points, at_point, place)
            if diverged is None and not _finite(model):  # by its last step, which no loss has seen
                diverged = 1.0
            if diverged is not None:
                return Curve(points, tuple(state.losses), epoch + diverged)
            with undisturbed():
                after_epoch(epoch + 1)
            state.epoch = epoch + 1
            if checkpoint is not None:
                state.save(checkpoint)
    return Curve(points, tuple(state.losses))


def _epoch(
    model: nn.Module,
    data: Images,
    schedule: Schedule,
    state: State,
    points: int,
    at_point: Callable[[], object],
    place: Replica,
) -> float | None:
    """Train an epoch; return None, or how much of it was done when the loss was no longer finite."""
    for group in state.optimiser.param_groups:
        group["lr"] = schedule.rate_at(state.epoch)
    if schedule.forgets_at(state.epoch):
        state.optimiser.state.clear()
    batches = _batches(data, schedule, state.order, place)
    ends = {math.ceil(len(batches) * k / points) for k in range(1, points + 1)}
    # Summed as a tensor: reading a number off the device at each step would make every step wait.
    total, count = torch.zeros((), device=data.labels.device), 0
    for i, index in enumerate(batches, 1):
        moves = draw_moves(len(index), schedule.shift, state.order) if schedule.shift else None
        own = data[place.part(index)]
        images = own.images if moves is None else moved(own.images, place.part(moves), schedule.shift)
        # The mean over all of the batch, as a mean over processes whose parts may differ by one.
        share = len(own) * place.count / len(index)
        total += _step(model, images, own.labels, state.optimiser, schedule.precision, share)
        count += 1
        if i in ends:
            state.losses.append(place.sum(total).item() / (count * place.count))
            if not math.isfinite(state.losses[-1]):
                return i / len(batches)
            total.zero_()
            count = 0
            place.share_buffers(state.model)
            with undisturbed():
                at_point()
    return None


def _finite(model: nn.Module) -> bool:
    return all(bool(value.isfinite().all()) for value in model.state_dict().values())


def _batches(data: Images, schedule: Schedule, order: torch.Generator, place: Replica) -> list[Tensor]:
    """Shuffle the data into batches, without a last one too small for BatchNorm to normalise in every process."""
    batches = torch.split(torch.randperm(len(data), generator=order), schedule.batch)
    kept = [index for index in batches if len(index) >= 2 * place.count]
    if not kept:
        raise ValueError(
            f"{len(data)} images in batches of {schedule.batch} over {place.count} processes leave no batch with two "
            "images for each process. Take more images, larger batches or fewer processes."
        )
    return kept


def _step(
    model: nn.Module, images: Tensor, labels: Tensor, optimiser: torch.optim.Optimizer, precision: str, share: float
) -> Tensor:
    optimiser.zero_grad()
    with nullcontext() if precision == "float32" else torch.autocast(images.device.type, torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    loss = loss if share == 1 else loss * share
    torch.autograd.backward(loss)
    optimiser.step()
    return loss.detach()


@torch.no_grad()
def judge(
    model: nn.Module, data: Images, batch: int = 500, *, dropout: bool = False, integrated: bool = False
) -> tuple[Tensor, float]:
    """Return whether each image of this process's part is taken for another, and the sum of their log losses."""
    place = replica()
    wrong, loss = [], 0.0
    with evaluating(model):
        ask = _mixed(model) if integrated else drop_(model) if dropout else model
        for images, labels in data[place.rank :: place.count].batches(batch):
            logits = ask(images)
            wrong.append(logits.argmax(dim=1) != labels)
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
    return torch.cat(wrong), loss


def _mixed(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a network that answers with the log of its probabilities, averaged over all masks of its dropout."""
    expected = unitvar.expected(model)
    return lambda images: expected.expect(images).probabilities.clamp_min(1e-12).log()


def evaluate(
    model: nn.Module, data: Images, batch: int = 500, *, dropout: bool = False, integrated: bool = False
) -> dict[str, float]:
    """Return the error rate and the mean log loss; processes of a torchrun share the work.

    Args:
        model: its modes are put back.
        data: what to judge it by.
        batch: images at once.
        dropout: whether to leave dropout on, as in training; all else is in evaluation mode.
        integrated: whether to integrate dropout out by :func:`unitvar.expected`.
    """
    return averages(*judge(model, data, batch, dropout=dropout, integrated=integrated))


def averages(wrong: Tensor, loss: float) -> dict[str, float]:
    """Return the means, over all processes, of what they have judged."""
    sums = torch.tensor([int(wrong.sum()), loss, len(wrong)], dtype=torch.float64)  # on the CPU: MPS has no float64
    errors, losses, count = replica().sum(sums).tolist()
    return {"error": errors / count, "log_loss": losses / count}
