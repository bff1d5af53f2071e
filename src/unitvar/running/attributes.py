"""Attributes of modules, put back after a run."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from unitvar.running.held import reachable, slots, walked
from unitvar.running.undo import Undo, undoing

__all__ = ["attributes_kept"]

_FLAG = "training"  # which running.modes puts back
_DICTS = frozenset({dict, OrderedDict})
_CHANGEABLE = (dict, list, set, deque, bytearray, np.ndarray)


@undoing()
def attributes_kept(undo: Undo, model: nn.Module, *, but: Collection[nn.Module] = ()) -> None:
    """Put back every attribute and slot of every module, and what is in containers and arrays among and inside them.

    Modules that a model hides from torch in a list or a dict are modules, too. Objects of other kinds are not looked
    into, nor are the attributes of ScriptModules, which live outside Python; their buffers are kept like any other.

    Args:
        undo: comes from the decorator.
        model: whose attributes are kept.
        but: modules whose attributes are left as they end up.
    """
    left = set(map(id, but))
    for module in reachable(model):
        if id(module) not in left and not isinstance(module, torch.jit.ScriptModule):
            _keep(undo, module)


def _keep(undo: Undo, module: nn.Module) -> None:
    values, slotted = dict(vars(module)), slots(module)
    # Torch gives every module a dozen tables for hooks, nearly all of them empty.
    empty = [found for found in values.values() if _is_empty(found)]
    every = walked([v for v in (*values.values(), *(value for _, value in slotted)) if not _is_empty(v)])
    contents = [(found, _content(found)) for found in every if isinstance(found, _CHANGEABLE)]
    # One step a module, since large models have thousands of containers; a step that is cut short is run again, whole.
    undo.add(partial(_put_back, module, type(module), values, slotted, empty, contents))


def _is_empty(value: Any) -> bool:
    return type(value) in _DICTS and not value


def _content(container: Any) -> Any:
    """Copy what is in a container, not by a method of its own: a class may override that."""
    if isinstance(container, dict):
        return dict(container)
    return container.copy() if isinstance(container, (bytearray, np.ndarray)) else list(container)


def _put_back(
    module: nn.Module,
    kind: type[nn.Module],
    values: dict[str, Any],
    slotted: list[tuple[Any, Any]],
    empty: list[Any],
    contents: list[tuple[Any, Any]],
) -> None:
    """Put back the class first, then attributes, then what is in them."""
    _reclass(module, kind)
    _reset(module, values)
    for descriptor, value in slotted:
        descriptor.__set__(module, value)
    for container in empty:
        container.clear()
    failed: Exception | None = None
    for container, content in contents:
        try:
            _refill(container, content)
        except Exception as error:  # of a container of somebody's own; the others are put back all the same
            failed = error
    if failed is not None:
        raise failed


def _reclass(module: nn.Module, kind: type[nn.Module]) -> None:
    if type(module) is not kind:
        module.__class__ = kind


def _reset(module: nn.Module, values: dict[str, Any]) -> None:
    """Write back only what changed: hooks' handles refer to these very containers."""
    now = vars(module)
    if now.keys() != values.keys() or any(now[k] is not v for k, v in values.items() if k != _FLAG):
        flag = now.get(_FLAG, values.get(_FLAG))
        kept = {k: flag if k == _FLAG else v for k, v in values.items()}
        for key in [key for key in now if key not in kept]:
            del now[key]
        now.update(kept)
        if list(now) != list(kept):  # their order, too
            now.clear()
            now.update(kept)


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, np.ndarray):
        if container.shape != content.shape:
            container.resize(content.shape, refcheck=False)
        if container.tobytes() != content.tobytes():
            container[...] = content
        return
    if not (content or len(container)) or (len(container) == len(content) and _same_items(container, content)):
        return
    if isinstance(container, (list, bytearray)):
        container[:] = content
    else:
        container.clear()
        container.extend(content) if isinstance(container, deque) else container.update(content)


def _same_items(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(k is l and v is w for (k, v), (l, w) in zip(a.items(), b.items(), strict=True))
    if isinstance(a, (list, deque)):
        return all(x is y for x, y in zip(a, b, strict=True))
    if isinstance(a, set):  # in the order of their hashes: the same items may come in another one
        return {id(x) for x in a} == {id(x) for x in b}
    return bool(a == b)
