"""The running statistics that a BatchNorm holds."""

from __future__ import annotations

import torch
from torch import Tensor

from unitvar._torch import AnyBatchNorm
from unitvar.running.restore import overwrite


def running(module: AnyBatchNorm) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance of a BatchNorm that tracks them."""
    mean, var = module.running_mean, module.running_var
    assert mean is not None
    assert var is not None
    return mean, var


def write(module: AnyBatchNorm, mean: Tensor, var: Tensor) -> None:
    """Set the running statistics in place."""
    for buffer, value in zip(running(module), (mean, var), strict=True):
        overwrite(buffer, value)


def store(name: str, module: AnyBatchNorm, mean: Tensor, var: Tensor) -> None:
    """Set the running statistics in place, and refuse values that their dtype cannot hold.

    Args:
        name: of the layer, for the error.
        module: the BatchNorm.
        mean: one value per channel.
        var: one value per channel, unbiased, as torch stores it.
    """
    write(module, mean, var)
    for buffer, value in zip(running(module), (mean, var), strict=True):
        if not bool(torch.isfinite(buffer).all()):
            raise ValueError(
                f"BatchNorm {name!r} stores its statistics as {buffer.dtype}, which cannot hold "
                f"{float(value.abs().max()):.3g}: convert it with module.float(). The model was not changed."
            )
