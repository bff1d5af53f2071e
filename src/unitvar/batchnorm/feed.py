"""Batches of every kind, as a model takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

Forward = Callable[[Any, Any], Any]


def inner(model: nn.Module) -> nn.Module:
    """Take off what DistributedDataParallel, DataParallel and torch.compile wrapped around a model.

    Their forward would synchronise ranks at every batch, or run code in which BatchNorm is no module any more.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, not an nn.Module.")
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif "_orig_mod" in model._modules and isinstance(model._modules["_orig_mod"], nn.Module):
            model = model._modules["_orig_mod"]
        else:
            return model


def check_batches(batches: object, *, repeatedly: bool) -> None:
    """Refuse what iterates, but not over batches, or only once if it has to do so repeatedly."""
    if isinstance(batches, (Mapping, str)) or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches is a {type(batches).__name__}, not an iterable of batches: pass a DataLoader or a list; "
            "a single batch goes in as [batch]."
        )
    if repeatedly and isinstance(batches, Iterator):
        raise ValueError(
            f"method='sequential' passes over the data once a layer, but batches is a {type(batches).__name__}, which "
            "can be read only once: pass a DataLoader or a list, or use method='one-pass'."
        )


def apply(model: nn.Module, batch: Any, index: int, forward: Forward | None) -> Any:
    """Run one batch: a tensor, the first element of a tuple or list, a dict as keyword arguments, or your own way.

    Args:
        model: the inner model.
        batch: what the iterable gave; its tensors are moved to the model's device.
        index: the position of the batch, for errors.
        forward: ``forward(model, batch)``, or None.

    Returns:
        Whatever the model returns.
    """
    batch = moved(batch, device_of(model))
    if forward is not None:
        return forward(model, batch)
    if isinstance(batch, (tuple, list)) and not isinstance(batch, PackedSequence):
        if not batch:
            raise TypeError(f"Batch {index} is an empty {type(batch).__name__}: its first element should be the input.")
        batch = batch[0]
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, (Tensor, PackedSequence)):
        return model(batch)
    raise TypeError(
        f"Batch {index} holds a {type(batch).__name__}, not a tensor, a tuple or list that starts with one, or a dict "
        "of keyword arguments: say how to run it with forward=lambda model, batch: model(...)."
    )


def device_of(model: nn.Module) -> torch.device:
    """Find the device of the first parameter or buffer."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def moved(batch: Any, device: torch.device) -> Any:
    """Move every tensor of a nested batch to a device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, PackedSequence):
        return batch.to(device)  # type: ignore[arg-type]  # its stub knows only dtypes
    if isinstance(batch, dict):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if type(batch) in (tuple, list):
        return type(batch)(moved(value, device) for value in batch)
    # Mappings, lists and batches of other libraries know how to move themselves.
    return batch.to(device) if hasattr(batch, "to") else batch
