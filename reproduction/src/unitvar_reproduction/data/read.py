"""Files as the authors of data sets publish them, read into tensors. Nothing is unpickled.

A bad file gets an error that names it, what was expected and where to get it. A good file with another checksum, such
as a part of a split, is used with a warning that says so.
"""

from __future__ import annotations

import gzip
import math
import warnings
import zlib
from pathlib import Path

import numpy as np
import pooch
import torch
from torch import Tensor

from unitvar_reproduction.data.sources import DATASETS

__all__ = ["cifar", "idx", "mat", "text"]


def idx(folder: Path, name: str) -> Tensor:
    """Read bytes in LeCun's gzipped IDX format: a magic number, the sizes, the values."""
    path = _existing(folder, name)
    try:
        with gzip.open(path) as file:
            raw = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise _bad(path, f"is not a complete gzip file ({error})") from error
    dimensions = raw[3] if len(raw) > 3 else 0
    sizes = np.frombuffer(raw, ">u4", count=dimensions, offset=4).tolist() if len(raw) >= 4 + 4 * dimensions else []
    if raw[:3] != b"\0\0\x08" or dimensions == 0 or not sizes:
        raise _bad(path, "does not start with the header of an IDX file of bytes")
    body = raw[4 + 4 * dimensions :]
    if len(body) != math.prod(sizes):
        raise _bad(path, f"has {len(body)} bytes of values where its header says {' x '.join(map(str, sizes))}")
    _note(path, name, sizes[0])
    return torch.frombuffer(bytearray(body), dtype=torch.uint8).view(sizes)


def cifar(folder: Path, name: str, labels: int) -> tuple[Tensor, Tensor]:
    """Read CIFAR's binary version: some label bytes, the last of which counts, then three planes of 32x32."""
    path = _existing(folder, name)
    size = labels + 3 * 32 * 32
    raw = np.fromfile(path, dtype=np.uint8)
    if len(raw) == 0 or len(raw) % size:
        raise _bad(path, f"has {len(raw)} bytes, not a multiple of {size}: it is cut off")
    rows = torch.from_numpy(raw.reshape(-1, size))
    _note(path, name, len(rows))
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1]


def mat(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    """Read SVHN's cropped digits in MATLAB's format, whose label for a zero is 10."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    path = _existing(folder, name)
    try:
        found = loadmat(path, variable_names=("X", "y"))
        pixels, labels = found["X"], found["y"].reshape(-1)
    except (MatReadError, ValueError, KeyError, OSError, TypeError, NotImplementedError, zlib.error) as error:
        raise _bad(path, f"is not a MATLAB file with X and y ({error})") from error
    if pixels.shape[:3] != (32, 32, 3) or pixels.shape[3:] != labels.shape or pixels.dtype != np.uint8:
        raise _bad(path, f"has X of shape {pixels.shape} and y of {labels.shape}, not (32, 32, 3, n) and (n,)")
    _note(path, name, len(labels))
    return torch.from_numpy(pixels.transpose(3, 2, 0, 1).copy()), torch.from_numpy(labels.astype(np.int64) % 10)


def text(folder: Path, name: str) -> str:
    """Read a plain text."""
    path = _existing(folder, name)
    try:
        found = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(path, f"is not a text in UTF-8 ({error})") from error
    if not found:
        raise _bad(path, "is empty")
    _note(path, name, len(found))
    return found


def _existing(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists():
        raise ValueError(f"{path} is missing; get it from {_source(name)}, or omit --data-dir to download it.")
    return path


def _bad(path: Path, what: str) -> ValueError:
    name = f"{path.parent.name}/{path.name}"
    return ValueError(f"{path} {what}; fetch it again from {_source(name)}.")


def _source(name: str) -> str:
    dataset = next(d for d in DATASETS.values() if name in d.parts)
    return dataset.mirrors[0] + (dataset.archive or Path(name).name)


def _note(path: Path, name: str, count: int) -> None:
    """Warn of a file that is not the published one."""
    part = next(d.parts[name] for d in DATASETS.values() if name in d.parts)
    algorithm, _, expected = part.checksum.partition(":")
    if pooch.file_hash(str(path), alg=algorithm) != expected:
        warnings.warn(
            f"{path} is not the published file: it has {count} of {part.count} {part.unit}, and its {algorithm} "
            "checksum differs. It is used nevertheless.",
            stacklevel=4,
        )
