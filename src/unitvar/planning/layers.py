"""What initialisation would do, weight by weight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from unitvar.shown import Entry, Tabular

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LayerPlan", "Layout", "Plan"]

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the dimensions of a parameter are used.

    Attributes:
        columns: those that are summed over.
        batch: those that only select: experts, heads.
        fill: what an initialiser must be told of it: transposed, groups and stride.
        zero: rows that stay zero: an embedding's padding.
    """

    columns: tuple[int, ...]
    batch: tuple[int, ...]
    fill: Mapping[str, Any]
    zero: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class LayerPlan(Entry):
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
        biases: names of the biases that are set to zero with it.
        note: what its scale cannot control; usually empty.
        branch: of the last weight of a residual branch, ``"branch 3 of 12 in 'blocks'"``; of others of a damped one,
            ``"inside branch 3 of 12 in 'blocks'"``.
        signal: the share of E z² that differs from example to example and not from mask to mask.
        noise: the share of E z² that differs from mask to mask. The rest is common to all examples.
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
    branch: str = ""
    signal: float = math.nan
    noise: float = math.nan
    layout: Layout = field(default=Layout((), (), {}), repr=False, compare=False)

    @property
    def row(self) -> dict[str, str | int | float | None]:
        """Return a flat, JSON-ready dict."""
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
            "branch": self.branch,
            "signal": None if math.isnan(self.signal) else self.signal,
            "noise": None if math.isnan(self.noise) else self.noise,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Tabular):
    """The scale of every weight, in execution order, and why the others are left alone.

    Attributes:
        layers: one record per weight.
        skipped: parameter name → reason, for every parameter with two dimensions or more that is not in ``layers``.
        unsupported: op → how often it was met; these were taken apart or sampled.
        chi: the factor per layer by which a relative deviation of the second moment grows along the longest path
            without a norm (geometric mean). 0 if there is no such path.
        depth: the layers on that path.
        mode: as requested.
        distribution: as requested.
        inputs: what the plan assumes of the inputs, in words.
        gain: what every scale but those of the outputs was multiplied by.
        advice: sentences of advice before training; often none.
        shifts: batch norm → the variance that reaches it with dropout on, over that with dropout off; the largest of
            several uses. Li et al. (2019) call the inverse the shift ratio. Empty without dropout before a batch norm.
        parameters: name → shape, of all parameters that the model had.

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
    inputs: str = ""
    gain: float = 1.0
    advice: tuple[str, ...] = ()
    shifts: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

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
        """Return one flat, JSON-ready dict per weight."""
        return [layer.row for layer in self.layers]

    def apply_(self, model: Model, generator: torch.Generator | None = None) -> Model:
        """Fill a model by this plan, which may come from the meta device, from a file or from another process.

        The weights are those that :func:`unitvar.initialize_` draws by this plan from the same random state. Biases
        beside them become zero. Everything else keeps its values: after ``to_empty``, give those parameters values
        first.

        On ``DTensor`` parameters (FSDP2's ``fully_shard``, tensor parallel) every rank must call it. Each draws one
        whole layer after the other, from the random state of the first rank, and keeps its shard: all shards together
        are the unsharded fill, bit for bit, on any mesh, and no rank holds more than its shards and one layer. A rank
        whose random state was another one gets it back.

        Args:
            model: has exactly the parameters that the planned model had, by name and shape.
                Otherwise nothing is written. The names that ``torch.compile`` and activation checkpointing put around
                a module do not count.
            generator: draws the weights, leaving the global random state alone; default: the global one.

        Returns:
            The model.

        Example:
            >>> import unitvar
            >>> with torch.device("meta"):
            ...     net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
            >>> made = unitvar.plan(net, torch.zeros(1, 8, device="meta"))
            >>> net = made.apply_(net.to_empty(device="cpu"))
            >>> net[3].weight.norm(dim=1).round(decimals=4)
            tensor([1., 1.], grad_fn=<RoundBackward1>)
        """
        from unitvar.planning.fitting import apply  # which speaks of plans itself

        apply(self, model, generator)
        return model

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a JSON file, whole or not at all.

        Args:
            path: the file, which is replaced if it exists.
        """
        from unitvar.planning.file import save

        save(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Plan:
        """Read what :meth:`save` wrote.

        Args:
            path: the file.

        Returns:
            The same plan, every number bit for bit.
        """
        from unitvar.planning.file import load

        return load(path)

    def plot_shares(self, ax: Axes | None = None) -> Axes:
        """Draw what E z² of every layer is made of: common to all examples, telling them apart, noise of masks.

        Args:
            ax: where to draw; default: new axes.

        Returns:
            The axes.
        """
        from unitvar import plot

        return plot.shares(self.rows, ax=ax)

    def __str__(self) -> str:
        from unitvar.planning.table import text  # which speaks of plans itself

        return text(self)

    def __repr__(self) -> str:
        from unitvar.planning.table import headline

        return f"<Plan: {headline(self)}>"

    def _repr_html_(self) -> str:
        from unitvar.planning.table import html

        return html(self)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw what reaches each weight, E x², and the scale it gets, in execution order.

        Args:
            ax: where to draw; default: new axes.

        Returns:
            The axes.
        """
        from unitvar import plot

        return plot.scales(self.rows, ax=ax)
