"""Leaving a model as it was: buffers, flags, random state and layers that are not initialised yet."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unitvar.stochastic import RandomState, evaluating, random_state_kept


@contextmanager
def preserved(model: nn.Module) -> Iterator[RandomState]:
    """Run a block in evaluation mode without gradients, and put back all that it changes.

    Buffers keep identity and bits, parameters their storage; training flags and random state return. Lazy layers that
    the block initialises stay initialised if it succeeds, and are as they were if it fails.

    Args:
        model: the model that the block runs.

    Returns:
        A context manager that gives the random state on entry.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # the copies made here outlive it
        start = stack.enter_context(random_state_kept(model))
        stack.enter_context(lazy_on_failure(model))
        stack.enter_context(buffers_kept(model))
        # Not of DTensors and the like, whose memory comes and goes.
        stack.enter_context(data_kept(p for p in model.parameters() if type(p) is nn.Parameter))
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        if "torch._dynamo" in sys.modules:  # only then can anything be compiled; compiled code would skip what we watch
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield start


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Put every buffer back, the same tensor with the same bits, however the block ends."""
    homes = [(module, dict(module._buffers)) for module in model.modules()]
    copies = {
        id(buffer): (buffer, buffer.detach().clone(), _version(buffer))
        for _, buffers in homes
        for buffer in buffers.values()
        if buffer is not None and not is_lazy(buffer)
    }
    try:
        yield
    finally:
        for module, buffers in homes:
            for name, buffer in buffers.items():
                if module._buffers.get(name) is not buffer:
                    module._buffers[name] = buffer
        for buffer, copy, version in copies.values():
            # Writing only what changed spares buffers that cannot be written to.
            if _version(buffer) != version if buffer.layout != torch.strided else not _same_bits(buffer, copy):
                overwrite(buffer, copy)


def overwrite(tensor: Tensor, value: Tensor) -> None:
    """Write values into a tensor, also into one that was made in inference mode."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.copy_(value)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    # Equal values with equal signs: -0.0 == 0.0.
    return torch.equal(a, b) and (not a.is_floating_point() or torch.equal(a.signbit(), b.signbit()))


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def data_kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Put back the memory of tensors whose ``.data`` a forward assigns to, as one that limits its norms does."""
    with torch.inference_mode(False):
        kept = [(t, t.data) for t in solid(tensors)]
    try:
        yield
    finally:
        with torch.inference_mode(False):
            for tensor, data in kept:
                if _memory(tensor) != _memory(data):
                    tensor.data = data


def solid(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Choose the tensors that have numbers in memory of their own."""
    return [t for t in tensors if not is_lazy(t) and not t.is_meta and t.layout == torch.strided]


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return storage_of(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


def storage_of(tensor: Tensor) -> int:
    """Identify the memory that a tensor views."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse tensors and the like have none
        return -id(tensor)


@contextmanager
def lazy_on_failure(model: nn.Module) -> Iterator[None]:
    """Make lazy modules that a block has materialised lazy again if it fails."""
    saved = [Uninitialised(module) for module in model.modules() if waits(module)]
    try:
        yield
    except BaseException:
        for module in saved:
            module.restore()
        raise


def uninitialised(model: nn.Module) -> list[str]:
    """Name the lazy layers that no batch has reached yet."""
    return [name for name, module in model.named_modules() if waits(module)]


def waits(module: nn.Module) -> bool:
    """Say whether a module has parameters or buffers whose shape is not known yet."""
    return any(is_lazy(t) for t in (*module._parameters.values(), *module._buffers.values()) if t is not None)


class Uninitialised:
    """Remember a lazy layer, which initialisation changes in class, attributes, hooks and tensors."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.kind = type(module)
        self.attributes = dict(vars(module))
        # The handles of its hooks refer to these very dicts, so they are refilled, never replaced.
        self.tables: list[tuple[dict[Any, Any], dict[Any, Any]]] = [
            (table, dict(table)) for table in self.attributes.values() if isinstance(table, dict)
        ]
        self.tensors = [
            (t, type(t), t.device, t.dtype)
            for t in (*module._parameters.values(), *module._buffers.values())
            if t is not None and is_lazy(t)
        ]

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
