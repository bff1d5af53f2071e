"""The signal share, measured: the same batch under other masks, run after run."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from unitvar.flow.tally import Layer, widest
from unitvar.moments.shares import Shares

__all__ = ["MeasuredShares"]

_KEPT = 1 << 16  # elements of a pre-activation that are kept until the next run
_STEPS = 64  # of a recurrence that are compared


class MeasuredShares:
    """Compare each pre-activation with that of the run before, element by element and example by example.

    Args:
        examples: how many examples the batch has; a pre-activation counts them first.
    """

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self.calls: Counter[Layer] = Counter()
        self.last: dict[tuple[Layer, int], Tensor] = {}
        self.sums: dict[Layer, Tensor] = {}

    def begin(self) -> None:
        """Begin a run: the first pre-activation of a layer is compared with the first of the run before."""
        self.calls.clear()

    def __call__(self, layer: Layer, x: Tensor, z: Tensor) -> None:
        """Take a pre-activation in, as a sampler of the meter."""
        self.calls[layer] += 1
        b = self.examples
        if layer.time_first:  # whatever the batch begins with: steps, and then examples
            z = _examples_first(z)
            b = z.shape[0] if z.dim() > 1 else 1
        if b < 2 or z.dim() < 2 or z.shape[0] % b or not z.numel() or max(self.calls[layer], layer.use) > _STEPS:
            return
        rows = z.reshape(b, -1)
        most = max(1, _KEPT // b)
        if rows.shape[1] > most:  # drawn, always alike: evenly spaced ones would be of the same units
            drawn = torch.Generator().manual_seed(0)
            columns = torch.randint(rows.shape[1], (most,), generator=drawn, device="cpu")
            rows = rows[:, columns.to(z.device)]
        now = rows.to(widest(z), copy=True)  # copied: an activation may be computed in place
        key = layer, self.calls[layer]
        before = self.last.get(key)
        self.last[key] = now
        if before is None or before.shape != now.shape:
            return
        same = (before * now).sum(0)
        others = (before.sum(0) * now.sum(0) - same) / (b - 1)
        squares = (before.square().sum(0) + now.square().sum(0)) / 2
        found = torch.stack([x.mean() / b for x in (squares, others, same)])
        self.sums[layer] = self.sums[layer] + found if layer in self.sums else found

    def of(self, layer: Layer) -> Shares:
        """Return the shares of a layer; NaN if it was run less than twice, or nothing flows."""
        sums = self.sums.get(layer)
        if sums is None or not float(sums[0]) > 0:
            return Shares()
        _, common, kept = (sums / sums[0]).tolist()
        return Shares(kept - common, 1 - kept)


def _examples_first(z: Tensor) -> Tensor:
    """Swap steps and examples; packed queries, keys and values have a dimension before both."""
    z = z.squeeze(0) if z.dim() > 3 else z
    return z.transpose(0, 1) if z.dim() > 2 else z
