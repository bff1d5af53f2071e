"""Batches of every kind, as a model takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from unitvar.running.calling import device_of, moved

Forward = Callable[[Any, Any], Any]


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
