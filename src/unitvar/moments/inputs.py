"""The signals that a network gets: standard, measured, or passed as pairs of mean and standard deviation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from unitvar.graph import Graph, Value
from unitvar.moments.axes import default
from unitvar.moments.correlation import Correlation
from unitvar.moments.known import unmasked
from unitvar.moments.signal import Signal
from unitvar.running.example import check_numbers

__all__ = ["ALLOWED", "INPUTS", "input_signals", "renamed_inputs", "told_inputs"]

INPUTS = ("auto", "standard", "measured")
ALLOWED = "'auto', 'standard', 'measured', (mean, std) or a list of pairs"
_OTHERS = ({"bpf": "pbf"}, {"bfpp": "bppf", "bfppp": "bpppf"})
_VARYING = 1e-3  # of E x²: the variance above which single precision tells pairs apart
_MANY = 2**18  # numbers of a batch beyond which pairs are measured on some examples only
_PART = 2**15  # numbers of a batch that are copied to float64 at a time
_WHITE = Correlation(masks=1.0)  # the same under any mask, and otherwise unrelated


def input_signals(graph: Graph, inputs: Any, names: Mapping[str, str] = MappingProxyType({})) -> list[Signal]:
    """Describe each input of a graph.

    Args:
        graph: a run.
        inputs: ``"auto"``, ``"standard"``, ``"measured"``, ``(mean, std)``, or a list of pairs, one for each
            floating-point tensor.
        names: usual names of dimensions → other ones.
    """
    floats = _floats(graph)
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
    chosen = dict(zip(map(id, floats), pairs, strict=True))
    if inputs == "measured" and any(v.tensor is None or v.tensor.is_meta for v in floats):
        raise ValueError(
            "inputs='measured' needs numbers, but the example is on the meta device and has none; pass real data, "
            "inputs='standard' or (mean, std)."
        )
    measure = inputs == "measured" or (inputs == "auto" and not _without_numbers(floats))
    return [_described(value, chosen.get(id(value)), measure, names) for value in graph.inputs]


def told_inputs(graph: Graph, inputs: Any, signal: Callable[[Value], Signal]) -> str:
    """Describe in one line what the plan assumes of its inputs."""
    floats = _floats(graph)
    if not floats:
        return "no floating-point tensor"
    why = _without_numbers(floats) if inputs == "auto" else "as requested" if inputs == "standard" else ""
    if why:
        return f"standard (mean 0, std 1), {why}"
    told = []
    for value in floats:
        mean, second = float(signal(value).mean), float(signal(value).second)
        std = math.sqrt(max(0.0, second - mean**2))
        name = f"{value.name} " if len(floats) > 1 else ""
        told.append(f"{name}mean {mean if abs(mean) > 1e-6 * std else 0.0:.3g}, std {std:.3g}")
    moments = "; ".join(told)
    return f"{'measured from the batch' if isinstance(inputs, str) else 'as given'}, {moments}"


def _floats(graph: Graph) -> list[Value]:
    return [v for v in graph.inputs if v.dtype.is_floating_point]


def _without_numbers(floats: Sequence[Value]) -> str:
    """Return why an example cannot be measured; "" if it can."""
    tensors = [v.tensor for v in floats if v.tensor is not None and not v.tensor.is_meta and v.tensor.numel()]
    if len(tensors) < len(floats):
        return "as the example has no numbers"
    # Judged as a whole: beside real data, a mask of ones or a state of zeros is what it is.
    if all(low == high for low, high in (t.detach().aminmax() for t in tensors if _mask(t) is None)):
        return "as the example is constant"
    return ""


def renamed_inputs(graph: Graph, inputs: Any) -> Iterator[list[Signal]]:
    """Describe inputs whose dimensions count something else: with time first, as for recurrences, or features last.

    Batches are measured again: what were pairs of examples are then pairs of positions, or the reverse.
    """
    usual = {default(value.shape) for value in graph.inputs}
    for names in _OTHERS:
        if usual & names.keys():
            yield input_signals(graph, inputs, names)


def _described(value: Value, pair: Any, measure: bool, names: Mapping[str, str]) -> Signal:
    axes = default(value.shape)
    axes = names.get(axes, axes)
    if pair is not None:
        mean, std = _pair(pair)
        return Signal(mean, mean**2 + std**2, value.shape, correlation=_WHITE, axes=axes)
    tensor = value.tensor
    if value.dtype.is_floating_point and tensor is not None and not tensor.is_meta and tensor.numel():
        mask = _mask(tensor)
        if mask is not None:
            return Signal(*_moments(mask[0]), value.shape, correlation=_WHITE, seen=mask[1], axes=axes)
    if (measure or not value.dtype.is_floating_point) and tensor is not None and not tensor.is_meta:
        return _measured(tensor.detach().cpu(), value.shape, axes)
    return Signal(0.0, 1.0, value.shape, correlation=_WHITE, axes=axes)


def _pair(pair: Any) -> tuple[float, float]:
    try:
        mean, std = (float(x) for x in pair)
    except (TypeError, ValueError):
        raise TypeError(f"inputs={pair!r} is not {ALLOWED}.") from None
    if not (math.isfinite(mean) and 0 <= std < math.inf):
        raise ValueError(f"inputs={pair!r}: the mean must be finite, and the standard deviation 0 or more.")
    return mean, std


def _measured(tensor: Tensor, shape: tuple[int, ...], names: str) -> Signal:
    """Return the moments of a batch, those of pairs of its elements too, by the names of its dimensions."""
    if not tensor.numel():
        return Signal(0.0, 0.0, shape, correlation=_WHITE, axes=names)
    tensor = tensor.abs() if tensor.is_complex() else tensor
    mean, second = _moments(tensor)
    if not math.isfinite(second):  # as NaN or an infinity among them makes it
        check_numbers(tensor)
    made = Signal(mean, second, shape, correlation=_WHITE, axes=names)
    if not tensor.is_floating_point() or tensor.dim() < 2:
        return made
    # In float64 where a large level would hide what varies.
    x = _some(tensor, names.index("b")).to(torch.float32 if made.var > _VARYING * made.second else torch.float64)
    total = x.numel() * (second if x.shape == tensor.shape else _moments(x)[1])
    pairs = {}
    for label, kind in (("b", "examples"), ("f", "features"), ("p", "positions")):
        dims = [d for d, c in enumerate(names) if c == label]
        if dims and math.prod(x.shape[d] for d in dims) > 1:
            pairs[kind] = _along(x, total, dims)
    sides = [d for d, c in enumerate(names) if c == "p" and shape[d] > 1]
    if sides:
        pairs["neighbours"] = sum(_beside(x, d) for d in sides) / len(sides)
    return made.related(pairs)


def _mask(tensor: Tensor) -> tuple[Tensor, tuple[float, ...]] | None:
    """Return what a mask to be added to scores leaves, and how much of each row; None if a tensor is no such mask."""
    tensor = tensor.detach().cpu()
    if not float(tensor.min()) < -30:
        return None
    left, seen = unmasked(tensor)
    return None if seen == (1.0,) else (left, seen)


def _moments(tensor: Tensor) -> tuple[float, float]:
    """Return mean and mean square, in float64."""
    total = squares = 0.0
    for part in _parts(tensor):
        wide = part.double().flatten()
        total += float(wide.sum())
        squares += float(wide.dot(wide))
    mean = total / tensor.numel()
    return mean, max(squares / tensor.numel(), mean**2)


def _parts(x: Tensor, whole: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """Cut a tensor along dimensions other than those that stay whole, the longest first, until parts are small."""
    dims = [d for d in range(x.dim()) if d not in whole]
    if x.numel() <= _PART or not dims:
        yield x
        return
    longest = max(dims, key=lambda d: x.shape[d])
    for part in torch.split(x, max(1, _PART * x.shape[longest] // x.numel()), longest):
        yield from _parts(part, (*whole, longest))


def _some(tensor: Tensor, dim: int) -> Tensor:
    """Choose examples of a large batch, evenly, two or more: enough to tell how pairs of elements go together."""
    there = tensor.shape[dim]
    many = max(2, _MANY * there // tensor.numel())
    return tensor if there <= many else tensor.movedim(dim, 0)[:: math.ceil(there / many)].movedim(0, dim)


def _beside(x: Tensor, dim: int) -> float:
    """Return E x_1 x_2 of neighbours along a dimension."""
    n = x.shape[dim] - 1
    products = (part.narrow(dim, 1, n) * part.narrow(dim, 0, n) for part in _parts(x, (dim,)))
    return sum(float(p.sum(dtype=torch.float64)) for p in products) * x.shape[dim] / (n * x.numel())


def _along(x: Tensor, total: float, dims: list[int]) -> float:
    """Return E x_1 x_2 of two elements that differ along some dimensions only, given the sum of all squares."""
    n = math.prod(x.shape[d] for d in dims)
    sums = (part.sum(dims, dtype=torch.float64) for part in _parts(x, tuple(dims)))
    return (sum(float(s.square().sum()) for s in sums) - total) / (x.numel() * (n - 1))
