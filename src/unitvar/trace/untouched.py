"""Running a model without leaving a mark on it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unitvar.batchnorm import preserve
from unitvar.batchnorm.preserve import buffers_kept, solid
from unitvar.stochastic import random_state_kept

__all__ = ["attributes_kept", "data_kept", "in_mode", "modules_tracked", "plain_kept", "untouched", "values_kept"]


@contextmanager
def untouched(model: nn.Module, *, training: bool = True, attributes: bool = True) -> Iterator[None]:
    """Run a block in one mode throughout, and put back all that it changes: flags, attributes, buffers, random state.

    Args:
        model: the model that the block runs.
        training: the flag that every module has meanwhile.
        attributes: whether to put attributes back, too; lazy layers that should learn their shapes need them changed.

    Returns:
        A context manager.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(random_state_kept(model))
        if attributes:
            stack.enter_context(attributes_kept(model))
        stack.enter_context(in_mode(model, training))
        stack.enter_context(_fast_path_off())
        if "torch._dynamo" in sys.modules:  # only then can anything be compiled; compiled code would skip the recorder
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def values_kept(model: nn.Module) -> Iterator[None]:
    """Put parameters, buffers and plain tensor attributes back, bit by bit; needed where real tensors are run."""
    with buffers_kept(model), plain_kept(model), _kept(solid(model.parameters())), data_kept(model):
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
    with preserve.data_kept((*model.parameters(), *model.buffers(), *plain)):
        yield


def _plain_tensors(module: nn.Module) -> Iterator[Tensor]:
    for value in vars(module).values():
        if isinstance(value, Tensor) and not value.is_meta:
            yield value


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Set every module's training flag, and put each back."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, flag in flags:
            if flag != training:
                module.training = training
        yield
    finally:
        for module, flag in flags:
            if module.training != flag:
                module.training = flag


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Put back every attribute of every module, and the contents of dicts, lists and sets among and inside them.

    Objects of other kinds are not looked into, nor are the attributes of ScriptModules, which live outside Python;
    their buffers are kept like any other.
    """
    kept = [_Attributes(module) for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    try:
        yield
    finally:
        for attributes in kept:
            attributes.restore()


def _containers(values: Iterable[Any], met: set[int]) -> Iterator[Any]:
    """Walk the dicts, lists and sets among some values, and those inside them."""
    for value in values:
        if isinstance(value, (dict, list, set)) and id(value) not in met:
            met.add(id(value))
            yield value
            if not isinstance(value, set):
                yield from _containers(value.values() if isinstance(value, dict) else value, met)


class _Attributes:
    """Remember a module's attributes, and what is in its containers."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.kind = type(module)
        self.values = dict(vars(module))
        self.contents = [(container, container.copy()) for container in _containers(self.values.values(), set())]

    def restore(self) -> None:
        """Write back only what changed: hooks' handles refer to these very containers."""
        now = vars(self.module)
        if now.keys() != self.values.keys() or any(now[k] is not v for k, v in self.values.items()):
            flag = now.get("training")
            now.clear()
            now.update(self.values)
            now["training"] = flag
        for container, content in self.contents:
            if len(container) == len(content) and _same_items(container, content):
                continue
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)
        if type(self.module) is not self.kind:
            self.module.__class__ = self.kind


def _same_items(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(k in b and v is b[k] for k, v in a.items())
    if isinstance(a, list):
        return all(x is y for x, y in zip(a, b, strict=True))
    return bool(a == b)


@contextmanager
def _fast_path_off() -> Iterator[None]:
    """Keep attention in parts that can be seen."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def modules_tracked(model: nn.Module) -> Iterator[list[str]]:
    """Give a list whose last item is always the path of the module that is running.

    The hooks are global, not the modules' own, so that those stay untouched.
    """
    names = {id(module): name for name, module in model.named_modules()}
    stack = [""]

    def enter(module: nn.Module, inputs: Any) -> None:
        stack.append(names.get(id(module), stack[-1]))

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        if len(stack) > 1:
            stack.pop()

    handles = [
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()
