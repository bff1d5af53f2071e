"""Tensors of a model, put back after a run: buffers, parameters and plain attributes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import gradient_hooks, is_lazy, own_buffers, storage_of, tensor_hooks, version_of
from unitvar.running.held import plain_tensors
from unitvar.running.shards import is_sharded, local
from unitvar.running.undo import Undo, undoing

__all__ = [
    "buffers_kept",
    "flags_kept",
    "keep",
    "memory_kept",
    "overwrite",
    "parameters_kept",
    "plain_and_data_kept",
    "plain_kept",
    "values_kept",
]


@undoing()
def buffers_kept(undo: Undo, model: nn.Module) -> None:
    """Put every buffer back, the same tensor with the same bits, however the block ends."""
    homes = [(own_buffers(module), name, b) for module in model.modules() for name, b in own_buffers(module).items()]
    keep(undo, (buffer for _, _, buffer in homes if buffer is not None))
    for table, name, buffer in homes:
        undo.add(partial(_rebind, table, name, buffer))


def _rebind(table: Any, name: str, buffer: Tensor | None) -> None:
    # Not get(): the table of a TorchScript module has none.
    if name not in table or table[name] is not buffer:
        table[name] = buffer


def keep(undo: Undo, tensors: Iterable[Tensor]) -> None:
    """Have tensors put back, bit by bit; copied, whatever it costs: a write through ``.data`` leaves no other trace."""
    for tensor in {id(t): t for t in tensors}.values():
        if not is_lazy(tensor) and not tensor.is_meta:
            undo.add(partial(_rewrite, tensor, tensor.detach().clone(), version_of(tensor)))


def _rewrite(tensor: Tensor, copy: Tensor, version: int) -> None:
    # Writing only what changed spares tensors that cannot be written to.
    same = version_of(tensor) == version if tensor.layout != torch.strided else _same_bits(tensor, copy)
    if not same:  # through .data: a graph of the user's that has saved the tensor finds it unchanged
        overwrite(tensor.data if tensor.layout == torch.strided else tensor, copy)


def overwrite(tensor: Tensor, value: Tensor) -> None:
    """Write values into a tensor, also into one that was made in inference mode."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        if tensor.layout == torch.strided:
            for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
                if stride == 0 and size > 1:  # expanded: one place in memory, which torch does not write to many times
                    tensor, value = tensor.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
        tensor.copy_(value)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Compare as bytes: -0.0 == 0.0, NaN != NaN, and not every dtype can be compared."""
    return torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


@undoing()
def memory_kept(undo: Undo, tensors: Iterable[Tensor]) -> None:
    """Put back the memory of tensors whose ``.data`` a forward assigns to, as one that limits its norms does."""
    with torch.inference_mode(False):
        for tensor in _solid(tensors):
            undo.add(partial(_reassign, tensor, tensor.data))


def _reassign(tensor: Tensor, data: Tensor) -> None:
    if _memory(tensor) != _memory(data):
        with torch.inference_mode(False):
            tensor.data = data


def _solid(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Choose the tensors that have numbers in memory of their own."""
    return [t for t in tensors if not is_lazy(t) and not t.is_meta and t.layout == torch.strided]


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return storage_of(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


@undoing()
def values_kept(undo: Undo, model: nn.Module) -> None:
    """Put parameters, buffers and plain tensor attributes back, bit by bit; needed where real tensors are run."""
    undo.enter(buffers_kept(model))
    undo.enter(parameters_kept(model.parameters()))
    undo.enter(plain_and_data_kept(model))


@undoing()
def parameters_kept(undo: Undo, parameters: Iterable[Tensor]) -> None:
    """Put parameters back, bit by bit; of a DTensor, this rank's shard."""
    keep(undo, map(local, _solid(parameters)))


@undoing()
def plain_kept(undo: Undo, model: nn.Module) -> None:
    """Put tensors that are plain attributes, or lie in containers among them, back, bit by bit."""
    keep(undo, plain_tensors(model))


@undoing()
def plain_and_data_kept(undo: Undo, model: nn.Module) -> None:
    """Put back plain tensor attributes, and the memory of all tensors whose ``.data`` a forward assigns to."""
    plain = plain_tensors(model)
    keep(undo, plain)
    tensors = (*model.parameters(), *model.buffers(), *plain)
    undo.enter(memory_kept(t for t in tensors if not is_sharded(t)))  # whose memory comes and goes


@undoing()
def flags_kept(undo: Undo, model: nn.Module) -> None:
    """Put back of every parameter whether it requires a gradient, the gradient it has, and its hooks.

    One step for all of them, since there are many and next to none of them changes. The numbers in a gradient are not
    copied: a forward that writes to gradients in place is not undone.
    """
    kept = [
        (p, p.requires_grad, p.grad, [_hooks(table(p)) for table in _TABLES]) for p in model.parameters() if p.is_leaf
    ]
    undo.add(partial(_reset_flags, kept))


Hooks = tuple[Any, dict[int, Any]]  # a table, and what was in it

_TABLES = (tensor_hooks, gradient_hooks)


def _hooks(table: Any) -> Hooks:
    return table, dict(table or ())


def _reset_flags(kept: Iterable[tuple[Tensor, bool, Tensor | None, list[Hooks]]]) -> None:
    for parameter, requires_grad, grad, tables in kept:
        if parameter.requires_grad != requires_grad:
            parameter.requires_grad_(requires_grad)
        if parameter.grad is not grad:
            parameter.grad = grad
        for find, (before, hooks) in zip(_TABLES, tables, strict=True):
            table = find(parameter) if before is None else before
            if table is not None and list(table) != list(hooks):
                table.clear()
                table.update(hooks)
