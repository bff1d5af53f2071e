"""Rows of a table, looked up."""

from __future__ import annotations

import math
from typing import Any

from unitvar.moments.correlation import Correlation
from unitvar.moments.rule import Call, builtin
from unitvar.moments.signal import Signal

__all__: list[str] = []

_ROWS = Correlation(masks=1.0)  # other tokens have other rows; masks do not change them


def _row(weight: Any, indices: Any, padding: int = -1, *_: Any) -> int | None:
    return padding if padding >= 0 else None


def _row_of_bags(*args: Any) -> int | None:
    return args[8] if len(args) > 8 and args[8] is not None and args[8] >= 0 else None


@builtin("embedding", word="embedding", embeds=True, padding=_row)
def embedding(weight: Signal, indices: Signal, *_: Any) -> Signal:
    shape = (*indices.shape, weight.shape[-1])
    if indices.correlations.examples != 1.0:
        return Signal(weight.mean, weight.second, shape, correlation=_ROWS)
    # The same indices in every example, as of positions, are the same rows; a list of them counts positions.
    axes = "pf" if len(shape) == 2 else ""
    return Signal(weight.mean, weight.second, shape, axes=axes, correlation=_ROWS._replace(examples=1.0))


@builtin("embedding_bag", "_embedding_bag", word="embedding", embeds=True, padding=_row_of_bags, call=True)
def embedding_bag(call: Call) -> tuple[Signal, ...]:
    """Sum, average or take the largest of the rows of a bag; with weights of its own for each row, sum."""
    weight, indices, offsets = call.args[:3]
    mode = ("sum", "mean", "max")[int(call.args[4]) if len(call.args) > 4 else 0]
    scales = call.args[6] if len(call.args) > 6 and isinstance(call.args[6], Signal) else None
    last = bool(call.args[7]) if len(call.args) > 7 else False  # the last offset only says where the last bag ends
    bags = max(1, offsets.shape[0] - last if isinstance(offsets, Signal) else indices.shape[0])
    counts = _counts(call, bags, math.prod(indices.shape))
    rows = weight.but(correlation=_ROWS, law=None)
    if scales is not None:
        rows = rows.like(mean=rows.mean * scales.mean, second=rows.second * scales.second)
    shape = (bags, weight.shape[-1])
    if mode == "max":
        made = rows.maximum(sum(counts) / len(counts), "features")
    else:  # averaged over bags of different sizes
        by = [n if mode == "mean" else 1.0 for n in counts]
        mean = sum(n / d for n, d in zip(counts, by, strict=True)) / len(counts) * rows.mean
        second = sum((n * rows.var + (n * rows.mean) ** 2) / d**2 for n, d in zip(counts, by, strict=True)) / len(
            counts
        )
        made = rows.like(mean=mean, second=second)
    return (made.like(shape=shape, axes="bf"), *(Signal(0.0, 0.0, s) for s in call.shapes[1:]))


def _counts(call: Call, bags: int, total: int) -> list[float]:
    """Count the rows of each bag, from the offsets where they are known."""
    numbers = call.numbers(call.raw[2]) if call.raw[2] is not None else None
    if numbers is None:
        return [max(1.0, total / bags)]
    starts = [int(n) for n in numbers.flatten().tolist()]
    ends = [*starts[1:], total]
    pairs = list(zip(starts, ends, strict=True))[:bags]
    return [float(max(1, end - start)) for start, end in pairs] or [1.0]
