"""The tasks of the training study: real data, split into what to train on, to tune on and to report on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from unitvar_reproduction import data
from unitvar_reproduction.data.images import Images, standardised

__all__ = ["LENGTH", "TASKS", "Examples", "Task", "load", "scores_loss"]

LENGTH = 32  # characters
HELD_OUT, REPORTED = 2500, 5000  # images


@dataclass(frozen=True)
class Examples:
    """Inputs and targets, the first index of both being the example."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: slice | Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


@dataclass(frozen=True)
class Task:
    """Three disjoint sets of examples. Targets are classes, or where floating, a probability a pixel."""

    training: Examples
    tuning: Examples
    report: Examples


def scores_loss(scores: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Return the log loss of scores against targets of either kind, in nats for each class or pixel."""
    if targets.is_floating_point():
        return F.binary_cross_entropy_with_logits(scores, targets, reduction=reduction)
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction=reduction)


@functools.lru_cache(maxsize=2)
def load(name: str, data_dir: Path | None = None) -> Task:
    """Return a task by its name, read once in a process."""
    if name not in TASKS:
        raise ValueError(f"task={name!r} is not one of {', '.join(map(repr, TASKS))}.")
    return TASKS[name](data_dir)


def _classes(data_dir: Path | None) -> Task:
    """CIFAR-10 at 16x16, averaged over 2x2 pixels, standardised."""
    return _images(*(Images(F.avg_pool2d(part.images, 2), part.labels) for part in data.cifar10(data_dir)))


def _digits(data_dir: Path | None) -> Task:
    """MNIST as published, standardised."""
    return _images(*data.mnist(data_dir))


def _images(everything: Images, test: Images) -> Task:
    held_out = min(HELD_OUT, len(everything) // 5)
    tuning, training = everything.split(held_out, seed=0)
    parts = standardised(training, tuning, test[:REPORTED])
    return Task(*(Examples(part.images, part.labels) for part in parts))


def _next_character(data_dir: Path | None) -> Task:
    """Tiny Shakespeare: each next character of 32; the last tenth of the text is held out."""
    parts = [part.windows(LENGTH + 1) for part in data.tinyshakespeare(data_dir).split(0.9, 0.95)]
    training, *others = (Examples(windows[:, :-1], windows[:, 1:]) for windows in parts)
    return Task(training, *(Examples(*part[::LENGTH]) for part in others))


def _segments(data_dir: Path | None) -> Task:
    """MNIST digits of 14x14 in a random colour on 16x16 crops of CIFAR-10 images: say for each pixel if it is digit."""
    generator = torch.Generator().manual_seed(0)
    (scenes, other_scenes), (digits, other_digits) = data.cifar10(data_dir), data.mnist(data_dir)
    everything = _pasted(scenes.images, digits.images, 20_000, generator)
    reported = _pasted(other_scenes.images, other_digits.images, REPORTED, generator)
    held_out = min(HELD_OUT, len(everything) // 5)
    std, mean = torch.std_mean(everything.inputs[held_out:], dim=(0, 2, 3), keepdim=True)
    tuning, training = (Examples(*everything[part]) for part in (slice(held_out), slice(held_out, None)))
    return Task(*(Examples((e.inputs - mean) / std, e.targets) for e in (training, tuning, reported)))


def _pasted(scenes: Tensor, digits: Tensor, most: int, generator: torch.Generator) -> Examples:
    count = min(most, len(scenes), len(digits))

    def drawn(high: int) -> Tensor:
        return torch.randint(high, (count,), generator=generator)

    crops = _cropped(scenes[torch.randperm(len(scenes), generator=generator)[:count]], 16, drawn(17), drawn(17))
    small = F.avg_pool2d(digits[torch.randperm(len(digits), generator=generator)[:count]], 2)
    ink = _cropped(F.pad(small, (2, 2, 2, 2)), 16, drawn(3), drawn(3))
    colour = torch.rand(count, 3, 1, 1, generator=generator)
    return Examples(crops * (1 - ink) + colour * ink, (ink > 0.5).float().squeeze(1))


def _cropped(images: Tensor, side: int, top: Tensor, left: Tensor) -> Tensor:
    """Cut a square out of each image [N, C, H, W], each at its own place."""
    each, steps = torch.arange(len(images)), torch.arange(side)
    rows, columns = top[:, None] + steps, left[:, None] + steps
    return images.permute(0, 2, 3, 1)[each[:, None, None], rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def _reconstruction(data_dir: Path | None) -> Task:
    """MNIST at 14x14, standardised: give back the brightness of each pixel."""
    parts = (Images(F.avg_pool2d(part.images, 2), part.labels) for part in data.mnist(data_dir))
    everything, test = parts
    tuning, training = everything.split(min(HELD_OUT, len(everything) // 5), seed=0)
    raw = training, tuning, test[:REPORTED]
    pairs = zip(standardised(*raw), raw, strict=True)
    return Task(*(Examples(seen.images, given.images.flatten(1)) for seen, given in pairs))


TASKS: dict[str, Callable[[Path | None], Task]] = {
    "classes": _classes,
    "digits": _digits,
    "next character": _next_character,
    "segments": _segments,
    "reconstruction": _reconstruction,
}
