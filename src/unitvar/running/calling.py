"""Calling a model: on what, on which device, and what comes back."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

__all__ = ["call", "check_real", "copied", "device_of", "flattened", "mapped", "moved"]


def call(model: nn.Module, example: Any) -> Any:
    """Run a model on a tensor, on a tuple of positional arguments or on a dict of keyword arguments."""
    if isinstance(example, Mapping):
        return model(**example)
    if isinstance(example, tuple) and not hasattr(example, "_fields"):
        return model(*example)
    return model(example)


def mapped(example: Any, function: Callable[[Tensor, str], Tensor], name: str = "input") -> Any:
    """Replace every tensor of an example; the function also gets the tensor's name."""
    if isinstance(example, Tensor):
        return function(example, name)
    if isinstance(example, PackedSequence):
        return PackedSequence(function(example.data, name), *example[1:])
    if isinstance(example, Mapping):
        made = copy.copy(example) if isinstance(example, MutableMapping) else dict(example)
        for key, value in example.items():
            made[key] = mapped(value, function, str(key))
        return made
    if isinstance(example, tuple) and hasattr(example, "_fields"):
        return type(example)(*(mapped(v, function, name) for v in example))
    if isinstance(example, (tuple, list)):
        return type(example)(mapped(v, function, f"{name}{i}") for i, v in enumerate(example))
    return example


def copied(batch: Any) -> Any:
    """Copy the tensors of an example, cut off from whatever computed them: a model may write to its input.

    A tensor that is there twice is so in the copy, too: attention asks whether its query is its key.
    """
    copies: dict[int, tuple[Tensor, Tensor]] = {}  # with what was copied, so that its id stays taken

    def copy_of(tensor: Tensor, _: str) -> Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor, tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return copies[id(tensor)][1]

    return mapped(batch, copy_of)


def device_of(model: nn.Module) -> torch.device:
    """Find the device of the first parameter or buffer."""
    first = next(itertools.chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def check_real(model: nn.Module) -> None:
    """Refuse a model whose tensors have no values."""
    if any(tensor.device.type == "meta" for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError(
            "The model is on the meta device, where tensors have no values: use model.to_empty(device=...) first."
        )


def moved(batch: Any, device: torch.device, done: dict[int, Tensor] | None = None) -> Any:
    """Move every tensor of a nested batch to a device; one that is there twice stays one."""
    done = {} if done is None else done
    if isinstance(batch, Tensor):
        if id(batch) not in done:
            done[id(batch)] = batch.to(device)
        return done[id(batch)]
    if isinstance(batch, PackedSequence):
        return batch.to(device)  # type: ignore[arg-type]  # its stub knows only dtypes
    if isinstance(batch, dict):
        return {key: moved(value, device, done) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device, done) for value in batch))
    if type(batch) in (tuple, list):
        return type(batch)(moved(value, device, done) for value in batch)
    # Mappings, lists and batches of other libraries know how to move themselves.
    return batch.to(device) if hasattr(batch, "to") else batch


def flattened(result: Any) -> Iterator[Any]:
    """Walk whatever a model may return."""
    if isinstance(result, (list, tuple, set)):
        for item in result:
            yield from flattened(item)
    elif isinstance(result, dict) or (hasattr(result, "values") and callable(result.values)):
        if not isinstance(result, Tensor):
            for item in result.values():
                yield from flattened(item)
        else:
            yield result
    else:
        yield result
