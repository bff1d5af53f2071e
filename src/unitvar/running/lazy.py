"""Layers whose shape is not known before their first run."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import is_lazy, own_buffers, own_parameters
from unitvar.running.calling import call, copied
from unitvar.running.example import explained
from unitvar.running.restore import values_kept
from unitvar.running.undo import Undo, undoing

__all__ = ["lazy_kept", "lazy_on_failure", "materialise", "pending", "uninitialised"]


@undoing(on_failure=True)
def lazy_on_failure(undo: Undo, model: nn.Module) -> None:
    """Make lazy layers that a block has materialised lazy again if it fails."""
    for module in pending(model):
        _keep(undo, module)


@undoing()
def lazy_kept(undo: Undo, model: nn.Module) -> None:
    """Make lazy layers that a block has materialised lazy again, however it ends."""
    for module in pending(model):
        _keep(undo, module)


def materialise(model: nn.Module, example: Any) -> None:
    """Run a model with lazy layers once, so that they learn their shapes; other models are not run."""
    if uninitialised(model):
        with torch.no_grad(), values_kept(model):
            try:
                call(model, copied(example))
            except Exception as error:
                raise explained(error, example, model) from error.__cause__


def uninitialised(model: nn.Module) -> list[str]:
    """Name the lazy layers that no batch has reached yet."""
    return [name for name, module in model.named_modules() if _is_pending(module)]


def pending(model: nn.Module) -> list[nn.Module]:
    """List the lazy layers that no batch has reached yet."""
    return [module for module in model.modules() if _is_pending(module)]


def _is_pending(module: nn.Module) -> bool:
    return any(is_lazy(t) for t in _tensors(module))


def _tensors(module: nn.Module) -> list[Tensor]:
    return [t for t in (*own_parameters(module).values(), *own_buffers(module).values()) if t is not None]


def _keep(undo: Undo, module: nn.Module) -> None:
    """Remember a lazy layer, which initialisation changes in class, attributes, hooks and tensors."""
    attributes = dict(vars(module))
    undo.add(partial(_refill, vars(module), attributes))
    undo.add(partial(setattr, module, "__class__", type(module)))
    for table in attributes.values():
        if isinstance(table, dict):  # the handles of its hooks refer to these very dicts: never replaced
            undo.add(partial(_refill, table, dict(table)))
    for tensor in _tensors(module):
        if is_lazy(tensor):
            undo.add(partial(_empty, tensor, type(tensor), tensor.device, tensor.dtype))


def _refill(table: dict[Any, Any], entries: dict[Any, Any]) -> None:
    table.clear()
    table.update(entries)


def _empty(tensor: Tensor, kind: type[Tensor], device: torch.device, dtype: torch.dtype) -> None:
    """Make a tensor forget its shape again."""
    if type(tensor) is not kind:
        tensor.data = torch.empty(0, device=device, dtype=dtype)
        tensor.__class__ = kind
