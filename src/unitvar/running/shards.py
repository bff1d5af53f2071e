"""Parameters that FSDP2 or tensor parallelism has spread over ranks as DTensors."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import forward_hooks, own_parameters
from unitvar.running.undo import Undo, undoing

__all__ = [
    "agreed",
    "from_first_rank",
    "fsdp_modules",
    "gathered_tensor",
    "is_sharded",
    "keep_shard",
    "local",
    "numbers_of",
    "resharded",
    "sharded",
    "spread_like",
    "whole",
]


class _Whole(nn.Parameter):
    """Stand for a parameter of a sharded model: its whole shape, without data."""

    of: Any


def is_sharded(tensor: object) -> bool:
    """Return True for a DTensor; what nobody has imported does not exist."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def sharded(model: nn.Module) -> bool:
    """Return True if any parameter of a model is spread over ranks, even if FSDP2 has gathered it for now."""
    return bool(fsdp_modules(model)) or any(is_sharded(p) for p in model.parameters())


def resharded(model: nn.Module) -> None:
    """Have FSDP2 modules give up the parameters that a forward pass has gathered: what is written there is lost."""
    for module in fsdp_modules(model):
        module.reshard()


def fsdp_modules(model: nn.Module) -> list[Any]:
    """List the modules that ``fully_shard`` was applied to."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return [] if fsdp is None else [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]


def local(tensor: Tensor) -> Tensor:
    """Return what this rank has of a tensor: its shard, or all of it."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()  # type: ignore[attr-defined, no-any-return]


def gathered_tensor(tensor: Tensor) -> Tensor:
    """Return all of a tensor, gathered from the ranks that share it, which all must call this; others are whole."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        return tensor.detach().full_tensor()  # type: ignore[attr-defined, no-any-return]


def spread_like(full: Tensor, other: Any) -> Tensor:
    """Return a whole tensor, which all ranks have, placed as another is; no rank talks to another."""
    if not is_sharded(other):
        return full
    from torch.distributed.tensor import Partial, Replicate, distribute_tensor

    placements = [Replicate() if isinstance(p, Partial) else p for p in other.placements]
    return distribute_tensor(full, other.device_mesh, placements, src_data_rank=None)


def keep_shard(parameter: Any, full: Tensor) -> None:
    """Write this rank's shard of a whole tensor into a sharded parameter; no rank talks to another."""
    from torch.distributed.tensor import distribute_tensor

    part = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
    with torch.no_grad():
        local(parameter).copy_(local(part))


def numbers_of(tensor: Tensor | None) -> Tensor | None:
    """Gather the numbers of a stand-in, on all ranks at once; any other tensor is its own."""
    if not isinstance(tensor, _Whole):
        return tensor
    with torch.no_grad():
        full: Tensor = tensor.of.full_tensor() if is_sharded(tensor.of) else tensor.of
        return full


def from_first_rank(model: nn.Module, value: Any) -> Any:
    """Give every rank that a model is spread over the value of the first one; all of them must call it.

    Args:
        model: a model with DTensor parameters, whose meshes say which ranks these are.
        value: anything that can be pickled, without tensors on accelerators.

    Returns:
        The value of the rank that is first in every dimension of the meshes.
    """
    import torch.distributed as dist

    for group in _groups(model):
        box = [value]
        dist.broadcast_object_list(box, group=group, group_src=0)
        value = box[0]
    return value


def agreed(model: nn.Module, value: object) -> bool:
    """Return True on every rank that a model is spread over if all of them have the same value, else False on all."""
    import torch.distributed as dist

    same = True
    for group in _groups(model):
        found: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, (value, same), group=group)
        same = all(known and other == value for other, known in found)
    return same


def _groups(model: nn.Module) -> list[Any]:
    """List the process groups of every dimension of a model's meshes, those of the largest last."""
    meshes = list({p.device_mesh: None for p in model.parameters() if is_sharded(p)})  # type: ignore[attr-defined]
    return [mesh.get_group(dim) for mesh in sorted(meshes, key=lambda m: m.ndim) for dim in range(mesh.ndim)]


@undoing()
def whole(undo: Undo, model: nn.Module) -> None:
    """Put stand-ins of whole shape and without data in the place of a sharded model's parameters, and bring these back.

    Meanwhile the hooks of torch.distributed, which gather, cast and redistribute, are off: forward is that of the model
    before it was sharded. :func:`numbers_of` gathers what a stand-in stands for.

    Args:
        undo: comes from the decorator.
        model: nothing happens to one without DTensors.

    Returns:
        A context manager.
    """
    if not sharded(model):
        return
    stand_ins: dict[int, _Whole] = {}  # a tied parameter has one
    for module in model.modules():
        for table in forward_hooks(module):
            undo.add(partial(_refill, table, dict(table)))
            for key in [key for key, hook in table.items() if _distributed(hook)]:
                del table[key]
        table = own_parameters(module)
        for name, parameter in table.items():
            if parameter is not None:  # also those that are not sharded: a run is on one device
                undo.add(partial(table.__setitem__, name, parameter))
                table[name] = stand_ins.setdefault(id(parameter), _stand_in(parameter))


def _stand_in(parameter: nn.Parameter) -> _Whole:
    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
    made = _Whole(empty, requires_grad=parameter.requires_grad)
    made.of = parameter
    return made


def _refill(table: Any, hooks: dict[int, Any]) -> None:
    table.clear()
    table.update(hooks)


def _distributed(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.")
