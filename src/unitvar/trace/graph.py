"""The graph of one run: values, and the ops between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["Graph", "Node", "Op", "Value", "op_of", "values_in"]


class Value:
    """One tensor at one moment of the run.

    Attributes:
        kind: "parameter", "buffer", "input", "constant", "derived" (computed from parameters alone) or "activation".
        shape: its shape.
        dtype: its dtype.
        name: of a parameter, buffer or input.
        node: the op it comes from, None where there is none.
        tensor: the real tensor of a parameter, buffer, input or constant; else None.
        layout: size, stride and offset inside the parameter whose storage it views; None if it views none.
        parameter: that parameter.
    """

    __slots__ = ("dtype", "kind", "layout", "name", "node", "parameter", "shape", "tensor")

    def __init__(self, kind: str, like: Tensor, *, name: str = "", node: Node | None = None) -> None:
        self.kind = kind
        self.shape = tuple(like.shape)
        self.dtype = like.dtype
        self.name = name
        self.node = node
        self.tensor: Tensor | None = None
        self.layout: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
        self.parameter: Value | None = None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name or list(self.shape)}>"


@dataclass(eq=False, slots=True)
class Node:
    """An op as it was called: arguments in schema order, Values for tensors."""

    op: Op
    args: tuple[Any, ...]
    path: str
    outputs: tuple[Value | None, ...] = ()

    @property
    def name(self) -> str:
        """Give the op's name without overload and without the underscore of in-place ops: ``aten.relu``."""
        return self.op.name

    @property
    def inputs(self) -> Iterator[Value]:
        """Give every tensor that goes in."""
        return values_in(self.args)


@dataclass(eq=False, slots=True)
class Graph:
    """A run: its nodes in order, its inputs, and what it returned.

    ``decomposed`` counts the ops that were taken apart, ``where`` names the module of the first of each; ``real`` says
    whether real tensors had to be used, ``training`` whether it ran in train mode.
    """

    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    parameters: dict[str, Value] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)
    decomposed: Counter[str] = field(default_factory=Counter)
    where: dict[str, str] = field(default_factory=dict)
    real: bool = False
    training: bool = True

    def release(self) -> None:
        """Let all tensors go: nodes and values hold each other, and with them the model's weights, for a while."""
        for value in (*self.inputs, *self.parameters.values(), *(v for node in self.nodes for v in node.inputs)):
            value.tensor = None


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
        """Give the overload's name: ``Tensor`` in ``aten.add.Tensor``."""
        return getattr(self.func, "_overloadname", "")

    @property
    def functional(self) -> Any:
        """Give the packet that computes the same without writing."""
        space, _, base = self.name.partition(".")
        return getattr(getattr(torch.ops, space), base, self.func)


# torch tags these as something else, or not at all.
_POINTWISE = {
    "aten.hardswish", "aten.log_sigmoid", "aten.masked_fill", "aten.prelu", "aten._prelu_kernel", "aten.where",
    "aten.float_power", "aten.true_divide", "aten.floor_divide", "aten.multiply", "aten.divide", "aten.subtract",
}  # fmt: skip
_NOT_POINTWISE = {"aten.rrelu", "aten.clone", "aten.bernoulli", "aten.normal", "aten.binomial"}


@cache
def op_of(func: Any) -> Op:
    """Read an op's schema."""
    schema = func._schema
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
    schema = func._schema
    same = written == (0,) and len(schema.returns) == 1 and schema.returns[0].alias_info is not None
    return (
        same and schema.name.endswith("_") and torch.Tag.inplace_view not in func.tags and "resize" not in schema.name
    )


def values_in(args: Any) -> Iterator[Value]:
    """Walk the Values of nested arguments."""
    for arg in args:
        if isinstance(arg, Value):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from values_in(arg)
