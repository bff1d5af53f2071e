"""Tensors of a model, put back after a run: buffers, parameters and plain attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import is_lazy, own_buffers, storage_of, version_of

__all__ = ["buffers_kept", "data_kept", "memory_kept", "overwrite", "plain_kept", "values_kept"]


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Put every buffer back, the same tensor with the same bits, however the block ends."""
    homes = [(module, dict(own_buffers(module))) for module in model.modules()]
    copies = {
        id(buffer): (buffer, buffer.detach().clone(), version_of(buffer))
        for _, buffers in homes
        for buffer in buffers.values()
        if buffer is not None and not is_lazy(buffer)
    }
    try:
        yield
    finally:
        for module, buffers in homes:
            for name, buffer in buffers.items():
                if own_buffers(module).get(name) is not buffer:
                    own_buffers(module)[name] = buffer
        for buffer, copy, version in copies.values():
            # Writing only what changed spares buffers that cannot be written to.
            if version_of(buffer) != version if buffer.layout != torch.strided else not _same_bits(buffer, copy):
                overwrite(buffer, copy)


def overwrite(tensor: Tensor, value: Tensor) -> None:
    """Write values into a tensor, also into one that was made in inference mode."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.copy_(value)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    # Equal values with equal signs: -0.0 == 0.0.
    return torch.equal(a, b) and (not a.is_floating_point() or torch.equal(a.signbit(), b.signbit()))


@contextmanager
def memory_kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Put back the memory of tensors whose ``.data`` a forward assigns to, as one that limits its norms does."""
    with torch.inference_mode(False):
        kept = [(t, t.data) for t in _solid(tensors)]
    try:
        yield
    finally:
        with torch.inference_mode(False):
            for tensor, data in kept:
                if _memory(tensor) != _memory(data):
                    tensor.data = data


def _solid(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Choose the tensors that have numbers in memory of their own."""
    return [t for t in tensors if not is_lazy(t) and not t.is_meta and t.layout == torch.strided]


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return storage_of(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


@contextmanager
def values_kept(model: nn.Module) -> Iterator[None]:
    """Put parameters, buffers and plain tensor attributes back, bit by bit; needed where real tensors are run."""
    with buffers_kept(model), plain_kept(model), _kept(_solid(model.parameters())), data_kept(model):
        yield


@contextmanager
def plain_kept(model: nn.Module) -> Iterator[None]:
    """Put tensors that are plain attributes back, bit by bit."""
    with _kept(t for module in model.modules() for t in _plain_tensors(module)):
        yield


@contextmanager
def _kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    # Copies, whatever they cost: a write through .data, as to keep weights small, leaves no trace in _version.
    copies = [(t, t.detach().clone()) for t in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in copies:
                if not torch.equal(tensor, copy):
                    tensor.data.copy_(copy)


@contextmanager
def data_kept(model: nn.Module) -> Iterator[None]:
    """Put back the memory of parameters, buffers and plain tensor attributes whose ``.data`` a forward assigns to."""
    plain = (t for module in model.modules() for t in _plain_tensors(module))
    with memory_kept((*model.parameters(), *model.buffers(), *plain)):
        yield


def _plain_tensors(module: nn.Module) -> Iterator[Tensor]:
    for value in vars(module).values():
        if isinstance(value, Tensor) and not value.is_meta:
            yield value
