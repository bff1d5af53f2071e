"""Ops that no rule knows: run on random numbers with the right moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from unitvar.graph import Node, Value
from unitvar.propagate.given import arguments, measured
from unitvar.rules import Moments

__all__ = ["MOST", "sampled", "sampled_backward"]

MOST = 1 << 22  # elements; larger tensors are not worth it


def sampled(node: Node, as_moments: Callable[[Any, Mapping[int, Moments]], Any]) -> tuple[Moments, ...]:
    """Estimate the moments of an op's outputs; where it cannot be run, pass its input's on."""
    first = next((as_moments(v, {}) for v in node.inputs), Moments(0.0, 1.0))
    unknown = tuple(first.like(cross=None) for _ in node.outputs)
    if any(math.prod(v.shape) > MOST for v in node.inputs):
        return unknown
    try:
        with torch.no_grad():
            out = _run(node, as_moments, {})
    except Exception:  # whatever a foreign op raises on inputs that it did not expect
        return unknown
    outs = [out] if isinstance(out, Tensor) else list(out)
    found = []
    for o, value in zip(outs, node.outputs, strict=False):
        numbers = o[o.isfinite()] if isinstance(o, Tensor) else torch.zeros(0, device="cpu")
        shape = value.shape if value is not None else ()
        found.append(measured(numbers, shape) if numbers.numel() else Moments(0.0, 0.0, shape))
    return tuple(found) or unknown


def sampled_backward(
    node: Node, as_moments: Callable[[Any, Mapping[int, Moments]], Any], replaced: Mapping[int, Moments]
) -> float:
    """Estimate E[g_in²] / E[g_out²] of an op's first signal by autograd; 1 where that cannot be done."""
    if any(math.prod(v.shape) > MOST for v in node.inputs):
        return 1.0
    leaves: list[Tensor] = []
    try:
        with torch.enable_grad():
            out = _run(node, as_moments, replaced, leaves)
            out = out if isinstance(out, Tensor) else out[0]
            generator = torch.Generator().manual_seed(1)
            seed = torch.randn(out.shape, generator=generator, device="cpu", dtype=out.dtype)
            (grad,) = torch.autograd.grad(out, leaves[0], seed)
    except Exception:
        return 1.0
    return measured(grad, ()).second / measured(seed, ()).second


def _run(
    node: Node,
    as_moments: Callable[[Any, Mapping[int, Moments]], Any],
    replaced: Mapping[int, Moments],
    leaves: list[Tensor] | None = None,
) -> Any:
    generator = torch.Generator().manual_seed(0)

    def real(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return [real(a) for a in arg]
        if not isinstance(arg, Value):
            return arg
        if arg.tensor is not None and not arg.tensor.is_meta and arg.kind == "constant":
            return arg.tensor.cpu().clone()
        if not (arg.dtype.is_floating_point or arg.dtype.is_complex):
            return torch.zeros(arg.shape, dtype=arg.dtype, device="cpu")
        moments = as_moments(arg, replaced)
        numbers = torch.randn(arg.shape, generator=generator, device="cpu", dtype=arg.dtype)
        numbers = numbers * moments.std + moments.mean
        if leaves is not None and arg.kind in ("input", "activation"):
            leaves.append(numbers.requires_grad_())
            return numbers.clone()
        return numbers

    positional, keywords = arguments(node, [real(a) for a in node.args])
    return node.op.func(*positional, **keywords)
