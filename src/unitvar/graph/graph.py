"""The graph of one run: values, and the ops between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from unitvar.graph.op import Op

__all__ = ["Graph", "Node", "Value", "values_in"]


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
    inputs: tuple[Value, ...] = field(init=False)
    """Every tensor that goes in."""

    def __post_init__(self) -> None:
        self.inputs = tuple(values_in(self.args))

    @property
    def name(self) -> str:
        """Return the op's name without overload and without the underscore of in-place ops: ``aten.relu``."""
        return self.op.name


@dataclass(eq=False, slots=True)
class Graph:
    """A run: its nodes in order, its inputs, and what it returned.

    ``outputs`` are the tensors returned that the run computed, ``returned`` all of them, constants too, as they are at
    the end. ``decomposed`` counts the ops that were taken apart, ``where`` names the module of the first of each;
    ``real`` says whether real tensors had to be used, ``training`` whether it ran in train mode.
    """

    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    parameters: dict[str, Value] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)
    returned: list[Value] = field(default_factory=list)
    decomposed: Counter[str] = field(default_factory=Counter)
    where: dict[str, str] = field(default_factory=dict)
    real: bool = False
    training: bool = True

    def release(self) -> None:
        """Let all tensors go: nodes and values hold each other, and with them the model's weights, for a while."""
        for value in (
            *self.inputs,
            *self.parameters.values(),
            *self.returned,
            *(v for node in self.nodes for v in node.inputs),
        ):
            value.tensor = None


def values_in(args: Any) -> Iterator[Value]:
    """Walk the Values of nested arguments."""
    for arg in args:
        if isinstance(arg, Value):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from values_in(arg)
