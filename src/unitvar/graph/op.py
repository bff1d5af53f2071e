"""Ops: what their schemas say of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from unitvar._torch import overload_name, schema_of

__all__ = ["Op", "op_of", "tensors_in"]


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """What the schema says of an op, read once."""

    func: Any
    name: str
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    written: tuple[int, ...]
    views: bool
    random: bool
    pointwise: bool
    inquiry: bool = False  # hands back no tensor and writes to none
    in_place: bool = False  # hands its first argument back, which keeps its shape

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Put arguments into schema order, defaults filled in."""
        rest = range(len(args), len(self.names))
        return [*args, *(kwargs.get(self.names[i], self.defaults[i]) for i in rest)]

    @property
    def overload(self) -> str:
        """Return the overload's name: ``Tensor`` in ``aten.add.Tensor``."""
        return overload_name(self.func)

    @property
    def functional(self) -> Any:
        """Return the packet that computes the same without writing."""
        space, _, base = self.name.partition(".")
        return getattr(getattr(torch.ops, space), base, self.func)


# torch tags these as something else, or not at all.
_POINTWISE = {
    "aten.hardswish", "aten.log_sigmoid", "aten.masked_fill", "aten.prelu", "aten._prelu_kernel", "aten.where",
    "aten.float_power", "aten.true_divide", "aten.floor_divide", "aten.multiply", "aten.divide", "aten.subtract",
    "aten.lt", "aten.le", "aten.gt", "aten.ge", "aten.eq", "aten.ne", "aten.gelu", "aten.mish", "aten.threshold",
}  # fmt: skip
_NOT_POINTWISE = {"aten.rrelu", "aten.clone", "aten.bernoulli", "aten.normal", "aten.binomial"}


@cache
def op_of(func: Any) -> Op:
    """Read an op's schema."""
    schema = schema_of(func)
    name = schema.name.replace("::", ".")
    arguments = schema.arguments
    written = tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)
    if written and name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    views = any(a.alias_info is not None and not a.alias_info.is_write for a in arguments)
    tagged = torch.Tag.pointwise in func.tags
    return Op(
        func=func,
        name=name,
        names=tuple(a.name for a in arguments),
        defaults=tuple(a.default_value if a.has_default_value() else None for a in arguments),
        written=written,
        views=views,
        random=torch.Tag.nondeterministic_seeded in func.tags,
        pointwise=(tagged or name in _POINTWISE) and name not in _NOT_POINTWISE,
        in_place=_in_place(func, written),
        inquiry=not written and not any("Tensor" in str(r.type) for r in schema.returns),
    )


def _in_place(func: Any, written: tuple[int, ...]) -> bool:
    schema = schema_of(func)
    same = written == (0,) and len(schema.returns) == 1 and schema.returns[0].alias_info is not None
    return (
        same and schema.name.endswith("_") and torch.Tag.inplace_view not in func.tags and "resize" not in schema.name
    )


def tensors_in(args: Any) -> Iterator[Tensor]:
    """Walk the tensors of nested arguments."""
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from tensors_in(arg)
