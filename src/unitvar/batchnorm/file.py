"""BatchNorm statistics in a safetensors file."""

from __future__ import annotations

import json
from os import PathLike, fspath
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from unitvar.batchnorm.moments import Moments, Spread
from unitvar.batchnorm.options import METHODS, STATS
from unitvar.batchnorm.statistics import BatchNormStatistics, LayerStatistics
from unitvar.running.files import written_whole

KEY = "unitvar.bn_statistics"  # in the file's metadata: a JSON record of all that is not a tensor
VERSION = 1
TENSORS = ("mean", "m2", "origin", "products")
MOST = 1 << 53  # whole numbers up to here are exact in the float64 that they are multiplied with


def save(statistics: BatchNormStatistics, path: str | PathLike[str]) -> None:
    """Write four float64 tensors a layer, and a JSON record with the counts; the whole file or none."""
    tensors: dict[str, Tensor] = {}
    layers = []
    for layer in statistics:
        moments, spread = layer.moments, layer.spread
        values = (moments.mean, moments.m2, spread.origin, spread.products)
        tensors |= {f"{layer.name}.{part}": t.contiguous() for part, t in zip(TENSORS, values, strict=True)}
        counts = {"values": moments.count, "examples": moments.examples, "batches": spread.batches}
        layers.append({"name": layer.name, **counts})
    record = {
        "version": VERSION,
        "stats": statistics.stats,
        "method": statistics.method,
        "batches": statistics.batches,
        "kept": dict(statistics.kept),
        "layers": layers,
    }
    library = _safetensors()
    with written_whole(path) as part:
        part.write_bytes(library.torch.save(tensors, metadata={KEY: json.dumps(record)}))


def load(path: str | PathLike[str]) -> BatchNormStatistics:
    """Read such a file, or say what is wrong with it."""
    library = _safetensors()
    try:
        with library.safe_open(fspath(path), framework="pt") as file:
            return _statistics(file, _record(file))
    except (ValueError, RecursionError, library.SafetensorError) as error:
        raise ValueError(
            f"{fspath(path)!r} cannot be read as BatchNorm statistics of version {VERSION}: {error}. Write the "
            "file with bn_statistics(...).save(path)."
        ) from error


def _record(file: Any) -> dict[str, Any]:
    record = json.loads((file.metadata() or {}).get(KEY, "{}"))
    version = record.get("version") if isinstance(record, dict) else None
    if version != VERSION:
        raise ValueError(f"its metadata has {KEY!r} of version {version!r}")
    return record  # type: ignore[no-any-return]


def _statistics(file: Any, record: dict[str, Any]) -> BatchNormStatistics:
    kept, layers = record.get("kept"), record.get("layers")
    if not isinstance(kept, dict) or not all(isinstance(reason, str) for reason in kept.values()):
        raise ValueError("'kept' is not a mapping from names to reasons")
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise ValueError("'layers' is not a list of records")
    names = [layer.get("name") for layer in layers]
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError("two layers have the same name, or one has none")
    for key, allowed in (("stats", STATS), ("method", METHODS)):
        if record.get(key) not in allowed:
            raise ValueError(f"{key!r} is {record.get(key)!r}, not one of {', '.join(map(repr, allowed))}")
    batches = _count(record, "batches")
    return BatchNormStatistics(
        tuple(_layer(file, layer) for layer in layers), kept, record["stats"], record["method"], batches
    )


def _layer(file: Any, record: dict[str, Any]) -> LayerStatistics:
    name = record["name"]
    mean, m2, origin, products = (file.get_tensor(f"{name}.{part}") for part in TENSORS)
    channels = mean.shape[:1]
    shapes = (channels, channels, channels, (3, 3, *channels))
    for part, tensor, shape in zip(TENSORS, (mean, m2, origin, products), shapes, strict=True):
        if tensor.dtype != torch.float64 or tensor.shape != shape or not bool(tensor.isfinite().all()):
            raise ValueError(f"'{name}.{part}' is not {tuple(shape)} finite numbers of float64")
    if bool((m2 < 0).any()):
        raise ValueError(f"'{name}.m2' has a negative sum of squares")
    values, examples = _count(record, "values"), _count(record, "examples")
    if not 1 <= examples <= values or values < 2:
        raise ValueError(f"{name!r} has {values} values from {examples} examples")
    spread = Spread()
    spread.batches, spread.origin, spread.products = _count(record, "batches"), origin, products
    return LayerStatistics(name, Moments(values, mean, m2, examples), spread)


def _count(record: dict[str, Any], key: str) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        shown = f"a number of {value.bit_length()} bits" if isinstance(value, int) else repr(value)
        raise ValueError(f"{key!r} is {shown}, not a whole number from 0 to {MOST}")
    return value


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "Saving and loading statistics needs safetensors: pip install 'unitvar[safetensors]'."
        ) from error
    return safetensors
