"""Attributes of modules, put back after a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["attributes_kept"]


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
