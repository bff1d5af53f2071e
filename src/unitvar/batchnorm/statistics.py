"""BatchNorm statistics as an object: merged over data sets, blended with a model's own, selected, applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial, reduce
from os import PathLike

import torch
from torch import Tensor, nn

from unitvar._torch import AnyBatchNorm
from unitvar.batchnorm.buffers import running, store, write
from unitvar.batchnorm.moments import Moments, Spread
from unitvar.batchnorm.report import BatchNormChange, BatchNormReport, named, names
from unitvar.running.modules import inner
from unitvar.running.undo import Undo
from unitvar.shown import Tabular, counted, html_table, notes, number, text_table

Row = dict[str, str | int | float]
COLUMNS = ("channels", "values", "mean", "variance")
UNITS = ("values", "examples")


@dataclass(frozen=True, eq=False)
class LayerStatistics:
    """Hold what one BatchNorm saw: its name, the pooled moments, and their spread between batches."""

    name: str
    moments: Moments
    spread: Spread

    @property
    def mean(self) -> Tensor:
        """Return the mean of each channel, in float64."""
        return self.moments.mean

    @property
    def var(self) -> Tensor:
        """Return the variance of each channel as torch stores it, unbiased, in float64."""
        return self.moments.unbiased

    @property
    def values(self) -> int:
        """Return the number of values that each channel saw."""
        return self.moments.count

    @property
    def examples(self) -> int:
        """Return the number of examples: the sizes of the first dimension, added up."""
        return self.moments.examples

    @property
    def standard_error(self) -> Tensor:
        """Return the standard error of the variance as a share of it; NaN from a single batch."""
        return self.spread.relative_error(self.moments)

    def merge(self, other: LayerStatistics) -> LayerStatistics:
        """Pool the values of the same layer in two data sets."""
        if len(self.mean) != len(other.mean):
            raise ValueError(
                f"BatchNorm {self.name!r} has {len(self.mean)} channels here and {len(other.mean)} there: merge "
                "statistics of the same architecture."
            )
        spread = self.spread.copy()
        spread.merge(other.spread)
        return LayerStatistics(self.name, self.moments.merge(other.moments), spread)


@dataclass(frozen=True, eq=False, repr=False)
class BatchNormStatistics(Tabular):
    """Hold the statistics of every BatchNorm of a model over some data, and how many values they come from.

    Made by :func:`unitvar.bn_statistics`. Nothing here changes a model but :meth:`apply_`.

    Attributes:
        layers: one record per layer, in execution order.
        kept: name → reason for the layers that have none.
        stats: ``"both"``, or ``"var"``: means are not applied.
        method: ``"one-pass"`` or ``"sequential"``.
        batches: how many batches were read.
    """

    layers: tuple[LayerStatistics, ...]
    kept: Mapping[str, str]
    stats: str
    method: str
    batches: int

    def __iter__(self) -> Iterator[LayerStatistics]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, name: str) -> LayerStatistics:
        return named(name, self.layers, self.kept)

    @property
    def rows(self) -> list[Row]:
        """Return one flat, JSON-ready dict per layer: counts, and means over channels."""
        return [
            {
                "layer": layer.name,
                "channels": len(layer.mean),
                "values": layer.values,
                "examples": layer.examples,
                "batches": layer.spread.batches,
                "mean": float(layer.mean.mean()),
                "var": float(layer.var.mean()),
            }
            for layer in self.layers
        ]

    @property
    def _headline(self) -> str:
        return f"{counted(len(self), 'layer')}, {self.method}, {counted(self.batches, 'batch')}"

    def __repr__(self) -> str:
        return f"<BatchNormStatistics: {self._headline}>"

    def __str__(self) -> str:
        columns = [(head, 10) for head in COLUMNS]
        return "\n".join([self._headline, *text_table("layer", columns, self._cells)])

    def _repr_html_(self) -> str:
        return notes(self._headline) + html_table(("layer", *COLUMNS), [(name, *cells) for name, cells in self._cells])

    @property
    def _cells(self) -> list[tuple[str, tuple[str, ...]]]:
        return [
            (x.name, (str(len(x.mean)), str(x.values), number(float(x.mean.mean()), beside=spread), number(spread**2)))
            for x in self.layers
            for spread in [float(x.var.mean()) ** 0.5]
        ]

    def merge(self, *others: BatchNormStatistics) -> BatchNormStatistics:
        """Pool statistics of several data sets: shards, sites or federated clients.

        The result is what one call over all their batches gives, whatever the sizes; the values themselves are not
        needed. (With ``method="sequential"`` each layer was measured behind its own site's statistics, so that deeper
        layers are those of batches as large as sites.) A layer that only some of them reached is pooled over those.

        Args:
            *others: statistics of the same model, made with the same ``stats`` and ``method``.

        Returns:
            The pooled statistics.
        """
        return reduce(_merged, others, self)

    def blend(self, model: nn.Module, weight: int, *, unit: str = "values") -> BatchNormStatistics:
        """Pool with the running statistics of a model, counted as a number of values: a prior for small data.

        Args:
            model: whose running statistics are the prior.
            weight: how many values, or examples, the prior counts for; 0 leaves these statistics alone.
            unit: ``"values"`` per channel, the same number for every layer, or ``"examples"``: a layer that sees
                8 x 8 positions of each image then counts 64 old values for every one of ``weight``.

        Returns:
            The pooled statistics.
        """
        if isinstance(weight, bool) or not isinstance(weight, int):
            raise TypeError(f"weight={weight!r} is not an integer; pass the number of old {unit}.")
        if weight < 0:
            raise ValueError(f"weight={weight} is negative; pass the number of old {unit}, 0 or more.")
        if unit not in UNITS:
            raise ValueError(f"unit={unit!r} is not one of {', '.join(map(repr, UNITS))}.")
        modules = self._norms(model)
        if weight == 0:
            return self
        return replace(self, layers=tuple(_with_prior(x, modules[x.name], weight, unit) for x in self.layers))

    def select(self, *patterns: str) -> BatchNormStatistics:
        """Keep the layers whose names match shell patterns.

        Args:
            *patterns: such as ``"layer*.bn*"``; upper and lower case differ.

        Returns:
            The statistics of those layers; the others are listed in ``kept``.
        """
        for pattern in patterns:
            if not any(fnmatchcase(layer.name, pattern) for layer in self.layers):
                raise ValueError(f"{pattern!r} matches none of {names(self.layers)}.")
        chosen = [x for x in self.layers if any(fnmatchcase(x.name, pattern) for pattern in patterns)]
        if not chosen:
            raise ValueError(f"select() needs at least one pattern; the layers are {names(self.layers)}.")
        left_out = {layer.name: "not selected" for layer in self.layers if layer not in chosen}
        return replace(self, layers=tuple(chosen), kept={**self.kept, **left_out})

    @torch.inference_mode(False)  # the report outlives it
    def apply_(self, model: nn.Module) -> BatchNormReport:
        """Set the running statistics of a model's layers in place; either all of them, or none if one cannot be set.

        Args:
            model: any model that has these layers, wrapped and compiled as it may be.

        Returns:
            What changed, layer by layer.
        """
        modules = self._norms(model)
        held = {name: running(module) for name, module in modules.items()}
        old = {name: (mean.clone(), var.clone()) for name, (mean, var) in held.items()}
        with Undo(on_failure=True) as undo, undo:
            keep(undo, self, model)
            for layer in self.layers:
                mean = layer.mean if self.stats == "both" else old[layer.name][0]
                store(layer.name, modules[layer.name], mean, layer.var)
            changes = tuple(_change(x, old[x.name], held[x.name]) for x in self.layers)
            return BatchNormReport(changes, self.kept, self.stats, self.method, self.batches)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file; needs ``pip install 'unitvar[safetensors]'``.

        Args:
            path: the file, which is overwritten.
        """
        from unitvar.batchnorm.file import save

        save(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> BatchNormStatistics:
        """Read what :meth:`save` wrote.

        Args:
            path: the file.

        Returns:
            The statistics, bit for bit.
        """
        from unitvar.batchnorm.file import load

        return load(path)

    def _norms(self, model: nn.Module) -> dict[str, AnyBatchNorm]:
        """Find every layer in a model, or say which one is missing or differs."""
        modules = dict(inner(model).named_modules())
        found = {}
        for layer in self.layers:
            module = modules.get(layer.name)
            if not isinstance(module, AnyBatchNorm) or module.running_mean is None or module.running_var is None:
                others = [name for name, m in modules.items() if isinstance(m, AnyBatchNorm)]
                raise ValueError(
                    f"The model has no BatchNorm with running statistics named {layer.name!r}; it has "
                    f"{', '.join(map(repr, others)) or 'none'}. Select layers that both have with select()."
                )
            if len(module.running_mean) != len(layer.mean):
                raise ValueError(
                    f"BatchNorm {layer.name!r} has {len(module.running_mean)} channels in the model and "
                    f"{len(layer.mean)} in the statistics: they are of different architectures."
                )
            found[layer.name] = module
        return found


def keep(undo: Undo, statistics: BatchNormStatistics, model: nn.Module) -> None:
    """Have an Undo put the running statistics of a model's layers back to what they are now."""
    for module in statistics._norms(model).values():
        mean, var = running(module)
        undo.add(partial(write, module, mean.clone(), var.clone()))


def _merged(one: BatchNormStatistics, two: BatchNormStatistics) -> BatchNormStatistics:
    if not isinstance(two, BatchNormStatistics):
        raise TypeError(f"merge() takes BatchNormStatistics as separate arguments, not a {type(two).__name__}.")
    for name in ("stats", "method"):
        ours, theirs = getattr(one, name), getattr(two, name)
        if ours != theirs:
            raise ValueError(
                f"{name}={ours!r} and {name}={theirs!r} cannot be merged: compute both with the same {name}."
            )
    first, second = ({layer.name: layer for layer in x.layers} for x in (one, two))
    layers = {
        name: first[name].merge(second[name]) if name in first and name in second else (first | second)[name]
        for name in first | second
    }
    kept = {name: reason for name, reason in {**two.kept, **one.kept}.items() if name not in layers}
    return replace(one, layers=tuple(layers.values()), kept=kept, batches=one.batches + two.batches)


def _with_prior(layer: LayerStatistics, module: AnyBatchNorm, weight: int, unit: str) -> LayerStatistics:
    mean, var = (t.detach().cpu().double() for t in running(module))
    per_example = layer.values / layer.examples
    count = weight if unit == "values" else round(weight * per_example)
    prior = Moments(count, mean, var * (count - 1), round(count / per_example))
    return replace(layer, moments=layer.moments.merge(prior))


def _change(layer: LayerStatistics, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> BatchNormChange:
    return BatchNormChange(
        layer.name,
        old[0].cpu(),
        old[1].cpu(),
        new[0].clone().cpu(),
        new[1].clone().cpu(),
        layer.values,
        layer.spread.batches,
        layer.standard_error,
    )
