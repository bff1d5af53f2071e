"""BatchNorm statistics in a safetensors file."""

from __future__ import annotations

import json
from os import PathLike, fspath
from types import ModuleType
from typing import Any

from torch import Tensor

from unitvar.batchnorm.moments import Moments, Spread
from unitvar.batchnorm.statistics import BatchNormStatistics, LayerStatistics

KEY = "unitvar.bn_statistics"  # in the file's metadata: a JSON record of all that is not a tensor
VERSION = 1
TENSORS = ("mean", "m2", "origin", "products")


def save(statistics: BatchNormStatistics, path: str | PathLike[str]) -> None:
    """Write four float64 tensors a layer, and a JSON record with the counts."""
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
    _safetensors().save_file(tensors, fspath(path), metadata={KEY: json.dumps(record)})


def load(path: str | PathLike[str]) -> BatchNormStatistics:
    """Read such a file, or say what is wrong with it."""
    with _safetensors().safe_open(fspath(path), framework="pt") as file:
        record = json.loads((file.metadata() or {}).get(KEY, "{}"))
        if record.get("version") != VERSION:
            raise ValueError(
                f"{fspath(path)!r} holds no BatchNorm statistics of version {VERSION}: its metadata has "
                f"{KEY!r} = {record.get('version')!r}. Write one with bn_statistics(...).save(path)."
            )
        layers = tuple(_layer(file, counts) for counts in record["layers"])
    return BatchNormStatistics(layers, record["kept"], record["stats"], record["method"], record["batches"])


def _layer(file: Any, counts: dict[str, Any]) -> LayerStatistics:
    name = counts["name"]
    mean, m2, origin, products = (file.get_tensor(f"{name}.{part}") for part in TENSORS)
    spread = Spread()
    spread.batches, spread.origin, spread.products = counts["batches"], origin, products
    return LayerStatistics(name, Moments(counts["values"], mean, m2, counts["examples"]), spread)


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "Saving and loading statistics needs safetensors: pip install 'unitvar[safetensors]'."
        ) from error
    return safetensors.torch
