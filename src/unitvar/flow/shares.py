"""The signal share, measured: the same batch under other masks, run after run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from unitvar.flow.tally import Layer, widest
from unitvar.moments.shares import Shares

__all__ = ["Examples", "MeasuredShares"]

_KEPT = 1 << 16  # elements of a pre-activation that are kept until the next run
_STEPS = 64  # of a recurrence that are compared


class Examples(NamedTuple):
    """Where a pre-activation has its examples.

    Attributes:
        dimension: that counts them.
        number: how many it begins with, the rest being something else; 0: it does not begin with them.
    """

    dimension: int
    number: int


class MeasuredShares:
    """Compare each pre-activation with that of the run before, element by element and example by example.

    Which of its dimensions counts examples is known only when the model has been traced: until then, all that may.

    Args:
        examples: how many examples the batch has, if it counts them first.
    """

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self.calls: Counter[Layer] = Counter()
        self.last: dict[tuple[Layer, Examples, int], Tensor] = {}
        self.sums: dict[Layer, dict[Examples, Tensor]] = {}

    def begin(self) -> None:
        """Begin a run: the first pre-activation of a layer is compared with the first of the run before."""
        self.calls.clear()

    def __call__(self, layer: Layer, x: Tensor, z: Tensor) -> None:
        """Take a pre-activation in, as a sampler of the meter."""
        self.calls[layer] += 1
        if max(self.calls[layer], layer.use) > _STEPS or z.dim() < 2 or not z.numel():
            return
        for examples, rows in self._possible(layer, z):
            if examples.number > 1:
                self._compare(layer, examples, rows.reshape(examples.number, -1))

    def _possible(self, layer: Layer, z: Tensor) -> Iterator[tuple[Examples, Tensor]]:
        """Give each arrangement that may be, with the examples first."""
        first, n = z.shape[0], self.examples
        merged = z.dim() == 2 and n > 0 and first % n == 0  # what the batch begins with, and what comes second
        apart = z.reshape(n, -1, z.shape[1]) if merged else z.squeeze(0) if layer.inside and z.dim() > 3 else z
        if layer.inside == "attention" or (layer.inside and z.dim() > 2):
            if apart.dim() > 2:
                yield Examples(1, apart.shape[1]), apart.transpose(0, 1)
            return
        yield Examples(0, first), z
        if not layer.inside:
            if n != first and n > 0 and first % n == 0:
                yield Examples(0, n), z
            if apart.dim() > 2 and layer.unit != 1:
                yield Examples(1, apart.shape[1]), apart.transpose(0, 1)

    def _compare(self, layer: Layer, examples: Examples, rows: Tensor) -> None:
        b = examples.number
        most = max(1, _KEPT // b)
        if rows.shape[1] > most:  # drawn, always alike: evenly spaced ones would be of the same units
            drawn = torch.Generator().manual_seed(0)
            columns = torch.randint(rows.shape[1], (most,), generator=drawn, device="cpu")
            rows = rows[:, columns.to(rows.device)]
        now = rows.to(widest(rows), copy=True)  # copied: an activation may be computed in place
        key = layer, examples, self.calls[layer]
        before = self.last.get(key)
        self.last[key] = now
        if before is None or before.shape != now.shape:
            return
        same = (before * now).sum(0)
        others = (before.sum(0) * now.sum(0) - same) / (b - 1)
        squares = (before.square().sum(0) + now.square().sum(0)) / 2
        found = torch.stack([x.mean() / b for x in (squares, others, same)])
        sums = self.sums.setdefault(layer, {})
        sums[examples] = sums[examples] + found if examples in sums else found

    def of(self, layer: Layer, examples: Examples | None = None) -> Shares:
        """Return the shares of a layer; NaN if it was run less than twice, or nothing flows.

        Args:
            layer: what was measured.
            examples: where the trace says that it has its examples; None: where the batch has them.
        """
        found = self.sums.get(layer, {})
        place = examples or Examples(0, self.examples)
        sums = next(iter(found.values()), None) if layer.inside else found.get(place)
        if sums is None or not float(sums[0]) > 0:
            return Shares()
        _, common, kept = (sums / sums[0]).tolist()
        return Shares(kept - common, 1 - kept)
