"""Images in memory, batched by index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from unitvar_reproduction.data import read
from unitvar_reproduction.data.fetch import ensure

__all__ = ["LOADERS", "Images", "check", "cifar10", "cifar100", "digits", "mnist", "standardised", "svhn"]


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
    """Return the 8x8 digits that scikit-learn embeds, 1,000 to train on and 797 to test on by seed, standardised."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = torch.from_numpy(loaded.images).float().unsqueeze(1)
    everything = Images(images, torch.from_numpy(loaded.target))
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))
    train, test = standardised(everything[order[:1000]], everything[order[1000:]])
    return train, test


def mnist(data_dir: Path | None = None) -> tuple[Images, Images]:
    """Read MNIST, 60,000 images to train on and 10,000 to test, from a folder or from the cache; pixels in [0, 1]."""
    folder = ensure("mnist", data_dir)
    train, test = (
        _images(
            read.idx(folder, f"mnist/{part}-images-idx3-ubyte.gz").unsqueeze(1),
            read.idx(folder, f"mnist/{part}-labels-idx1-ubyte.gz"),
        )
        for part in ("train", "t10k")
    )
    return train, test


def cifar10(data_dir: Path | None = None) -> tuple[Images, Images]:
    """Read CIFAR-10, 50,000 images to train on and 10,000 to test, from a folder or from the cache; in [0, 1]."""
    folder = ensure("cifar10", data_dir)
    train = [read.cifar(folder, f"cifar-10-batches-bin/data_batch_{i}.bin", 1) for i in range(1, 6)]
    images, labels = (torch.cat(parts) for parts in zip(*train, strict=True))
    return _images(images, labels), _images(*read.cifar(folder, "cifar-10-batches-bin/test_batch.bin", 1))


def cifar100(data_dir: Path | None = None) -> tuple[Images, Images]:
    """Read CIFAR-100 with its 100 fine labels, 50,000 images to train on and 10,000 to test; pixels in [0, 1]."""
    folder = ensure("cifar100", data_dir)
    train, test = (_images(*read.cifar(folder, f"cifar-100-binary/{part}.bin", 2)) for part in ("train", "test"))
    return train, test


def svhn(data_dir: Path | None = None) -> tuple[Images, Images]:
    """Read SVHN's cropped digits, 73,257 images to train on and 26,032 to test; pixels in [0, 1]."""
    folder = ensure("svhn", data_dir)
    train, test = (_images(*read.mat(folder, f"svhn/{part}_32x32.mat")) for part in ("train", "test"))
    return train, test


LOADERS: dict[str, Callable[[Path | None], tuple[Images, Images]]] = {
    "mnist": mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
}


def check(names: Iterable[str], data_dir: Path | None, console: Console) -> None:
    """Fetch and read data sets here, once: what is wrong with them, every trial would stumble over elsewhere."""
    for name in names:
        ensure(name, data_dir, console)
        LOADERS[name](data_dir)


def _images(pixels: Tensor, labels: Tensor) -> Images:
    if len(pixels) != len(labels):
        raise ValueError(f"{len(pixels)} images have {len(labels)} labels; the files do not belong together.")
    return Images(pixels.float() / 255, labels.long())


def standardised(train: Images, *others: Images) -> tuple[Images, ...]:
    """Shift and scale all by the mean and standard deviation of each channel of the training images."""
    std, mean = torch.std_mean(train.images, dim=(0, 2, 3), keepdim=True)
    return tuple(Images((part.images - mean) / std, part.labels) for part in (train, *others))
