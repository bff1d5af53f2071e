"""Images in memory, standardised, batched by index."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

__all__ = ["Images", "cifar10", "digits", "mnist", "standardised"]


@dataclass(frozen=True)
class Images:
    """Images [N, C, H, W] and their labels."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: slice | Tensor) -> Images:
        return Images(self.images[index], self.labels[index])

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Give batches of (images, labels), shuffled if there is a generator to shuffle with."""
        order = torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
        for index in torch.split(order, size):
            yield self.images[index], self.labels[index]

    def split(self, first: int, *, seed: int) -> tuple[Images, Images]:
        """Draw so many examples by seed; return them and the rest."""
        if not 0 < first < len(self):
            raise ValueError(f"{first} of {len(self)} images cannot be held out; hold out at least 1 and leave some.")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self[order[:first]], self[order[first:]]

    def to(self, device: str) -> Images:
        """Move both to a device."""
        return Images(self.images.to(device), self.labels.to(device))


def digits(seed: int) -> tuple[Images, Images]:
    """Return the 8x8 digits that scikit-learn embeds, 1,000 to train on and 797 to test on, split by seed."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = torch.from_numpy(loaded.images).float().unsqueeze(1)
    everything = Images(images, torch.from_numpy(loaded.target))
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))
    train, test = standardised(everything[order[:1000]], everything[order[1000:]])
    return train, test


def cifar10(folder: Path) -> tuple[Images, Images]:
    """Read CIFAR-10 in its binary version from ``folder/cifar-10-batches-bin``: 50,000 to train on, 10,000 to test."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"]
    train, test = (
        _concatenate([_cifar_file(folder / "cifar-10-batches-bin" / name) for name in part]) for part in names
    )
    train, test = standardised(train, test)
    return train, test


def mnist(folder: Path | None) -> tuple[Images, Images]:
    """Read MNIST from ``folder/mnist``: 60,000 images to train on, 10,000 to test, pixels in [0, 1]."""
    if folder is None:
        raise ValueError("MNIST is not embedded; give the folder that holds mnist/*.gz as --data-dir.")
    train, test = (
        Images(
            _idx(folder / "mnist" / f"{part}-images-idx3-ubyte.gz", 3).unsqueeze(1).float() / 255,
            _idx(folder / "mnist" / f"{part}-labels-idx1-ubyte.gz", 1).long(),
        )
        for part in ("train", "t10k")
    )
    return train, test


def _idx(path: Path, dimensions: int) -> Tensor:
    """Read bytes in LeCun's IDX format: a magic number, the sizes, the values."""
    if not path.exists():
        raise ValueError(f"{path} is missing; give the folder that holds mnist/*.gz.")
    with gzip.open(path) as file:
        raw = np.frombuffer(file.read(), dtype=np.uint8)
    sizes = raw[4 : 4 + 4 * dimensions].view(">u4").tolist()
    return torch.from_numpy(raw[4 + 4 * dimensions :].copy()).view(sizes)


def standardised(train: Images, *others: Images) -> tuple[Images, ...]:
    """Shift and scale all by the mean and standard deviation of each channel of the training images."""
    std, mean = torch.std_mean(train.images, dim=(0, 2, 3), keepdim=True)
    return tuple(Images((part.images - mean) / std, part.labels) for part in (train, *others))


def _cifar_file(path: Path) -> Images:
    size = 1 + 3 * 32 * 32  # a label and three planes of 32x32
    if not path.exists():
        raise ValueError(f"{path} is missing; give the folder that holds cifar-10-batches-bin (the binary version).")
    raw = np.fromfile(path, dtype=np.uint8)
    if len(raw) == 0 or len(raw) % size:
        raise ValueError(f"{path} has {len(raw)} bytes, not a multiple of {size}: it is cut off; fetch it again.")
    rows = torch.from_numpy(raw.reshape(-1, size))
    return Images(rows[:, 1:].reshape(-1, 3, 32, 32).float() / 255, rows[:, 0].long())


def _concatenate(parts: list[Images]) -> Images:
    return Images(torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts]))
