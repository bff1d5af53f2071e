"""Elementwise formulas on large tensors, block by block.

A closed form is a dozen ops, each of which reads and writes all its elements. On a block that fits into a processor's
cache they take half the time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unitvar.expectation.gaussian import Moments

__all__ = ["in_blocks"]

_BLOCK = 1 << 16  # elements: 256 kB of float32 for each of the few tensors in use


def in_blocks(f: Callable[[Tensor, Tensor], Moments], mean: Tensor, var: Tensor, *, slope: bool) -> Moments:
    """Apply an elementwise formula to a mean and a variance.

    Tensors that autograd follows are treated as a whole, and so is everything in a graph that is compiled or exported.

    Args:
        f: the formula.
        mean: of its argument.
        var: of its argument.
        slope: whether E f' is needed; else any tensor stands in its place.
    """
    followed = torch.is_grad_enabled() and (mean.requires_grad or var.requires_grad)
    whole = followed or mean.numel() < 2 * _BLOCK or mean.shape != var.shape or mean.device.type != "cpu"
    if whole or not (mean.is_contiguous() and var.is_contiguous()) or torch.compiler.is_compiling():
        return f(mean, var)
    flat_mean, flat_var = mean.view(-1), var.view(-1)
    results: list[Tensor] = []
    for start in range(0, mean.numel(), _BLOCK):
        part = slice(start, start + _BLOCK)
        found = f(flat_mean[part], flat_var[part])[: 3 if slope else 2]
        if not results:
            results = [torch.empty(mean.shape, dtype=t.dtype, device=t.device) for t in found]
        for result, t in zip(results, found, strict=True):
            result.view(-1)[part] = t
    return Moments(results[0], results[1], results[-1])
