"""Running batches through a model, once over the data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from unitvar.batchnorm.feed import Forward, apply, read
from unitvar.batchnorm.moments import Moments
from unitvar.batchnorm.observe import Observer
from unitvar.running.attributes import attributes_kept
from unitvar.running.randomness import RandomState, owned_generators, same
from unitvar.running.restore import buffers_kept

FEWEST = 5  # batches from which a standard error is believed


@dataclass
class Sweep:
    """Run the same batches through a model as often as asked."""

    model: nn.Module
    batches: Iterable[Any]
    observer: Observer
    forward: Forward | None
    bar: Any
    looked_for_noise: bool = False
    last: int = 0  # batches in the latest sweep
    generators: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generators = owned_generators(self.model)

    def run(self, limit: int | None, tolerance: float | None = None) -> int:
        """Pass over the batches, up to a limit or until the variances are known well enough.

        Args:
            limit: how many batches at most; None for all.
            tolerance: the relative standard error, in the worst channel, at which to stop; None to go on.

        Returns:
            The number of batches seen.
        """
        self.last = 0
        for batch in read(self.batches, limit):
            self._one(batch, self.last)
            self.last += 1
            error = self.worst_error() if tolerance is not None or self.bar is not None else math.inf
            if self.bar is not None:
                if math.isfinite(error):
                    self.bar.set_postfix_str(f"s.e. {100 * error:.2g} %", refresh=False)
                self.bar.update()
            if tolerance is not None and error < tolerance:
                break
        return self.last

    def worst_error(self) -> float:
        """Return the largest relative standard error of a variance, over channels and layers that were reached."""
        worst = 0.0
        for layer in self.observer.layers:
            if layer.pooled is not None and not layer.final:
                if layer.spread.batches < FEWEST:
                    return math.inf
                worst = max(worst, float(layer.spread.relative_error(layer.pooled).max()))
        return worst

    def _one(self, batch: Any, index: int) -> None:
        self.observer.batch = index
        # Reading the state costs microseconds, a second forward pass as much as the first.
        before = RandomState.read(self.generators)
        with self.observer.one_batch():
            apply(self.model, batch, index, self.forward)
        if not self.looked_for_noise and not RandomState.read(self.generators).same_as(before):
            self._look_for_noise(batch, index)
        self.observer.keep_batch()

    def _look_for_noise(self, batch: Any, index: int) -> None:
        """Run a batch that drew random numbers twice more, from the same state, and warn if the results differ."""
        self.looked_for_noise = True
        layers = self.observer.layers
        counted = [(layer, layer.counted()) for layer in layers]
        outputs, seen = [], []
        for _ in range(2):
            with buffers_kept(self.model), attributes_kept(self.model), self.observer.one_batch():
                outputs.append(apply(self.model, batch, index, self.forward))
            seen.append({layer: layer.counted()[0] for layer in layers})
        for layer, before in counted:
            layer.recount(before)
        reached = [layer for layer in self.observer.reached.values() if not _same(seen[0][layer], seen[1][layer])]
        # There are no outputs where the passes end at the layer they are for.
        if reached or not same(outputs[:1], outputs[1:]):
            where = f"first at the input of BatchNorm {reached[0].name!r}" if reached else "after the last BatchNorm"
            warnings.warn(
                f"Two forward passes of batch {index} in eval mode differ, {where}: some code draws random numbers "
                "even in eval mode, such as a bare F.dropout(x, 0.5), and its noise enters the statistics. "
                "Write F.dropout(x, 0.5, self.training), or use nn.Dropout.",
                stacklevel=2,
            )


def _same(a: Moments | None, b: Moments | None) -> bool:
    return a is b if a is None or b is None else same((a.mean, a.m2), (b.mean, b.m2))


def progress_bar(batches: Iterable[Any], limit: int | None, show: bool) -> Any:
    """Open a tqdm bar with as many steps as can be known; all ranks need tqdm, one shows it."""
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install 'unitvar[progress]'.") from error
    try:
        total: int | None = len(batches)  # type: ignore[arg-type]
    except TypeError:
        total = None
    known = [n for n in (total, limit) if n is not None]
    return tqdm(total=min(known) if known else None, unit="batch", desc="BatchNorm", disable=not show)
