"""Writing numbers into a weight, whatever its dtype and the order of its memory."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["filled"]

_BLOCK = 1 << 16  # numbers at a time, where a weight cannot be filled in place


def filled(weight: Tensor, fill: Callable[[Tensor], object], *, by_rows: bool = False) -> Tensor:
    """Run fill on the weight, or on a stand-in where its own dtype is too coarse or its memory is in another order.

    By rows, the stand-in is a block of some rows. The numbers are those of a plain float32 weight in either case.
    """
    if not weight.is_floating_point():
        raise TypeError(f"A weight of dtype {weight.dtype} cannot be initialised; it must be floating-point.")
    if weight.is_meta:
        return weight
    if not weight.numel():
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return weight
    dtype = weight.dtype if weight.dtype == torch.float64 else torch.float32
    with torch.no_grad():
        if weight.dtype == dtype and weight.is_contiguous():
            fill(weight)
            return weight
        blocks = _blocks(weight) if by_rows else [weight]
        stand_in = torch.empty((max(map(len, blocks)), *weight.shape[1:]), dtype=dtype, device=weight.device)
        for rows in blocks:
            fill(stand_in[: len(rows)])
            rows.copy_(stand_in[: len(rows)])
    return weight


def _blocks(weight: Tensor) -> list[Tensor]:
    """Cut a weight into blocks of rows that draw the same numbers one by one as all at once."""
    # torch draws normal numbers by sixteens, and fewer than sixteen in another way.
    step = max(1, _BLOCK // (16 * weight[0].numel())) * 16
    starts = list(range(0, max(1, len(weight) - 15), step))
    return [weight[i:j] for i, j in itertools.pairwise([*starts, len(weight)])]
