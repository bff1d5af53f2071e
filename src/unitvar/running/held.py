"""What a model holds besides parameters and buffers: attributes, slots, and what lies in containers among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import own_buffers, own_parameters

__all__ = ["holdings", "plain_tensors", "reachable", "slots", "walked"]

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


@lru_cache(maxsize=256)
def _descriptors(kind: Any) -> tuple[MemberDescriptorType, ...]:
    """List what sets the attributes that a class and its bases keep in ``__slots__``."""
    slotted = (base for base in kind.__mro__ if "__slots__" in vars(base))
    return tuple(d for base in slotted for d in vars(base).values() if isinstance(d, MemberDescriptorType))


def slots(module: nn.Module) -> list[tuple[Any, Any]]:
    """Return the attributes that a class keeps in ``__slots__``: what sets each of them, and its value."""
    found = []
    for descriptor in _descriptors(type(module)):  # type: ignore[arg-type]
        try:
            found.append((descriptor, descriptor.__get__(module)))
        except AttributeError:  # not set yet
            continue
    return found


def _is_plain(value: Any) -> bool:
    """Return True for numbers, strings and the like, and for tuples of them, as layers have by the thousand."""
    return type(value) in _ATOMS or (type(value) is tuple and _ATOMS.issuperset(map(type, value)))


def held(module: nn.Module) -> Iterator[Any]:
    """Walk what a module of the user's holds besides torch's own tables."""
    if isinstance(module, torch.jit.ScriptModule):
        return iter(())
    own = [value for name, value in vars(module).items() if name not in _TABLES and not _is_plain(value)]
    own += [value for _, value in slots(module)]
    return walked(own) if own else iter(())


def holdings(model: nn.Module) -> list[tuple[nn.Module, tuple[Any, ...]]]:
    """List a model's modules, and those that it hides in a list or a dict, such as a teacher; what each holds."""
    found = {id(module): module for module in model.modules()}
    pending, pairs = list(found.values()), []
    for module in pending:  # which grows meanwhile
        values = tuple(held(module))
        pairs.append((module, values))
        for value in values:
            if issubclass(type(value), nn.Module) and id(value) not in found:  # not isinstance: weak proxies lie
                new = [module for module in value.modules() if id(module) not in found]
                found.update((id(module), module) for module in new)
                pending += new
    return pairs


def reachable(model: nn.Module) -> list[nn.Module]:
    """List a model's modules, and those that it hides from torch in a list or a dict."""
    return [module for module, _ in holdings(model)]


def plain_tensors(model: nn.Module) -> list[Tensor]:
    """List all tensors that a model holds other than its registered parameters and buffers."""
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    found: dict[int, Tensor] = {}
    for module, values in holdings(model):
        tables = () if isinstance(module, torch.jit.ScriptModule) else (own_parameters(module), own_buffers(module))
        for value in (*values, *(t for table in tables for t in table.values())):
            if isinstance(value, Tensor) and id(value) not in registered:
                found[id(value)] = value
    return list(found.values())
