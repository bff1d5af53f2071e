"""What a model holds besides parameters and buffers: attributes, slots, and what lies in containers among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from types import MemberDescriptorType
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import own_buffers, own_parameters

__all__ = ["held", "plain_tensors", "reachable", "slots", "walked"]

_ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size, type})
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
# What torch itself keeps in a module: tables of tensors, of modules and of hooks, none of which holds anything else.
_TABLES = frozenset(vars(nn.Module()))


def walked(values: Iterable[Any]) -> Iterator[Any]:
    """Walk values, and what lies in containers among and inside them; numbers, strings and the like are left out.

    Example:
        >>> list(walked([1, torch.ones(1), {"deep": (torch.zeros(1),)}]))
        [tensor([1.]), {'deep': (tensor([0.]),)}, (tensor([0.]),), tensor([0.])]
    """
    pending, met = deque(values), set()
    while pending:
        value = pending.popleft()
        if type(value) in _ATOMS:
            continue
        yield value
        if isinstance(value, _CONTAINERS) and id(value) not in met:
            met.add(id(value))
            pending.extend(list(value.values()) if isinstance(value, dict) else value)


def slots(module: nn.Module) -> list[tuple[Any, Any]]:
    """Give the attributes that a class keeps in ``__slots__``: what sets each of them, and its value."""
    found = []
    for kind in type(module).__mro__:
        for descriptor in vars(kind).values() if "__slots__" in vars(kind) else ():
            if isinstance(descriptor, MemberDescriptorType):
                try:
                    found.append((descriptor, descriptor.__get__(module)))
                except AttributeError:  # not set yet
                    continue
    return found


def held(module: nn.Module) -> Iterator[Any]:
    """Walk what a module of the user's holds besides torch's own tables."""
    if isinstance(module, torch.jit.ScriptModule):
        return iter(())
    own = [value for name, value in vars(module).items() if name not in _TABLES]
    return walked(own + [value for _, value in slots(module)])


def reachable(model: nn.Module) -> list[nn.Module]:
    """List a model's modules, and those that it hides from torch in a list or a dict, such as a teacher."""
    found = {id(module): module for module in model.modules()}
    pending = list(found.values())
    while pending:
        for value in held(pending.pop()):
            if issubclass(type(value), nn.Module) and id(value) not in found:  # not isinstance: weak proxies lie
                new = [module for module in value.modules() if id(module) not in found]
                found.update((id(module), module) for module in new)
                pending += new
    return list(found.values())


def plain_tensors(model: nn.Module) -> list[Tensor]:
    """List all tensors that a model holds other than its registered parameters and buffers."""
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    found: dict[int, Tensor] = {}
    for module in reachable(model):
        tables = () if isinstance(module, torch.jit.ScriptModule) else (own_parameters(module), own_buffers(module))
        for value in (*held(module), *(t for table in tables for t in table.values())):
            if isinstance(value, Tensor) and id(value) not in registered:
                found[id(value)] = value
    return list(found.values())
