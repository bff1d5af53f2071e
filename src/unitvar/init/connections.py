"""How many connections a weight makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Fans", "counted", "fans"]


@dataclass(frozen=True)
class Fans:
    """How many connections a weight makes: into each output and out of each input, averaged over positions."""

    fan_in: float
    fan_out: float
    stride: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """fan_out / fan_in, by which a gradient's variance grows besides the row norm; 1 where there are none."""
        return self.fan_out / self.fan_in if self.fan_in and self.fan_out else 1.0


def fans(weight: Tensor, *, transposed: bool = False, groups: int = 1, stride: int | Sequence[int] = 1) -> Fans:
    """Count the connections that exist, unlike torch, which counts those of a dense layer of stride one.

    A 3x3 depthwise convolution has fan_in = fan_out = 9. With stride 2, an input reaches a quarter of the outputs; in a
    transposed convolution of stride 2, an output sees a quarter of the kernel.

    Args:
        weight: ``[out, in / groups, *kernel]``, or ``[in, out / groups, *kernel]`` if transposed.
        transposed: whether it belongs to a transposed convolution.
        groups: as the layer has them.
        stride: as the layer has it, one number or one for each dimension of the kernel.

    Example:
        >>> import torch
        >>> fans(torch.empty(16, 8, 2, 2), transposed=True, stride=2)
        Fans(fan_in=16.0, fan_out=32.0, stride=(2, 2))
    """
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight is a {type(weight).__name__}, not a tensor; pass a weight, such as layer.weight.")
    if weight.dim() < 2:
        raise ValueError(f"A weight of shape {tuple(weight.shape)} has no fan-in; it needs 2 dimensions or more.")
    return counted(tuple(weight.shape), transposed=transposed, groups=groups, stride=stride)


def counted(shape: tuple[int, ...], *, transposed: bool, groups: int, stride: int | Sequence[int]) -> Fans:
    """Count the connections of a weight of this shape; see :func:`fans`."""
    kernel = shape[2:]
    steps = tuple(stride) if isinstance(stride, Sequence) else (stride,) * len(kernel)
    if len(steps) != len(kernel) or not all(isinstance(s, int) and s >= 1 for s in steps):
        raise ValueError(
            f"stride={stride!r} does not fit a kernel of shape {kernel}; pass integers ≥ 1, one per dimension."
        )
    if groups < 1 or shape[0] % groups:
        raise ValueError(f"groups={groups} does not divide the first dimension of a weight of shape {shape}.")
    here, there = shape[0] // groups * math.prod(kernel), shape[1] * math.prod(kernel)
    spread = math.prod(steps)
    if transposed:
        return Fans(here / spread, float(there), steps)
    return Fans(float(there), here / spread, steps)
