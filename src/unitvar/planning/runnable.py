"""Examples that a run without data accepts and a real run does not: another dtype, indices past the end of a table."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from unitvar.graph import Graph, Node, Value
from unitvar.moments.forward import rule_of
from unitvar.moments.known import arguments
from unitvar.moments.rule import Rule
from unitvar.moments.uses import operands
from unitvar.running.calling import call, copied, device_of, moved
from unitvar.running.example import explained
from unitvar.running.restore import values_kept
from unitvar.running.untouched import untouched

__all__ = ["check_runs"]

_LARGEST = 1 << 22  # elements that an op on whole numbers may have to be tried


def check_runs(model: nn.Module, example: Any, graph: Graph, rules: dict[str, Rule]) -> None:
    """Refuse an example that the model cannot really run.

    A graph without a suspicious op costs no run: its shapes were checked when it was recorded.

    Args:
        model: the model.
        example: what the graph was recorded on.
        graph: the recorded run.
        rules: those of this call.
    """
    if graph.real or device_of(model).type == "meta":
        return
    numbers: dict[int, Tensor] = {}  # of whole numbers, by the identity of their value
    for node in graph.nodes:
        rule = rule_of(node, rules)
        if rule is not None and rule.embeds:
            _check_tokens(node)
        if _is_suspicious(node, rule, numbers):
            _run(model, example)
            return


def _is_suspicious(node: Node, rule: Rule | None, numbers: dict[int, Tensor]) -> bool:
    """Return True if an op may fail on real data, though it did not without."""
    if rule is not None and rule.weights and _mixes_dtypes(node, rule):
        return True
    for value in node.inputs:
        tensor = value.tensor
        if value.kind != "parameter" and _is_whole(value) and tensor is not None and not tensor.is_meta:
            numbers.setdefault(id(value), tensor.detach().cpu())
    whole = [value for value in node.inputs if _is_whole(value)]
    if not whole or not all(id(value) in numbers for value in whole):
        return False
    if rule is not None and rule.embeds:
        return not _fits(numbers[id(node.args[1])], node.args[0].shape[0])
    if node.op.pointwise and not any(_is_whole(out) for out in node.outputs if out is not None):
        return False  # no index, and of no use for one
    return not _tried(node, numbers)


def _is_whole(value: Value) -> bool:
    return not value.dtype.is_floating_point and not value.dtype.is_complex


def _tried(node: Node, numbers: dict[int, Tensor]) -> bool:
    """Run an op on its whole numbers, all else being zeros, and keep what whole numbers it gives."""
    values = [*node.inputs, *(out for out in node.outputs if out is not None)]
    if node.op.written or node.op.random or sum(math.prod(value.shape) for value in values) > _LARGEST:
        return True

    def real(arg: Any) -> Any:
        if isinstance(arg, Value):
            found = numbers.get(id(arg))
            return torch.zeros((), dtype=arg.dtype, device="cpu").expand(arg.shape) if found is None else found
        if isinstance(arg, torch.device):
            return torch.device("cpu")
        return type(arg)(real(a) for a in arg) if type(arg) in (tuple, list) else arg

    try:
        positional, keywords = arguments(node, [real(arg) for arg in node.args])
        with torch.no_grad():
            out = node.op.func(*positional, **keywords)
    except (IndexError, RuntimeError, TypeError, ValueError):
        return False  # the model itself will tell
    for value, tensor in zip(node.outputs, out if isinstance(out, (tuple, list)) else [out], strict=False):
        if value is not None and isinstance(tensor, Tensor) and _is_whole(value):
            numbers[id(value)] = tensor
    return True


def _fits(indices: Tensor, rows: int) -> bool:
    return not indices.numel() or (int(indices.min()) >= 0 and int(indices.max()) < rows)


def _check_tokens(node: Node) -> None:
    table, value = node.args[:2]
    tokens = value.tensor if value.kind == "input" else None
    if tokens is None or tokens.is_meta or tokens.is_floating_point() or _fits(tokens, table.shape[0]):
        return
    rows, low, high = table.shape[0], int(tokens.min()), int(tokens.max())
    raise ValueError(
        f"The example has token {low if low < 0 else high}, but {table.name!r} has {rows} rows; pass tokens from 0 "
        f"to {rows - 1}."
    )


def _mixes_dtypes(node: Node, rule: Rule) -> bool:
    weights = [v for _, v in operands(node.args, rule) if isinstance(v, Value)]
    return any(v.dtype != w.dtype for w in weights for v in node.inputs if v.kind in ("input", "activation"))


def _run(model: nn.Module, example: Any) -> None:
    with untouched(model), values_kept(model), torch.no_grad():
        try:
            call(model, moved(copied(example), device_of(model)))
        except Exception as error:
            raise explained(error, example, model) from error
