"""What initialisation would do, weight by weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LayerPlan", "Layout", "Plan"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the dimensions of a parameter are used.

    Attributes:
        columns: those that are summed over.
        batch: those that only select: experts, heads.
        fill: what an initialiser must be told of it: transposed, groups and stride.
    """

    columns: tuple[int, ...]
    batch: tuple[int, ...]
    fill: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The plan for one weight.

    Attributes:
        name: of the parameter, ``"features.0.weight"``.
        op: what uses it, ``"conv2d"``.
        shape: its shape.
        fan_in: connections into an output; those to padding count.
        fan_out: connections out of an input.
        mean: E x of what reaches it.
        second: E x² of what reaches it, averaged over uses.
        path: the ops since the last weight, in words.
        scale: the norm of a row, all that lies before the weight and the loss at borders included.
        predicted: E z² of what leaves it.
        biases: names of the biases that become zero with it.
        note: what its scale could not do; empty, mostly.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    fan_in: float
    fan_out: float
    mean: float
    second: float
    path: str
    scale: float
    predicted: float
    biases: tuple[str, ...] = ()
    note: str = ""
    layout: Layout = field(default=Layout((), (), {}), repr=False, compare=False)

    @property
    def row(self) -> dict[str, str | int | float | None]:
        """Give a flat, JSON-ready dict."""
        return {
            "name": self.name,
            "op": self.op,
            "shape": "x".join(map(str, self.shape)),
            "fan_in": self.fan_in,
            "fan_out": self.fan_out,
            "mean": self.mean,
            "second": self.second,
            "path": self.path,
            "scale": self.scale,
            "predicted": self.predicted,
            "note": self.note,
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """The scale of every weight, in execution order, and why the others are left alone.

    Attributes:
        layers: one record a weight.
        skipped: parameter name → reason, for every parameter with two dimensions or more that is not in ``layers``.
        unsupported: op → how often it was met; these were taken apart or sampled.
        chi: by how much, a layer, a relative deviation of the second moment grows along the longest path without a
            norm: the geometric mean. 0 if there is no such path.
        depth: the layers on that path.
        mode: as asked for.
        distribution: as asked for.

    Example:
        >>> import unitvar
        >>> from torch.nn import Dropout, Linear, ReLU, Sequential
        >>> net = Sequential(Linear(8, 8), ReLU(), Dropout(0.5), Linear(8, 2))
        >>> [(layer.name, layer.path, round(layer.scale, 4)) for layer in unitvar.plan(net, torch.zeros(1, 8))]
        [('0.weight', 'input', 1.0), ('3.weight', 'relu → dropout 0.5', 1.0)]
    """

    layers: tuple[LayerPlan, ...]
    skipped: Mapping[str, str]
    unsupported: Mapping[str, int]
    chi: float
    depth: int
    mode: str
    distribution: str

    def __iter__(self) -> Iterator[LayerPlan]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, name: str) -> LayerPlan:
        for layer in self.layers:
            if layer.name == name:
                return layer
        reason = self.skipped.get(name)
        known = ", ".join(repr(layer.name) for layer in self.layers)
        raise KeyError(f"{name!r} is left alone: {reason}." if reason else f"{name!r} is not one of {known}.")

    @property
    def rows(self) -> list[dict[str, str | int | float | None]]:
        """Give one flat, JSON-ready dict a weight."""
        return [layer.row for layer in self.layers]

    def __str__(self) -> str:
        from unitvar.planning.table import text  # which speaks of plans itself

        return text(self)
