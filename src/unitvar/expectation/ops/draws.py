"""Ops that draw random numbers of a known distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["DRAWS", "MASKS", "SHAPES", "VIEWS", "draw"]

# The distribution, and where its parameters stand among the arguments.
DRAWS: dict[str, tuple[str, tuple[int, ...]]] = {
    "aten.bernoulli.float": ("bernoulli", (1,)),
    "aten.bernoulli.p": ("bernoulli", (1,)),
    "aten.bernoulli_.float": ("bernoulli", (1,)),
    "aten.rand": ("uniform", ()),
    "aten.rand_like": ("uniform", ()),
    "aten.uniform": ("uniform", (1, 2)),
    "aten.randn": ("normal", ()),
    "aten.randn_like": ("normal", ()),
    "aten.normal.default": ("normal", (1, 2)),
    "aten.normal_functional": ("normal", (1, 2)),
    "aten.normal.float_float": ("normal", (0, 1)),
    "aten.exponential": ("exponential", (1,)),
}

# Products in which random numbers are a mask, and views that show them in another shape.
MASKS = {"aten.mul", "aten.multiply"}
VIEWS = {
    "aten.view", "aten.reshape", "aten.unsqueeze", "aten.squeeze", "aten.expand", "aten.expand_as", "aten.clone",
    "aten.contiguous", "aten.detach", "aten.alias", "aten.to", "aten._to_copy", "aten.type_as", "aten.flatten",
}  # fmt: skip

# Ops that take only the shape, the dtype and the device of a tensor.
SHAPES = {
    "aten.new_empty", "aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.empty_like", "aten.zeros_like",
    "aten.ones_like", "aten.full_like", "aten.new_empty_strided", "aten.sym_size", "aten.zero", "aten.fill",
}  # fmt: skip


def draw(name: str, overload: str, args: Sequence[Any]) -> tuple[str, tuple[Any, ...]] | None:
    """Return the distribution that an op draws from and its parameters, None if it is not known."""
    found = DRAWS.get(f"{name}.{overload}") or DRAWS.get(name)
    if found is None:
        return None
    kind, places = found
    return kind, tuple(args[i] for i in places if i < len(args))
