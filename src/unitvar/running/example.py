"""Examples: what a model can be run on, and what to do about one that it cannot be run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader

__all__ = ["check_example", "explained"]

_ALLOWED = "a tensor, a tuple of positional arguments or a dict of keyword arguments"
_TARGET = "If it came from a loader as (input, target), the target is not the model's input: pass batch[0]."


def check_example(example: Any) -> None:
    """Refuse what cannot be an example. Batches of other libraries, which a model may know, are let through."""
    remedy = _remedy(example)
    if remedy:
        plain = example is None or isinstance(example, (str, int, float))
        told = repr(example) if plain else f"of type {type(example).__name__}"
        raise TypeError(f"The example is {told}, not {_ALLOWED}. {remedy}")
    tensors = list(_tensors(example))
    if tensors and not any(t.numel() for t in tensors):
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise ValueError(f"The example is empty: it has shape {shapes}. Pass a batch of one or more.")


def _remedy(example: Any) -> str:
    """Say what to pass instead; nothing, if the example may do."""
    if isinstance(example, list):
        return _TARGET
    if isinstance(example, DataLoader):
        return "Pass one batch's input: next(iter(loader))[0] where batches are (input, target)."
    if isinstance(example, np.ndarray):
        return "Pass torch.from_numpy(example), in the dtype of the model's weights."
    if isinstance(example, Iterator):
        return "Pass what it gives: next(example)."
    if example is None or isinstance(example, (str, bytes, int, float, complex)):
        return "Where forward really takes it, pass it in a tuple, as one of its arguments."
    return ""


def _tensors(example: Any) -> Iterator[Tensor]:
    if isinstance(example, Tensor):
        yield example
    elif isinstance(example, PackedSequence):
        yield example.data
    elif isinstance(example, (tuple, list)):
        for value in example:
            yield from _tensors(value)
    elif isinstance(example, Mapping):
        yield from _tensors(tuple(example.values()))


def explained(error: Exception, example: Any) -> Exception:
    """Add what the example may have to do with an error."""
    if isinstance(example, Mapping) and isinstance(error, TypeError):
        keys = ", ".join(map(repr, example))
        remedy = "If forward takes one dict, pass it in a tuple: (example,)."
        return _clearer(f"The model rejected the example's keys {keys} as keyword arguments: {error}. {remedy}", error)
    if isinstance(example, tuple) and len(example) > 1 and not hasattr(example, "_fields"):
        said = f"The model rejected the example's {len(example)} elements as positional arguments: {error}. {_TARGET}"
        return _clearer(said, error)
    return error


def _clearer(said: str, error: Exception) -> TypeError:
    clearer = TypeError(said)
    clearer.__cause__ = error
    return clearer
