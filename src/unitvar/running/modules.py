"""Modules: the one inside its wrappers, and the one that is running."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from unitvar._torch import WRAPPERS, compiled_core
from unitvar.running.switches import Switch
from unitvar.running.undo import Undo, undoing

__all__ = ["hooks_removed", "inner", "modules_tracked", "parameters_by_name", "unwrapped"]


def inner(model: nn.Module) -> nn.Module:
    """Take off what DistributedDataParallel, DataParallel and torch.compile wrapped around a model.

    Their forward would synchronise ranks at every batch, or run code in which BatchNorm is no module any more.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, not an nn.Module.")
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    while True:
        core = model.module if isinstance(model, wrappers) else compiled_core(model)
        if core is None:
            return model
        model = core


def unwrapped(name: str) -> str:
    """Take out of a parameter's name what wrappers inside of the model have put there.

    Example:
        >>> unwrapped("layers.0._checkpoint_wrapped_module.weight")
        'layers.0.weight'
    """
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def parameters_by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """Map the names of a model's parameters, without those of wrappers, to the parameters; a tied one counts once."""
    return {unwrapped(name): parameter for name, parameter in model.named_parameters()}


class _Paths:
    """The paths of the modules that one thread is inside of, from a model down."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.stack = [""]

    def enter(self, module: nn.Module) -> None:
        self.stack.append(self.names.get(id(module), self.stack[-1]))

    def leave(self) -> None:
        if len(self.stack) > 1:
            self.stack.pop()


# A context belongs to a thread or a task: what others run is not seen.
_tracking: ContextVar[tuple[_Paths, ...]] = ContextVar("unitvar_tracking", default=())


@undoing()
def modules_tracked(undo: Undo, model: nn.Module) -> list[str]:
    """Return a list whose last item is always the path of the module that this thread is running.

    The hooks are global, not the modules' own, so that those stay untouched. One pair serves all threads and all
    models; it is there as long as anything is tracked.
    """
    paths = _Paths(model)
    undo.enter(_HOOKS.held())
    undo.add(lambda: _tracking.set(tuple(other for other in _tracking.get() if other is not paths)))
    _tracking.set((*_tracking.get(), paths))
    return paths.stack


def hooks_removed(undo: Undo) -> list[Any]:
    """Return a list for the handles of hooks, which are removed in the end."""
    handles: list[Any] = []
    undo.add(lambda: [handle.remove() for handle in handles])
    return handles


@undoing(alone=True)
def _hooked(undo: Undo) -> None:
    handles = hooks_removed(undo)
    handles.append(register_module_forward_pre_hook(_enter))
    handles.append(register_module_forward_hook(_leave, always_call=True))


def _enter(module: nn.Module, inputs: Any) -> None:
    for paths in _tracking.get():
        paths.enter(module)


def _leave(module: nn.Module, inputs: Any, output: Any) -> None:
    for paths in _tracking.get():
        paths.leave()


_HOOKS = Switch(_hooked)
