"""What re-estimation changed."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from unitvar.shown import WIDTH, Entry, Tabular, counted, html_table, notes, number, text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("values", "old var", "new var", "new/old", "shift", "s.e.")
NUMBER = 9  # characters a column, and the space before it


@dataclass(frozen=True, eq=False, repr=False)
class BatchNormChange(Entry):
    """Hold the statistics of one BatchNorm before and after, one value per channel, on the CPU.

    ``standard_error`` is that of the new variance as a share of it, estimated from the spread between batches; NaN
    where a single batch leaves nothing to compare.
    """

    name: str
    old_mean: Tensor
    old_var: Tensor
    new_mean: Tensor
    new_var: Tensor
    values: int
    batches: int
    standard_error: Tensor

    @property
    def ratio(self) -> Tensor:
        """Return new over old variance."""
        return self.new_var.double() / self.old_var.double()

    @property
    def shift(self) -> Tensor:
        """Return how far the mean moved, in units of the new standard deviation."""
        moved = self.new_mean.double() - self.old_mean.double()
        return torch.where(moved == 0, 0.0, moved / self.new_var.double().sqrt())

    @property
    def row(self) -> dict[str, str | int | float | None]:
        """Summarise all channels: means of what is stored, the geometric mean of ratios, the root mean square shift."""
        ratio = self.ratio
        numbers = {
            "old_mean": self.old_mean.double().mean(),
            "new_mean": self.new_mean.double().mean(),
            "old_var": self.old_var.double().mean(),
            "new_var": self.new_var.double().mean(),
            "ratio": ratio.log().mean().exp(),
            "ratio_min": ratio.min(),
            "ratio_max": ratio.max(),
            "shift": self.shift.square().mean().sqrt(),
            "shift_max": self.shift.abs().max(),
            "standard_error": self.standard_error.max(),
        }
        row: dict[str, str | int | float | None] = {
            "layer": self.name,
            "channels": len(ratio),
            "values": self.values,
            "batches": self.batches,
        }
        # JSON knows neither NaN nor infinity.
        return row | {key: float(x) if math.isfinite(x) else None for key, x in numbers.items()}


@dataclass(frozen=True, eq=False, repr=False)
class BatchNormReport(Tabular):
    """List what changed, layer by layer in execution order, and what was kept.

    Example:
        >>> import torch, unitvar
        >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(1))
        >>> report = unitvar.reestimate_bn_(model, [torch.tensor([[1.0], [3.0], [8.0]])])
        >>> report["0"].new_mean, report["0"].new_var
        (tensor([4.]), tensor([13.]))
    """

    layers: tuple[BatchNormChange, ...]
    kept: Mapping[str, str]
    stats: str
    method: str
    batches: int

    def __iter__(self) -> Iterator[BatchNormChange]:
        return iter(self.layers)

    def __getitem__(self, name: str) -> BatchNormChange:
        return named(name, self.layers, self.kept)

    @property
    def rows(self) -> list[dict[str, str | int | float | None]]:
        """Return one flat, JSON-ready dict per layer."""
        return [layer.row for layer in self.layers]

    @property
    def _headline(self) -> str:
        what = "mean and variance" if self.stats == "both" else "variance"
        count = f"{counted(self.batches, 'batch')}, {counted(len(self.layers), 'layer')}"
        return f"BatchNorm {what}, {self.method}, {count}"

    @property
    def _below(self) -> list[str]:
        remark = lone_values(self.method, [(x.name, x.values, x.batches) for x in self.layers])
        kept = [f"kept: {name} ({reason})" for name, reason in self.kept.items()]
        return [f"warning: {remark}", *kept] if remark else kept

    def __str__(self) -> str:
        rows = [(str(row["layer"]), _cells(row)) for row in self.rows]
        lines = [self._headline, *text_table("layer", [(head, NUMBER) for head in COLUMNS], rows)]
        for line in self._below:
            lines += textwrap.wrap(line, WIDTH, subsequent_indent="  ")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<BatchNormReport: {self._headline}>"

    def _repr_html_(self) -> str:
        rows = [(str(row["layer"]), *_cells(row)) for row in self.rows]
        return notes(self._headline) + html_table(("layer", *COLUMNS), rows) + notes(*self._below)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw new over old variance by layer: the middle channel, and the middle 90 % of them.

        Args:
            ax: where to draw; default: new axes.

        Returns:
            The axes.
        """
        from unitvar import plot

        levels = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64, device="cpu")
        bands = torch.stack([layer.ratio.quantile(levels) for layer in self.layers], dim=1)
        low, middle, high = bands.tolist()
        return plot.ratio_by_layer(low, middle, high, [layer.name for layer in self.layers], ax=ax)


def lone_values(method: str, layers: Sequence[tuple[str, int, int]]) -> str:
    """Say where one pass goes wrong: batches of one value per channel have no statistics of their own.

    Args:
        method: how the statistics were gathered.
        layers: name, values per channel and batches of each layer, in execution order.

    Returns:
        A sentence with the remedy; nothing, if the last layer is the only one with such batches.
    """
    lone = [name for name, values, batches in layers[:-1] if values < 2 * batches]
    if method != "one-pass" or not lone:
        return ""
    return (
        f"in most batches BatchNorm {lone[0]!r} receives one value per channel, which has no variance: the variances "
        'of the layers after it may be far off. Use method="sequential", which is exact for any batch size, or larger '
        "batches."
    )


@runtime_checkable
class Named(Protocol):
    """A record of one layer."""

    @property
    def name(self) -> str:
        """Return the layer's name."""


Record = TypeVar("Record", bound=Named)


def named(name: str, layers: Sequence[Record], kept: Mapping[str, str]) -> Record:
    """Find the record of a layer, or say why there is none."""
    for layer in layers:
        if layer.name == name:
            return layer
    raise KeyError(f"{name!r} was kept: {kept[name]}." if name in kept else f"{name!r} is not one of {names(layers)}.")


def names(layers: Iterable[Named]) -> str:
    """List the names of layers, for messages."""
    return ", ".join(repr(layer.name) for layer in layers)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    shift = number(row["shift"], beside=1.0)  # in standard deviations
    variances = (number(row[key]) for key in ("old_var", "new_var", "ratio"))
    return _count(row["values"]), *variances, shift, _percent(row)


def _count(n: Any) -> str:
    return f"{n}" if n < 10 ** (NUMBER - 1) else f"{n:.2e}"


def _percent(row: Mapping[str, Any]) -> str:
    error = row["standard_error"]
    return "-" if error is None else f"{100 * error:.2g} %" if error < 10 else "> 999 %"
