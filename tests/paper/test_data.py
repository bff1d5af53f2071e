"""data: what is read is what was written."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.paper.fake import write_cifar10
from unitvar.paper import data


def test_digits_are_split_by_seed_and_standardised() -> None:
    train, test = data.digits(0)
    assert (len(train), len(test)) == (1000, 797)
    assert train.images.shape == (1000, 1, 8, 8)
    assert train.images.mean().item() == pytest.approx(0, abs=1e-5)
    assert train.images.std().item() == pytest.approx(1, abs=1e-5)
    again, _ = data.digits(0)
    other, _ = data.digits(1)
    assert torch.equal(train.labels, again.labels)
    assert not torch.equal(train.labels, other.labels)


def test_batches_give_every_example_once() -> None:
    images = data.Images(torch.arange(10.0).view(10, 1, 1, 1), torch.arange(10))
    plain = [labels for _, labels in images.batches(4)]
    assert [len(b) for b in plain] == [4, 4, 2]
    assert torch.cat(plain).tolist() == list(range(10))
    shuffled = [(x.flatten().tolist(), y.tolist()) for x, y in images.batches(4, torch.Generator().manual_seed(1))]
    assert all(x == y for x, y in shuffled)
    labels = [label for _, batch in shuffled for label in batch]
    assert sorted(labels) == list(range(10)) != labels


@pytest.fixture
def cifar_folder(tmp_path: Path) -> Path:
    return write_cifar10(tmp_path, images=7)


def test_cifar10_is_read_as_its_authors_publish_it(cifar_folder: Path) -> None:
    train, test = data.cifar10(cifar_folder)
    assert train.images.shape == (35, 3, 32, 32)
    raw = np.fromfile(cifar_folder / "cifar-10-batches-bin" / "test_batch.bin", dtype=np.uint8).reshape(7, 3073)
    assert test.labels.tolist() == raw[:, 0].tolist()
    # Standardising is affine in each channel, so it keeps the order of the pixels: red, green and blue planes of rows.
    pixels = torch.from_numpy(raw[:, 1:].reshape(7, 3, 32, 32).astype(np.float32))
    for channel in range(3):
        ours, theirs = test.images[:, channel].flatten(), pixels[:, channel].flatten()
        assert torch.corrcoef(torch.stack([ours, theirs]))[0, 1].item() == pytest.approx(1)


def test_missing_and_cut_files_are_named(cifar_folder: Path) -> None:
    path = cifar_folder / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_3\.bin has 21510 bytes, not a multiple of 3073"):
        data.cifar10(cifar_folder)
    path.unlink()
    with pytest.raises(ValueError, match=r"data_batch_3\.bin is missing"):
        data.cifar10(cifar_folder)
