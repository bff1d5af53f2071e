"""What FSDP2 gathers while a model runs, and how a run that may fail leaves its shards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from unitvar._torch import fsdp_gathered, fsdp_lazy_init, fsdp_parameter_groups
from unitvar.running.shards import fsdp_modules, resharded
from unitvar.running.undo import Undo, undoing

__all__ = ["Gathering", "kept_parameters", "sharding_kept"]


def kept_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name the parameters that an optimiser has: of FSDP2 modules the shards, even where they are gathered for now."""
    shards = {id(fsdp_gathered(p)): p.sharded_param for group in _groups(model) for p in group}
    return {name: shards.get(id(parameter), parameter) for name, parameter in model.named_parameters()}


class Gathering:
    """Name the parameters that FSDP2 gathers, as they come.

    Args:
        model: any model; of one that ``fully_shard`` was not applied to, nothing comes.

    Attributes:
        shards: the ids of all shards, which no op of the model itself ever reads.
    """

    def __init__(self, model: nn.Module) -> None:
        groups = _groups(model)
        names = {id(parameter): name for name, parameter in kept_parameters(model).items()} if groups else {}
        self._pending = [[(names.get(id(p.sharded_param), ""), p) for p in group] for group in groups]
        self.shards = {id(p.sharded_param) for group in groups for p in group}

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors of what was gathered since the last time, each once: its memory stays its own."""
        if not self._pending:
            return
        # A group is gathered all at once: its first parameter speaks for it, but for the moment in which it happens.
        ready = [group for group in self._pending if fsdp_gathered(group[0][1]) is not None]
        come = [group for group in ready if all(fsdp_gathered(p) is not None for _, p in group)]
        if come:
            self._pending = [group for group in self._pending if group not in come]
        for group in come:
            yield from ((name, fsdp_gathered(p)) for name, p in group)


@undoing()
def sharding_kept(undo: Undo, model: nn.Module) -> None:
    """Run a block on shards, and shard again what it gathers, also when it fails; gradients come back as they were.

    Args:
        undo: comes from the decorator.
        model: any model; nothing happens to one that ``fully_shard`` was not applied to.

    Returns:
        A context manager.
    """
    modules = fsdp_modules(model)
    resharded(model)
    for parameter in (p for group in _groups(model) for p in group):
        # Those of steps that do not reduce them; they stay with what was gathered.
        undo.add(partial(_put_back, parameter, parameter.unsharded_accumulated_grad, _gradient(parameter)))
        _put_back(parameter, None, None)
    inside = {id(m) for module in modules for m in module.modules() if m is not module}
    for root in (module for module in modules if id(module) not in inside):
        fsdp_lazy_init(root)  # otherwise the first run does it, and what never ran cannot be reset
        undo.add(root.reset_iter_state)  # also after a run that did not end; what it shards again, it shards here


def _groups(model: nn.Module) -> list[list[Any]]:
    found = [group.fsdp_params for module in fsdp_modules(model) for group in fsdp_parameter_groups(module)]
    return [group for group in found if group]


def _gradient(parameter: Any) -> Tensor | None:
    gathered = fsdp_gathered(parameter)
    return None if gathered is None else gathered.grad


def _put_back(parameter: Any, accumulated: Tensor | None, gradient: Tensor | None) -> None:
    parameter.unsharded_accumulated_grad = accumulated
    gathered = fsdp_gathered(parameter)
    if gathered is not None:
        gathered.grad = gradient
