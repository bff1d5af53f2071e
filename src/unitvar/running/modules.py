"""Modules: the one inside its wrappers, and the one that is running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from unitvar._torch import compiled_core
from unitvar.running.switches import Switch

__all__ = ["inner", "modules_tracked"]


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


@contextmanager
def modules_tracked(model: nn.Module) -> Iterator[list[str]]:
    """Give a list whose last item is always the path of the module that this thread is running.

    The hooks are global, not the modules' own, so that those stay untouched. One pair serves all threads and all
    models; it is there as long as anything is tracked.
    """
    paths = _Paths(model)
    with _HOOKS.held():
        token = _tracking.set((*_tracking.get(), paths))
        try:
            yield paths.stack
        finally:
            _tracking.reset(token)


@contextmanager
def _hooked() -> Iterator[None]:
    handles = [register_module_forward_pre_hook(_enter), register_module_forward_hook(_leave, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _enter(module: nn.Module, inputs: Any) -> None:
    for paths in _tracking.get():
        paths.enter(module)


def _leave(module: nn.Module, inputs: Any, output: Any) -> None:
    for paths in _tracking.get():
        paths.leave()


_HOOKS = Switch(_hooked)
