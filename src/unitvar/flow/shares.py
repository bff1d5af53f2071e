"""The signal share, measured: the same batch under other masks, run after run."""

from __future__ import annotations

import torch
from torch import Tensor

from unitvar.flow.tally import Layer, widest
from unitvar.moments.shares import Shares

__all__ = ["MeasuredShares"]

_KEPT = 1 << 16  # elements of a pre-activation that are kept until the next run


class MeasuredShares:
    """Compare each pre-activation with that of the run before, element by element and example by example.

    Args:
        examples: how many examples the batch has; a pre-activation counts them first.
    """

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self.last: dict[Layer, Tensor] = {}
        self.sums: dict[Layer, Tensor] = {}

    def __call__(self, layer: Layer, x: Tensor, z: Tensor) -> None:
        """Take a pre-activation in, as a sampler of the meter."""
        b = self.examples
        if b < 2 or z.dim() < 2 or z.shape[0] % b or not z.numel():
            return
        rows = z.reshape(b, -1)
        step = max(1, rows.shape[1] * b // _KEPT)
        now = rows[:, ::step].to(widest(z), copy=True)  # copied: an activation may be computed in place
        before = self.last.get(layer)
        self.last[layer] = now
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
