"""Ops that no rule knows: run on random numbers with the right moments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unitvar.graph import Node, Value
from unitvar.moments.known import arguments, measured
from unitvar.moments.propagation import Propagation
from unitvar.moments.signal import Signal

__all__ = ["drawn_gradients", "pointwise_slopes", "sampled"]

_MOST = 1 << 22  # elements; larger tensors are not worth it
_ENOUGH = 1 << 14  # elements to draw
_RUNS = 64


def sampled(node: Node, found: Propagation) -> tuple[Signal, ...]:
    """Estimate the moments of an op's outputs; where it cannot be run, pass its input's on."""
    first = next((found.signal(v) for v in node.inputs), Signal(0.0, 1.0))
    unknown = tuple(first.like(shape=o.shape if o is not None else ()) for o in node.outputs)
    if any(math.prod(v.shape) > _MOST for v in node.inputs):
        return unknown
    drawn: list[list[Tensor]] = []
    try:
        with torch.no_grad():
            for seed in range(_runs(node)):
                out = _run(node, found, seed)
                drawn.append([out] if isinstance(out, Tensor) else list(out))
    except Exception:  # whatever a foreign op raises on inputs that it did not expect
        return unknown
    made = []
    for outs, value in zip(zip(*drawn, strict=True), node.outputs, strict=False):
        tensors = [o[o.isfinite()].flatten() for o in outs if isinstance(o, Tensor)]
        numbers = torch.cat(tensors) if tensors else torch.zeros(0, device="cpu")
        shape = value.shape if value is not None else ()
        made.append(measured(numbers, shape) if numbers.numel() else Signal(0.0, 0.0, shape))
    return tuple(made) or unknown


def _runs(node: Node) -> int:
    """Return how often to run an op, so that a plan does not depend on the size of the example."""
    size = max([math.prod(v.shape) for v in node.inputs if v.dtype.is_floating_point or v.dtype.is_complex], default=1)
    return 1 if node.op.pointwise else max(1, min(_RUNS, _ENOUGH // max(1, size)))


def drawn_gradients(
    node: Node, found: Propagation, gradients: dict[int, Signal], wanted: Callable[[Value], bool]
) -> list[tuple[Value, float]]:
    """Run an op on random numbers and autograd through it; return E g² of each signal that goes in."""
    if any(math.prod(v.shape) > _MOST for v in node.inputs):
        raise ValueError("too large to be run")
    totals: dict[int, tuple[Value, float]] = {}
    runs = _runs(node)
    for seed in range(runs):
        for value, second in _drawn(node, found, gradients, wanted, seed):
            before = totals[id(value)][1] if id(value) in totals else 0.0
            totals[id(value)] = value, before + second / runs
    return list(totals.values())


def _drawn(
    node: Node, found: Propagation, gradients: dict[int, Signal], wanted: Callable[[Value], bool], seed: int
) -> list[tuple[Value, float]]:
    leaves: list[tuple[Value, Tensor]] = []
    with torch.enable_grad():
        out = _run(node, found, seed, leaves, wanted)
        outs = [out] if isinstance(out, Tensor) else list(out)
        chosen = [(o, v) for o, v in zip(outs, node.outputs, strict=False) if v is not None and id(v) in gradients]
        generator = torch.Generator().manual_seed(seed + 1)
        seeds = [
            torch.randn(o.shape, generator=generator, device="cpu", dtype=o.dtype) * math.sqrt(gradients[id(v)].second)
            for o, v in chosen
        ]
        slopes = torch.autograd.grad([o for o, _ in chosen], [t for _, t in leaves], seeds, allow_unused=True)
    # Broadcasting adds up the gradients of copies.
    ratio = {id(v): max(1.0, math.prod(chosen[0][1].shape) / max(1, math.prod(v.shape))) for v, _ in leaves}
    flat = node.op.pointwise
    return [
        (v, float(slope.abs().double().square().mean()) * (ratio[id(v)] if flat else 1.0) if slope is not None else 0.0)
        for (v, _), slope in zip(leaves, slopes, strict=True)
    ]


def pointwise_slopes(node: Node, found: Propagation, wanted: Callable[[Value], bool]) -> list[tuple[Value, float]]:
    """Return E (dv/dz)² of a pointwise op for the Gaussian z of each operand, which go back to different ones.

    All operands are drawn together, from their laws, and what each is a function of is followed to its Gaussian.
    """
    generator = np.random.default_rng(0)
    leaves: dict[int, tuple[Value, Tensor, Any]] = {}

    def real(arg: Any) -> Any:
        if not isinstance(arg, Value):
            return arg
        if id(arg) not in leaves:
            values, slopes = _from_law(found.signal(arg), generator)
            leaves[id(arg)] = arg, torch.from_numpy(values).requires_grad_(wanted(arg)), slopes
        return leaves[id(arg)][1]

    positional, keywords = arguments(node, [real(a) for a in node.args])
    signals = [leaf for leaf in leaves.values() if leaf[1].requires_grad]
    with torch.enable_grad():
        out = node.op.functional(*positional, **keywords)
        found_slopes = torch.autograd.grad(out.double().sum(), [t for _, t, _ in signals], allow_unused=True)
    made = []
    for (value, _, inner), slope in zip(signals, found_slopes, strict=True):
        if slope is not None:
            source = found.signal(value).source
            home = value if source is None or source.home is None else source.home
            made.append((home, float(np.mean((slope.numpy() * inner) ** 2))))
    return made


def _from_law(signal: Signal, generator: np.random.Generator) -> tuple[Any, Any]:
    """Draw from the law of a value, with its slope towards the Gaussian that it is a function of."""
    field = signal.field
    full = field.full.detach().numpy().reshape(-1, field.full.shape[-1])
    inner = field.derivative().detach().numpy().reshape(full.shape)
    weights = np.ones(1)
    for axis in field.noises:
        weights = np.multiply.outer(weights, axis.weights.numpy()).ravel()
    rows = generator.choice(len(full), _ENOUGH, p=weights / weights.sum())
    if field.large is None:
        return full[rows, 0].copy(), np.ones(_ENOUGH)
    nodes = field.large.nodes.detach().numpy()
    z = field.large.mean + field.large.std * generator.standard_normal(_ENOUGH)
    values, slopes = np.empty(_ENOUGH), np.empty(_ENOUGH)
    for row in range(len(full)):
        chosen = rows == row
        values[chosen] = np.interp(z[chosen], nodes, full[row])
        slopes[chosen] = np.interp(z[chosen], nodes, inner[row])
    return values, slopes if signal.source is not None else np.ones(_ENOUGH)


def _run(
    node: Node,
    found: Propagation,
    seed: int,
    leaves: list[tuple[Value, Tensor]] | None = None,
    wanted: Callable[[Value], bool] = lambda value: False,
) -> Any:
    generator = torch.Generator().manual_seed(seed)

    def shape_of(value: Value) -> tuple[int, ...]:
        return (_ENOUGH,) if node.op.pointwise else value.shape  # elements on their own tell all

    def real(arg: Any) -> Any:
        if isinstance(arg, (tuple, list)):
            return [real(a) for a in arg]
        if not isinstance(arg, Value):
            return arg
        known = None if arg.kind in ("input", "activation") else found.numbers(arg)  # masks and weights as they are
        if known is not None and not node.op.pointwise:
            return known.detach().clone()
        if not (arg.dtype.is_floating_point or arg.dtype.is_complex):
            return torch.zeros(shape_of(arg), dtype=arg.dtype, device="cpu")
        signal = found.signal(arg)
        numbers = torch.randn(shape_of(arg), generator=generator, device="cpu", dtype=arg.dtype)
        numbers = numbers * signal.std + signal.mean
        if leaves is not None and wanted(arg):
            leaves.append((arg, numbers.requires_grad_()))
            return numbers.clone()
        return numbers

    positional, keywords = arguments(node, [real(a) for a in node.args])
    return node.op.func(*positional, **keywords)
