"""Examples that a run without data accepts and a real run does not: another dtype, tokens past the end of a table."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from unitvar.graph import Graph, Node, Value
from unitvar.moments.forward import rule_of
from unitvar.moments.rule import Rule
from unitvar.moments.uses import operands
from unitvar.running.calling import call, copied, device_of, moved
from unitvar.running.example import explained
from unitvar.running.restore import values_kept
from unitvar.running.untouched import untouched

__all__ = ["check_runs"]


def check_runs(model: nn.Module, example: Any, graph: Graph, rules: dict[str, Rule]) -> None:
    """Refuse an example that the model cannot really run.

    A graph without a suspicious op costs no run: its shapes were checked when it was recorded.

    Args:
        model: the model.
        example: what the graph was recorded on.
        graph: the recorded run.
        rules: those of this call.
    """
    if device_of(model).type == "meta":
        return
    for node in graph.nodes:
        rule = rule_of(node, rules)
        if rule is None:
            continue
        if rule.embeds:
            _check_tokens(node)
        elif rule.weights and _mixes_dtypes(node, rule):
            _run(model, example)
            return


def _check_tokens(node: Node) -> None:
    table, value = node.args[:2]
    tokens = value.tensor if value.kind == "input" else None
    if tokens is None or tokens.is_meta or tokens.is_floating_point():
        return
    rows, low, high = table.shape[0], int(tokens.min()), int(tokens.max())
    if low < 0 or high >= rows:
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
