"""What was measured, as records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unitvar.batchnorm.moments import Moments
from unitvar.flow.predict import Prediction
from unitvar.flow.tally import Layer, labelled
from unitvar.flow.verdict import level, verdict
from unitvar.flow.writing import scalars, writing
from unitvar.moments.shares import Shares
from unitvar.shown import Entry, Tabular, counted, frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LayerFlow", "NormGap", "VarianceReport"]

Row = dict[str, str | int | float | None]


class _Record(Entry):
    """One use of a weight or of a norm."""

    __slots__: tuple[str, ...] = ()
    name: str
    use: int

    @property
    def label(self) -> str:
        """Return the name, with the number of the use if it is not the first."""
        return labelled(self.name, self.use)

    @property
    def row(self) -> Row:
        """Return a flat, JSON-ready dict."""
        return {name: _json(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True, repr=False)
class LayerFlow(_Record):
    """The output of one use of a weight, and the gradient that comes back to it.

    Attributes:
        name: of the parameter, ``"features.0.weight"``.
        use: which use in a run, from 1: a layer that is used twice has two records.
        op: what uses it, as autograd sees it.
        size: the elements of the pre-activation in one run.
        mean: E z of the pre-activation.
        variance: E z², the mean square over all elements.
        gradient: E g² of the gradient with respect to it; None if there is none (frozen, or run without gradients).
        dead: the share of units (channels, features) that got no gradient from any example, position or run; an
            activation that is off for all of them, like a dead ReLU, gives none. None without gradients.
        predicted_mean: E z as predicted; None where it was not.
        predicted_variance: E z² as predicted.
        predicted_gradient: E g² as predicted.
        signal: the share of E z² that differs from example to example and not from mask to mask; None after one run.
        noise: the share of E z² that differs from mask to mask. The rest is common to all examples.
        predicted_signal: the same, as predicted.
        predicted_noise: the same, as predicted.
    """

    name: str
    use: int
    op: str
    size: int
    mean: float | None
    variance: float | None
    gradient: float | None
    dead: float | None
    predicted_mean: float | None
    predicted_variance: float | None
    predicted_gradient: float | None
    signal: float | None = None
    noise: float | None = None
    predicted_signal: float | None = None
    predicted_noise: float | None = None

    @staticmethod
    def of(layer: Layer, predicted: Prediction | None, runs: int, shares: Shares) -> LayerFlow:
        """Make a record of what was gathered."""
        forward, backward = layer.forward, layer.backward
        moments = (None, None, None) if predicted is None else (predicted.mean, predicted.second, predicted.gradient)
        if backward.second is None:
            moments = *moments[:2], None
        size = forward.count // runs
        means = forward.mean, forward.second, backward.second
        expected = Shares() if predicted is None else predicted.shares
        split = (None if math.isnan(x) else x for x in (*shares, *expected))
        return LayerFlow(layer.name, layer.use, layer.op, size, *means, layer.dead, *moments, *split)


@dataclass(frozen=True, slots=True, repr=False)
class NormGap(_Record):
    """What dropout does to what reaches a batch norm.

    Attributes:
        name: of the module.
        use: which use in a run, from 1.
        on: the variance of its input with dropout on, each channel its own, then averaged.
        off: the same with dropout off (batch norms still normalise with their batch's statistics).
        running: the running variance that it holds, averaged over channels; None if it holds none.
        gap: on / off, the geometric mean over channels: by how much a variance gathered in training is too large at
            test time, or too small. :func:`unitvar.reestimate_bn_` closes it.
        predicted_gap: the same, as predicted for the weights as they are.
    """

    name: str
    use: int
    on: float
    off: float
    running: float | None
    gap: float | None
    predicted_gap: float | None = None

    @staticmethod
    def of(name: str, use: int, on: Moments, off: Moments, model: nn.Module, predicted: float | None) -> NormGap:
        """Compare two measurements."""
        a, b = on.biased, off.biased
        both = (a > 0) & (b > 0)
        gap = float((a[both] / b[both]).log().mean().exp()) if bool(both.any()) else None
        held = getattr(model.get_submodule(name), "running_var", None)
        running = float(held.double().mean()) if isinstance(held, torch.Tensor) else None
        return NormGap(name, use, float(a.mean()), float(b.mean()), running, gap, predicted)


@dataclass(frozen=True, eq=False, repr=False)
class VarianceReport(Tabular):
    """Signals and gradients of a model, layer by layer in execution order, measured and predicted.

    Attributes:
        layers: one record per use of a weight.
        norms: one record per use of a batch norm.
        runs: how often the model was run.
        unpredicted: why there is no prediction; empty if there is.
    """

    layers: tuple[LayerFlow, ...]
    norms: tuple[NormGap, ...]
    runs: int
    unpredicted: str = ""

    def __iter__(self) -> Iterator[LayerFlow]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, name: str) -> LayerFlow:
        for layer in self.layers:
            if layer.label == name:
                return layer
        known = ", ".join(repr(layer.label) for layer in self.layers)
        raise KeyError(f"{name!r} is not one of {known}.")

    @property
    def rows(self) -> list[Row]:
        """Return one flat, JSON-ready dict per layer."""
        return [layer.row for layer in self.layers]

    @property
    def norm_rows(self) -> list[Row]:
        """Return one flat, JSON-ready dict per batch norm."""
        return [norm.row for norm in self.norms]

    def write(self, writer: Any, step: int = 0) -> None:
        """Log mean, variance, gradient and dead share of every layer, as :func:`unitvar.watch` does while training.

        Args:
            writer: a TensorBoard ``SummaryWriter``, or a function of (values, step), such as
                :mod:`unitvar.integrations.loggers` has for other loggers.
            step: under which to log.
        """
        writing(writer)(scalars(self.rows), step)

    @property
    def verdict(self) -> str:
        """Say in one line whether signal and gradient explode, vanish or hold, and whether the output is too large.

        See :mod:`unitvar.flow.verdict` for what the words mean.
        """
        labels = [layer.label for layer in self.layers]
        signal = verdict("signal variance", labels, [layer.variance for layer in self.layers])
        # Of gradients what counts is the norm: each pool spreads the same norm over more elements before it.
        norms = [None if layer.gradient is None else layer.gradient * layer.size for layer in self.layers]
        gradient = verdict("squared gradient norm", labels[::-1], norms[::-1])
        last = self.layers[-1] if self.layers else None
        large = "" if last is None else level(last.label, last.variance, last.predicted_variance)
        parts = [part for part in (signal, gradient, large) if part]
        return "; ".join(parts) or f"{counted(len(self), 'weight')}: no depth to judge"

    @property
    def healthy(self) -> bool:
        """Return whether nothing explodes, vanishes or is too large."""
        return not any(self.verdict.count(f": {word}") for word in ("exploding", "vanishing", "too large"))

    def __str__(self) -> str:
        from unitvar.flow.table import text  # which speaks of reports itself

        return text(self)

    def __repr__(self) -> str:
        return f"<VarianceReport: {counted(len(self), 'weight')}; {self.verdict}>"

    def _repr_html_(self) -> str:
        from unitvar.flow.table import html

        return html(self)

    def norms_to_pandas(self) -> Any:
        """Return ``.norm_rows`` as a data frame; needs pandas."""
        return frame(self.norm_rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw variance against depth, forward and backward: measured as points, predicted as lines.

        Args:
            ax: where to draw; default: new axes.

        Returns:
            The axes.
        """
        from unitvar import plot

        return plot.flow(self.rows, ax=ax, title=self.verdict)

    def plot_shares(self, ax: Axes | None = None) -> Axes:
        """Draw what E z² of every layer is made of: common to all examples, telling them apart, noise of masks.

        Args:
            ax: where to draw; default: new axes.

        Returns:
            The axes.
        """
        from unitvar import plot

        return plot.shares(self.rows, ax=ax)


def _json(x: Any) -> Any:
    return None if isinstance(x, float) and not math.isfinite(x) else x
