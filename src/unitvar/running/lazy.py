"""Layers whose shape is not known before their first run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import is_lazy, own_buffers, own_parameters
from unitvar.running.calling import call, copied
from unitvar.running.example import explained
from unitvar.running.restore import values_kept

__all__ = ["lazy_kept", "lazy_on_failure", "materialise", "uninitialised"]


@contextmanager
def lazy_on_failure(model: nn.Module) -> Iterator[None]:
    """Make lazy layers that a block has materialised lazy again if it fails."""
    saved = _pending(model)
    try:
        yield
    except BaseException:
        for layer in saved:
            layer.restore()
        raise


@contextmanager
def lazy_kept(model: nn.Module) -> Iterator[None]:
    """Make lazy layers that a block has materialised lazy again, however it ends."""
    with ExitStack() as stack:
        for layer in _pending(model):
            stack.callback(layer.restore)
        yield


def materialise(model: nn.Module, example: Any) -> None:
    """Run a model with lazy layers once, so that they learn their shapes; other models are not run."""
    if uninitialised(model):
        with torch.no_grad(), values_kept(model):
            try:
                call(model, copied(example))
            except Exception as error:
                raise explained(error, example) from error.__cause__


def uninitialised(model: nn.Module) -> list[str]:
    """Name the lazy layers that no batch has reached yet."""
    return [name for name, module in model.named_modules() if _is_pending(module)]


def _pending(model: nn.Module) -> list[_LazyLayer]:
    return [_LazyLayer(module) for module in model.modules() if _is_pending(module)]


def _is_pending(module: nn.Module) -> bool:
    return any(is_lazy(t) for t in _tensors(module))


def _tensors(module: nn.Module) -> list[Tensor]:
    return [t for t in (*own_parameters(module).values(), *own_buffers(module).values()) if t is not None]


class _LazyLayer:
    """Remember a lazy layer, which initialisation changes in class, attributes, hooks and tensors."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.kind = type(module)
        self.attributes = dict(vars(module))
        # The handles of its hooks refer to these very dicts, so they are refilled, never replaced.
        self.tables: list[tuple[dict[Any, Any], dict[Any, Any]]] = [
            (table, dict(table)) for table in self.attributes.values() if isinstance(table, dict)
        ]
        self.tensors = [(t, type(t), t.device, t.dtype) for t in _tensors(module) if is_lazy(t)]

    def restore(self) -> None:
        """Forget all shapes again."""
        for tensor, kind, device, dtype in self.tensors:
            tensor.data = torch.empty(0, device=device, dtype=dtype)
            tensor.__class__ = kind
        for table, entries in self.tables:
            table.clear()
            table.update(entries)
        self.module.__class__ = self.kind
        vars(self.module).clear()
        vars(self.module).update(self.attributes)
