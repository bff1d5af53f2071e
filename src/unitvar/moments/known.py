"""Values that no op computed from the inputs: parameters, buffers, constants, and what is made of them alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from unitvar._torch import schema_of
from unitvar.graph import Node, Value
from unitvar.moments.correlation import CONSTANT, Correlation
from unitvar.moments.law import Field, empirical, mapped
from unitvar.moments.ops.masks import LOWEST
from unitvar.moments.ops.noise import met_together
from unitvar.moments.signal import Path, Signal
from unitvar.running.shards import numbers_of

__all__ = ["Numbers", "ancestors", "arguments", "followed", "measured", "unmasked"]

_FEW = 1 << 16  # elements up to which the law of a tensor is worth finding
_NOTHING = 0.05  # of a squared norm, what the squared sum of a row may be where rows sum to zero
_SAME = 0.1  # of its norm, by which a weight may change with the scale of its parameter and still count as standardised
_APART = Path(depth=-1)


class Numbers:
    """Read the numbers of values that depend on no input, each once."""

    def __init__(self) -> None:
        self._realised: dict[int, Tensor | None] = {}
        self._actual: dict[int, Signal] = {}
        self._signals: dict[int, Signal] = {}

    def __call__(self, value: Any) -> Tensor | None:
        """Return a value's numbers, on the CPU; None if there are none."""
        if not isinstance(value, Value):
            return None
        found = self._of(value)
        return None if found is None or found.is_meta else found

    def _of(self, value: Value) -> Tensor | None:
        if value.kind in ("parameter", "buffer", "constant", "input") and value.node is None:
            return _on_cpu(value.tensor)
        if value.kind not in ("derived", "buffer") or value.node is None:
            return None
        if id(value) not in self._realised:
            self._realised[id(value)] = self.computed(value)
        return self._realised[id(value)]

    def computed(self, value: Value, replaced: dict[int, Tensor] | None = None) -> Tensor | None:
        """Compute a value from parameters and constants, or from what replaces them; None if that cannot be done."""
        node, replaced = value.node, replaced or {}
        if node is None:
            return replaced.get(id(value), _on_cpu(value.tensor))
        writes = bool(node.op.written)

        def real(arg: Any) -> Any:
            if isinstance(arg, Value):
                found = self.computed(arg, replaced) if replaced else self._of(arg)
                if found is None or found.is_meta:
                    raise LookupError
                return found.detach().clone() if writes else found.detach()
            return tuple(real(a) for a in arg) if isinstance(arg, tuple) else arg

        try:
            positional, keywords = arguments(node, [real(a) for a in node.args])
            with torch.no_grad():
                out = node.op.func(*positional, **keywords)
        except (LookupError, RuntimeError, TypeError, ValueError):
            return None
        if isinstance(out, (tuple, list)):
            out = out[[o is value for o in node.outputs].index(True)]
        return _on_cpu(out) if isinstance(out, Tensor) else None

    def signal(self, value: Value) -> Signal:
        """Describe a value by the numbers it has; on the meta device, by what such values usually are."""
        if value.kind != "parameter":
            return self._signal(value)
        if id(value) not in self._signals:  # once: those of a sharded parameter are gathered from all ranks
            self._signals[id(value)] = self._signal(value)
        return self._signals[id(value)]

    def _signal(self, value: Value) -> Signal:
        shape = value.shape
        tensor = self(value)
        if tensor is None:
            if value.kind == "parameter" and len(shape) < 2:  # of a norm, most likely
                level = 0.0 if "bias" in value.name.rpartition(".")[2] else 1.0
                return Signal(level, level, shape, correlation=_repeated(shape), path=_APART)
            made = Signal(0.0, 1.0, shape, correlation=_repeated(shape), path=_APART)
            return _by_position(made, made.mean**2) if len(shape) == 2 and shape[0] > 1 else made
        if not tensor.numel():
            return Signal(0.0, 0.0, shape, path=_APART)
        numbers = tensor.detach()
        if numbers.is_complex():
            return measured(numbers, shape).but(correlation=_repeated(shape), path=_APART)
        if numbers.dtype == torch.bool:
            share = float(numbers.double().mean())
            made = _described(numbers.double(), value).but(seen=_by_row(numbers), path=_APART)
            return made.but(mean=share, second=share)
        masks = value.kind != "parameter" and tensor.is_floating_point()
        if numbers.numel() <= _FEW:
            low, high = (float(end) for end in numbers.aminmax())
            if low == high and not (masks and low < LOWEST):  # as scales and shifts of new norms are
                return Signal(low, low**2, shape, correlation=_repeated(shape), path=_APART)
        if numbers.numel() <= _FEW or not numbers.is_floating_point():
            numbers = numbers.double()
        numbers, seen = unmasked(numbers) if masks else (numbers, (1.0,))
        return _described(numbers, value).but(seen=seen, path=_APART)

    def actual(self, value: Value, columns: tuple[int, ...] = ()) -> Signal:
        """Return the moments of a weight as it is; on the meta device, of a standard normal one and a bias of zeros.

        Args:
            value: the weight.
            columns: its dimensions that are summed over; rows may sum to zero, as those of standardised weights.
        """
        if id(value) not in self._actual:
            tensor = self(value)
            if tensor is None or not tensor.numel():
                made = Signal(0.0, 1.0 if len(value.shape) > 1 else 0.0, value.shape)
            else:
                made = measured(tensor.detach(), value.shape)
            correlation = CONSTANT._replace(positions=1.0, neighbours=1.0)
            made = made.but(axes="f" * len(value.shape), correlation=correlation)
            if tensor is not None and tensor.numel() and columns and not tensor.is_complex():
                made = made.related({"features": _in_rows(tensor.detach().double(), columns, made.second)})
            self._actual[id(value)] = made
        return self._actual[id(value)]

    def standardised(self, value: Value, parameter: Value) -> bool:
        """Return True if an operand does not depend on the scale of the parameter that it is computed from."""
        if value.kind != "derived" or value.parameter is not None:
            return False
        tensor = _on_cpu(parameter.tensor)
        if tensor is None or tensor.is_meta:
            return False
        base = self(value)
        twice = self.computed(value, {id(parameter): tensor.detach() * 2})
        if base is None or twice is None:
            return False
        # Not to the last digit: what is added to a variance of small weights counts.
        return float((twice - base).norm()) <= _SAME * float(base.norm())


def _in_rows(numbers: Tensor, columns: tuple[int, ...], second: float) -> float:
    """Return E w_1 w_2 of two elements of a row, from what rows sum to."""
    n = 1
    for d in columns:
        n *= numbers.shape[d]
    sums = float(numbers.sum(columns).square().mean())
    # What single rows happen to sum to is chance; that all of them sum to nothing is not.
    return (sums - n * second) / (n * (n - 1)) if n > 1 and sums < _NOTHING * n * second else float(numbers.mean()) ** 2


@lru_cache(maxsize=1 << 12)
def _repeated(shape: tuple[int, ...]) -> Correlation:
    """Return the correlations of a tensor that all examples use: one along dimensions of size one, where it repeats."""
    shared = met_together(shape, fixed=True)
    return Correlation(*(1.0 if kind in shared else 0.0 for kind in Correlation._fields))


def unmasked(numbers: Tensor) -> tuple[Tensor, tuple[float, ...]]:
    """Remove what a mask has set to minus infinity, and return the share of each row that is left.

    A mask of zeros and -100, as some models write it, has the same effect before a softmax.
    """
    high = numbers >= LOWEST
    if high.all():
        high = numbers > -30.0
        if high.all() or (numbers[high] != 0).any() or not high.any():
            return numbers, (1.0,)
    return (numbers[high] if high.any() else numbers.new_zeros(1)), _by_row(high)


def _by_row(mask: Tensor) -> tuple[float, ...]:
    """Return the share of each row that is True."""
    return tuple((mask != 0).double().reshape(-1, mask.shape[-1] if mask.dim() else 1).mean(-1).tolist())


def _described(numbers: Tensor, value: Value) -> Signal:
    shape = value.shape
    mean, second = float(numbers.mean()), float(numbers.square().mean())
    made = Signal(mean, max(second, mean**2), shape, correlation=_repeated(shape))
    if second - mean**2 <= 1e-12 * second:
        return made.but(second=mean**2)
    # Embeddings of positions or types: what is the same for all examples has no dimension that counts them.
    table = numbers.dim() == 2 or (numbers.dim() > 2 and value.kind != "buffer")
    if table and numbers.shape == shape and numbers.is_floating_point():
        rows = numbers.double().flatten(0, -2)
        n = rows.shape[0]
        pair = float((rows.sum(0).square() - rows.square().sum(0)).mean()) / (n * (n - 1)) if n > 1 else second
        made = _by_position(made, pair)
        # A Gaussian of this mean and variance would have the other sign, too: the law of rates and decays matters.
        one_sign = bool((numbers > 0).all()) or bool((numbers < 0).all())
        return made.but(law=mapped(numbers, made.correlations)) if one_sign else made
    if numbers.numel() > _FEW:
        return made
    axis = empirical(numbers, met_together(shape, fixed=True))
    return made.but(law=Field(axis.nodes.unsqueeze(-1), (axis,), None))


def _by_position(table: Signal, pair: float) -> Signal:
    """Treat the rows of a table as positions; two of them have this E x_1 x_2."""
    axes = "pf" if len(table.shape) == 2 else table.axes
    return table.but(axes=axes).related({"positions": pair, "neighbours": pair}, path=table.path)


def measured(numbers: Tensor, shape: tuple[int, ...]) -> Signal:
    """Return the moments of numbers; of complex ones E x is that of the real part and E x² is E |x|²."""
    numbers = numbers if numbers.is_complex() else numbers.double()
    mean = float(numbers.real.mean())
    return Signal(mean, max(mean**2, float(numbers.abs().square().mean())), shape)


def _on_cpu(tensor: Tensor | None) -> Tensor | None:
    """Bring numbers to where grids and draws are; MPS has no float64, either."""
    tensor = numbers_of(tensor)
    return tensor if tensor is None or tensor.is_meta else tensor.detach().cpu()


def arguments(node: Node, args: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Sort arguments in schema order into positional ones and keywords, to call the op with."""
    schema = schema_of(node.op.func)
    positional = [a for a, s in zip(args, schema.arguments, strict=True) if not s.kwarg_only]
    keywords = {s.name: a for a, s in zip(args, schema.arguments, strict=True) if s.kwarg_only and a is not None}
    return positional, keywords


def followed(value: Value) -> Value | None:
    """Follow an operand back to the parameter whose elements it has, if nothing but views and casts lie between."""
    while value.kind == "derived":
        if value.parameter is not None:
            return value.parameter
        node = value.node
        if node is None or node.op.pointwise or node.op.random or not isinstance(node.args[0], Value):
            return None
        if node.args[0].shape != value.shape or len(list(node.inputs)) > 1 or not _copies(node):
            return None
        value = node.args[0]
    return value if value.kind == "parameter" else None


def _copies(node: Node) -> bool:
    """Return True if an op only copies or casts its argument, as its rule tells."""
    from unitvar.moments.ops.views import repeated, same
    from unitvar.moments.rule import find

    rule = find(node.name, node.op.overload, {})
    return rule is not None and rule.forward in (same, repeated)


def ancestors(value: Value) -> list[Value]:
    """List the parameters that a value was computed from."""
    found: dict[int, Value] = {}
    pending, met = [value], set()
    while pending:
        v = pending.pop()
        if id(v) in met:
            continue
        met.add(id(v))
        if v.kind == "parameter":
            found[id(v)] = v
        elif v.node is not None:
            pending += reversed(list(v.node.inputs))
    return list(found.values())
