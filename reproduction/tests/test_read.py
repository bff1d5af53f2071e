"""read: what was written is what is read, and what cannot be read is named."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fake import write_cifar10, write_cifar100, write_idx, write_mnist, write_svhn
from unitvar_reproduction import data

OTHER = "is not the published file"
pytestmark = pytest.mark.filterwarnings(f"ignore:.*{OTHER}")


def test_mnist(tmp_path: Path) -> None:
    write_mnist(tmp_path, images=7)
    with pytest.warns(
        UserWarning, match=r"train-images-idx3-ubyte\.gz is not the published file: it has 7 of 60000 images"
    ):
        train, test = data.mnist(tmp_path)
    assert train.images.shape == (7, 1, 28, 28)
    raw = gzip.decompress((tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    assert (test.images * 255).round().byte().numpy().tobytes() == raw


def test_cifar10(tmp_path: Path) -> None:
    write_cifar10(tmp_path, images=7)
    with pytest.warns(UserWarning, match=r"data_batch_3\.bin is not the published file: it has 7 of 10000 images"):
        train, test = data.cifar10(tmp_path)
    assert train.images.shape == (35, 3, 32, 32)
    raw = np.fromfile(tmp_path / "cifar-10-batches-bin" / "test_batch.bin", dtype=np.uint8).reshape(7, 3073)
    assert test.labels.tolist() == raw[:, 0].tolist()
    assert torch.equal((test.images * 255).round().byte(), torch.from_numpy(raw[:, 1:].reshape(7, 3, 32, 32).copy()))


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=OTHER):
        _, test = data.cifar100(write_cifar100(tmp_path, 5))
    raw = np.fromfile(tmp_path / "cifar-100-binary" / "test.bin", dtype=np.uint8).reshape(5, 3074)
    assert test.labels.tolist() == raw[:, 1].tolist()


def test_svhn_calls_a_zero_zero_and_puts_channels_first(tmp_path: Path) -> None:
    from scipy.io import loadmat

    with pytest.warns(UserWarning, match=r"test_32x32\.mat is not the published file: it has 5 of 26032 images"):
        train, test = data.svhn(write_svhn(tmp_path, 5))
    assert train.labels.tolist() == [1, 2, 3, 4, 0]
    pixels = loadmat(tmp_path / "svhn" / "test_32x32.mat")["X"]
    # Image 3, channel 2, row 5, column 11.
    assert round(test.images[3, 2, 5, 11].item() * 255) == pixels[5, 11, 2, 3]


@pytest.mark.parametrize(
    ("write", "read", "path", "source"),
    [
        (write_mnist, data.mnist, "mnist/train-images-idx3-ubyte.gz", "ossci-datasets"),
        (write_cifar10, data.cifar10, "cifar-10-batches-bin/data_batch_2.bin", "cifar-10-binary.tar.gz"),
        (write_cifar100, data.cifar100, "cifar-100-binary/train.bin", "cifar-100-binary.tar.gz"),
        (write_svhn, data.svhn, "svhn/train_32x32.mat", "housenumbers/train_32x32.mat"),
    ],
)
def test_missing_cut_empty_and_foreign_files_are_named_with_where_to_get_them(
    tmp_path: Path, write: Callable[[Path, int], object], read: Callable[[Path], object], path: str, source: str
) -> None:
    write(tmp_path, 5)
    file = tmp_path / path
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2 + 1], b"", b"<html>Not found</html>" * 20):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(str(file))) as caught:
            read(tmp_path)
        assert source in str(caught.value)
    file.unlink()
    with pytest.raises(ValueError, match="is missing; get it from") as caught:
        read(tmp_path)
    assert source in str(caught.value)


def test_a_newer_matlab_file_is_named(tmp_path: Path) -> None:
    write_svhn(tmp_path, 5)
    path = tmp_path / "svhn" / "train_32x32.mat"
    # MATLAB 7.3 writes HDF5 behind a header of 128 bytes, which ends with the version and the byte order.
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(512))
    with pytest.raises(ValueError, match=r"train_32x32\.mat is not a MATLAB file with X and y .*; fetch it again from"):
        data.svhn(tmp_path)


def test_an_idx_file_must_hold_what_its_header_says(tmp_path: Path) -> None:
    write_mnist(tmp_path, 5)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))
    with pytest.raises(ValueError, match=r"has 3919 bytes of values where its header says 5 x 28 x 28"):
        data.mnist(tmp_path)
    write_idx(path, np.zeros((4, 28, 28), dtype=np.uint8))
    with pytest.raises(ValueError, match=r"4 images have 5 labels"):
        data.mnist(tmp_path)
