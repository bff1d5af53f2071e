"""The signals that a network gets: standard, measured, or as they are said to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from unitvar.graph import Graph, Value
from unitvar.moments.correlation import Correlation
from unitvar.moments.signal import Signal

__all__ = ["INPUTS", "input_signals", "other_axes"]

INPUTS = ("standard", "measured")
_OTHERS = ({"bpf": "pbf"}, {"bfpp": "bppf", "bfppp": "bpppf"})
_WHITE = Correlation(masks=1.0)  # the same under any mask, and otherwise unrelated


def input_signals(graph: Graph, inputs: Any) -> list[Signal]:
    """Describe each input of a graph.

    Args:
        graph: a run.
        inputs: ``"standard"``, ``"measured"``, ``(mean, std)``, or a list of pairs, one for each floating-point tensor.
    """
    floats = [v for v in graph.inputs if v.dtype.is_floating_point]
    if isinstance(inputs, str):
        pairs: list[Any] = [None] * len(floats)
    elif isinstance(inputs, list):
        pairs = inputs
        if len(pairs) != len(floats):
            raise ValueError(
                f"inputs has {len(pairs)} pairs, but the example has {len(floats)} floating-point tensors; "
                "give one (mean, std) for each."
            )
    else:
        pairs = [inputs] * len(floats)
    given = dict(zip(map(id, floats), pairs, strict=True))
    return [_described(value, given.get(id(value)), inputs == "measured") for value in graph.inputs]


def other_axes(signals: Sequence[Signal]) -> list[list[Signal]]:
    """List other ways to name the dimensions of inputs: with time first, as recurrences may have it, features last."""
    return [[replace(s, axes=names.get(s.axes, s.axes)) for s in signals] for names in _OTHERS]


def _described(value: Value, pair: Any, measure: bool) -> Signal:
    if pair is not None:
        mean, std = _pair(pair)
        return Signal(mean, mean**2 + std**2, value.shape, correlation=_WHITE)
    tensor = value.tensor
    if (measure or not value.dtype.is_floating_point) and tensor is not None and not tensor.is_meta:
        return _measured(tensor.detach().cpu(), value.shape)
    return Signal(0.0, 1.0, value.shape, correlation=_WHITE)


def _pair(pair: Any) -> tuple[float, float]:
    try:
        mean, std = (float(x) for x in pair)
    except (TypeError, ValueError):
        raise TypeError(f"inputs={pair!r} is not 'standard', 'measured' or (mean, std).") from None
    if not (math.isfinite(mean) and 0 <= std < math.inf):
        raise ValueError(f"inputs={pair!r}: a mean is finite, a standard deviation 0 or more.")
    return mean, std


def _measured(tensor: Tensor, shape: tuple[int, ...]) -> Signal:
    """Return the moments of a batch, those of pairs of its elements too."""
    if not tensor.numel():
        return Signal(0.0, 0.0, shape, correlation=_WHITE)
    x = tensor.abs().double() if tensor.is_complex() else tensor.double()
    if not bool(x.isfinite().all()):
        bad = int((~x.isfinite()).sum())
        raise ValueError(
            f"{bad} of the example's {x.numel()} numbers are NaN or infinite, so its moments cannot be measured; pass "
            "finite data, or inputs='standard' or (mean, std)."
        )
    mean, second = float(x.mean()), float(x.square().mean())
    made = Signal(mean, max(second, mean**2), shape, correlation=_WHITE)
    if not tensor.is_floating_point() or x.dim() < 2:
        return made
    names = made.axes
    pairs = {}
    for label, kind in (("b", "examples"), ("f", "features"), ("p", "positions")):
        dims = [d for d, c in enumerate(names) if c == label]
        if dims and math.prod(shape[d] for d in dims) > 1:
            pairs[kind] = _along(x, dims)
    sides = [d for d, c in enumerate(names) if c == "p" and shape[d] > 1]
    if sides:
        beside = [float((x.narrow(d, 1, shape[d] - 1) * x.narrow(d, 0, shape[d] - 1)).mean()) for d in sides]
        pairs["neighbours"] = sum(beside) / len(beside)
    return made.related(pairs)


def _along(x: Tensor, dims: list[int]) -> float:
    """Return E x_1 x_2 of two elements that differ along some dimensions only."""
    n = math.prod(x.shape[d] for d in dims)
    return float((x.sum(dims).square() - x.square().sum(dims)).mean()) / (n * (n - 1))
