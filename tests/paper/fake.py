"""Small data in the formats that the authors of real data sets publish."""

from pathlib import Path

import numpy as np


def write_cifar10(folder: Path, images: int) -> Path:
    """Write random images in CIFAR-10's binary version, so many into each of its six files; return the folder."""
    rng = np.random.default_rng(0)
    (folder / "cifar-10-batches-bin").mkdir(parents=True)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = rng.integers(0, 256, size=(images, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        rows.tofile(folder / "cifar-10-batches-bin" / name)
    return folder
