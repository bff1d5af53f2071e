"""Values that no op computed from the inputs: parameters, buffers, constants, and what is made of them alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unitvar.graph import Node, Value
from unitvar.propagate.grid import Field, empirical
from unitvar.propagate.state import State
from unitvar.rules import Moments
from unitvar.rules.moments import default_features

__all__ = ["LOWEST", "actual", "ancestors", "arguments", "by_row", "given", "measured", "realised"]

LOWEST = -1e4  # a score this low is one that a mask has taken out
_FEW = 1 << 16  # elements up to which the law of a tensor is worth finding


def given(value: Value) -> State:
    """Describe a value by the numbers it has; on the meta device, by what such values usually are."""
    tensor = realised(value)
    shape = value.shape
    if tensor is None or tensor.is_meta:
        ones = value.kind == "parameter" and len(shape) < 2  # of a norm, most likely
        return State(Moments(float(ones), 1.0, shape), shape=shape, features=default_features(shape))
    if not tensor.numel():
        return State(Moments(0.0, 0.0, shape))
    numbers = tensor.detach()
    if numbers.is_complex():
        return State(measured(numbers, shape), features=default_features(shape), depth=-1)
    if numbers.numel() <= _FEW or not numbers.is_floating_point():
        numbers = numbers.double()
    masks = value.kind != "parameter" and tensor.is_floating_point()
    numbers, seen = _unmasked(numbers) if masks else (numbers, (1.0,))
    state = _described(numbers, value)
    state.seen, state.features, state.depth = seen, default_features(shape), -1
    return state


def _unmasked(numbers: Tensor) -> tuple[Tensor, tuple[float, ...]]:
    """Take out what a mask has set to minus infinity, and tell what it leaves of each row."""
    high = numbers >= LOWEST
    if high.all():
        return numbers, (1.0,)
    return (numbers[high] if high.any() else numbers.new_zeros(1)), by_row(high)


def by_row(mask: Tensor) -> tuple[float, ...]:
    """Give the share of each row that is True."""
    return tuple((mask != 0).double().reshape(-1, mask.shape[-1] if mask.dim() else 1).mean(-1).tolist())


def _described(numbers: Tensor, value: Value) -> State:
    shape = value.shape
    mean, second = float(numbers.mean()), float(numbers.square().mean())
    if second - mean**2 <= 1e-12 * second:
        return State(Moments(mean, mean**2, shape))
    if numbers.dim() > 2 and value.kind == "derived":  # embeddings of positions or types
        return State(Moments(mean, second, shape, cross=_between_rows(numbers)))
    if numbers.numel() > _FEW:
        return State(Moments(mean, second, shape))
    axis = empirical(numbers, shared=sum(n > 1 for n in shape) <= 1)
    return State(field=Field(axis.nodes.unsqueeze(-1), (axis,), None), shape=shape)


def _between_rows(numbers: Tensor) -> float | None:
    """Return E x_i x_j of one feature in two different rows."""
    rows = numbers.double().flatten(0, -2)
    n = rows.shape[0]
    return float((rows.sum(0).square() - rows.square().sum(0)).mean()) / (n * (n - 1)) if n > 1 else None


def actual(value: Value) -> Moments:
    """Give the moments of a weight as it is; on the meta device, of a standard normal one, and of a bias of zeros."""
    tensor = realised(value)
    if tensor is None or tensor.is_meta or not tensor.numel():
        return Moments(0.0, 1.0 if len(value.shape) > 1 else 0.0, value.shape)
    return measured(tensor.detach(), value.shape)


def measured(numbers: Tensor, shape: tuple[int, ...]) -> Moments:
    """Give the moments of numbers; of complex ones E x is that of the real part and E x² is E |x|²."""
    numbers = numbers if numbers.is_complex() else numbers.double()
    return Moments(float(numbers.real.mean()), float(numbers.abs().square().mean()), shape)


def realised(value: Value) -> Tensor | None:
    """Compute a value that depends on parameters and constants alone, on the CPU; None if that cannot be done."""
    if value.kind in ("parameter", "buffer", "constant", "input") and value.node is None:
        return _on_cpu(value.tensor)
    if value.kind not in ("derived", "buffer") or value.node is None:
        return None
    writes = bool(value.node.op.written)

    def real(arg: Any) -> Any:
        if isinstance(arg, Value):
            found = realised(arg)
            if found is None or found.is_meta:
                raise LookupError
            return found.detach().clone() if writes else found.detach()
        return tuple(real(a) for a in arg) if isinstance(arg, tuple) else arg

    try:
        positional, keywords = arguments(value.node, [real(a) for a in value.node.args])
        with torch.no_grad():
            out = value.node.op.func(*positional, **keywords)
    except (LookupError, RuntimeError, TypeError, ValueError):
        return None
    if isinstance(out, (tuple, list)):
        out = out[[o is value for o in value.node.outputs].index(True)]
    return _on_cpu(out) if isinstance(out, Tensor) else None


def _on_cpu(tensor: Tensor | None) -> Tensor | None:
    """Bring numbers to where grids and draws are; MPS has no float64, either."""
    return tensor if tensor is None or tensor.is_meta else tensor.detach().cpu()


def arguments(node: Node, args: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Sort arguments in schema order into positional ones and keywords, to call the op with."""
    schema = node.op.func._schema
    positional = [a for a, s in zip(args, schema.arguments, strict=True) if not s.kwarg_only]
    keywords = {s.name: a for a, s in zip(args, schema.arguments, strict=True) if s.kwarg_only and a is not None}
    return positional, keywords


def ancestors(value: Value) -> list[str]:
    """Name the parameters that a value was computed from."""
    if value.kind == "parameter":
        return [value.name]
    if value.node is None:
        return []
    return [name for v in value.node.inputs for name in ancestors(v)]
