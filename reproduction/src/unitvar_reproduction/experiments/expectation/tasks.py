"""The networks that are trained, and on what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unitvar_reproduction import data, networks
from unitvar_reproduction.data.images import Images
from unitvar_reproduction.networks.attention import ViT
from unitvar_reproduction.training.loop import Schedule

__all__ = ["TASKS", "Split", "Task"]


@dataclass(frozen=True)
class Split:
    """What to train on, what to judge by, and images of another kind."""

    training: Images
    test: Images
    other: Tensor | None


@dataclass(frozen=True)
class Task:
    """A network, its data and its training."""

    build: Callable[[], nn.Module]
    load: Callable[[Path | None], Split]
    schedule: Schedule
    images: int
    """Images to train on."""


@cache
def _mnist(data_dir: Path | None) -> Split:
    training, test = data.mnist(data_dir)
    other, _ = data.digits(0)  # 8x8 and standardised: back to [0, 1], and as large as MNIST's
    pixels = other.images
    pixels = (pixels - pixels.amin()) / (pixels.amax() - pixels.amin())
    return Split(training, test, F.interpolate(pixels, (28, 28), mode="bilinear"))


@cache
def _cifar(data_dir: Path | None) -> Split:
    """Return CIFAR-10 and SVHN at 16x16, where a network learns in minutes."""
    training, test = (_halved(part) for part in data.cifar10(data_dir))
    training, test, other = data.standardised(training, test, _halved(data.svhn(data_dir)[1]))
    return Split(training, test, other.images)


def _halved(part: Images) -> Images:
    return Images(F.avg_pool2d(part.images, 2), part.labels)


@cache
def _outlines(data_dir: Path | None) -> Split:
    """Return MNIST under noise as strong as the signal; a pixel's label says whether it belongs to the digit."""
    parts = []
    for part in data.mnist(data_dir):
        drawn = torch.randn(part.images.shape, generator=torch.Generator().manual_seed(0))
        parts.append(Images(part.images + drawn, (part.images[:, 0] > 0.5).long()))
    return Split(parts[0], parts[1], None)


def _mlp(keep: float) -> Task:
    def build() -> nn.Module:
        return networks.mlp(784, 1 - keep, batchnorm=False, width=256, hidden=7)

    return Task(build, _mnist, Schedule(10, 1e-3, 64, weight_decay=0.0, drops=(), optimiser="adam"), 55_000)


def _vgg() -> nn.Module:
    """Build a small VGG without norms."""
    layers: list[nn.Module] = []
    channels = 3
    for width, rate in ((24, 0.2), (48, 0.3), (96, 0.4)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.Dropout(rate)]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(rate)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96 * 4, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))


class _UNet(nn.Module):
    """A small U-Net with channel dropout."""

    def __init__(self, width: int = 12, dropout: float = 0.3) -> None:
        super().__init__()
        self.down = self._convolutions(1, width, dropout)
        self.low = self._convolutions(width, 2 * width, dropout)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.last = self._convolutions(2 * width, width, dropout)
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _convolutions(before: int, after: int, dropout: float) -> nn.Sequential:
        first = [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Dropout2d(dropout)]
        return nn.Sequential(*first, nn.Conv2d(after, after, 3, padding=1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of each pixel, classes second."""
        high = self.down(x)
        low = self.up(self.low(F.max_pool2d(high, 2)))
        logits: Tensor = self.head(self.last(torch.cat([high, low], 1)))
        return logits


def _adam(epochs: int, rate: float = 1e-3) -> Schedule:
    return Schedule(epochs, rate, 64, weight_decay=0.0, drops=(0.7,), optimiser="adam")


TASKS: dict[str, Task] = {
    "mlp-0.3": _mlp(0.3),
    "mlp-0.5": _mlp(0.5),
    "mlp-0.7": _mlp(0.7),
    "vgg": Task(_vgg, _cifar, _adam(10), 20_000),
    "vgg-slow": Task(_vgg, _cifar, _adam(10, 1e-4), 20_000),
    "densenet": Task(lambda: networks.DenseNet(16, 8, 0.2), _cifar, Schedule(5), 10_000),
    "vit": Task(lambda: ViT(16, 64, 3, 0.2), _cifar, _adam(8), 10_000),
    "unet": Task(_UNet, _outlines, _adam(3), 6_000),
}
