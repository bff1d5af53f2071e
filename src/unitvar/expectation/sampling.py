"""Ops without a rule: sampled, one at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unitvar.expectation.uncertain import Uncertain, wide

__all__ = ["DEFAULT", "at_mean", "sampled"]

DEFAULT = 64


def _with(arg: Any, generator: torch.Generator | None) -> Any:
    """Replace uncertain tensors by Gaussian draws, or by their means if there is no generator."""
    if isinstance(arg, Uncertain):
        if generator is None:
            return arg.mean
        noise = torch.randn(arg.mean.shape, generator=generator, dtype=arg.var.dtype, device=arg.mean.device)
        return (arg.mean + noise * arg.var.sqrt()).to(arg.mean.dtype)
    if isinstance(arg, (list, tuple)):
        return [_with(a, generator) for a in arg]
    return arg


def at_mean(op: Any, *args: Any, **named: Any) -> Any:
    """Apply an op to the means."""
    return op(*_with(args, None), **{k: _with(v, None) for k, v in named.items()})


def sampled(op: Any, samples: int, *args: Any, **named: Any) -> Any:
    """Estimate mean and variance of an op's results from Gaussian draws of its arguments.

    The draws are the same at every call, and the global random state stays as it was.
    """
    samples = samples or DEFAULT
    device = _device(args)
    generator = torch.Generator(device).manual_seed(0)
    runs = []
    with torch.random.fork_rng([device] if device.type != "cpu" else []):
        torch.manual_seed(0)
        for _ in range(samples):
            runs.append(op(*_with(args, generator), **{k: _with(v, generator) for k, v in named.items()}))
    if isinstance(runs[0], Tensor):
        return _summarised(runs)
    return tuple(_summarised([run[i] for run in runs]) for i in range(len(runs[0])))


def _device(args: Any) -> torch.device:
    for arg in args:
        if isinstance(arg, Uncertain):
            return arg.mean.device
        if isinstance(arg, Tensor):
            return arg.device
        if isinstance(arg, (list, tuple)) and arg:
            return _device(arg)
    return torch.device("cpu")


def _summarised(runs: list[Tensor]) -> Any:
    if not runs[0].is_floating_point():
        return runs[0]
    first = wide(runs[0])
    shifted = [wide(run) - first for run in runs]
    mean = sum(shifted[1:], shifted[0]) / len(runs)
    var = sum((s - mean).square() for s in shifted) / max(1, len(runs) - 1)
    return Uncertain((first + mean).to(runs[0].dtype), torch.as_tensor(var, device=first.device))
