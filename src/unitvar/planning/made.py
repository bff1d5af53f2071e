"""A plan, from scales: its records, and the reasons for what is left alone."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

from torch import nn

from unitvar._torch import is_lazy
from unitvar.moments import RULES, Use
from unitvar.moments.shares import predicted_shares
from unitvar.moments.uses import placed
from unitvar.planning.advice import advice
from unitvar.planning.layers import LayerPlan, Layout, Plan
from unitvar.planning.options import Options
from unitvar.planning.records import Solved, Table
from unitvar.planning.table import NOT_SELECTED, path_of

__all__ = ["allowed_parameters", "made_plan"]


def allowed_parameters(model: nn.Module, options: Options) -> dict[str, str | None]:
    """Map every parameter to the reason why it may not be changed; None if it may."""
    names = defaultdict(list)  # those of a tied parameter are many, and any of them selects it
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return {
        name: "frozen: requires_grad is False"
        if not parameter.requires_grad
        else f"{NOT_SELECTED}{options.only!r}"
        if not any(map(options.selects, names[id(parameter)]))
        else f"of dtype {parameter.dtype}"
        if not parameter.is_floating_point()
        else None
        for name, parameter in model.named_parameters()
    }


def made_plan(
    model: nn.Module,
    options: Options,
    solved: Solved,
    allowed: dict[str, str | None],
    unsupported: Counter[str],
    inputs: str,
) -> Plan:
    """Make the plan."""
    out = solved.out
    embedded = {n for n, ops in out.seen.items() if any(op in RULES and RULES[op].embeds for op in ops)}
    layers = [_table(name, table) for name, table in solved.tables.items()]
    for name, r in solved.records.items():
        if name in solved.tables:  # tied to an output layer: one record, the embedding's
            continue
        square = solved.squares[name]
        biases = tuple(b for b in dict.fromkeys(out.biases.get(name, ())) if allowed.get(b, "") is None)
        layers.append(
            LayerPlan(
                name=name,
                op=r.op,
                shape=r.use.parameter.shape,
                fan_in=r.use.fan_in,
                fan_out=r.use.fan_out,
                mean=sum(r.mean) / len(r.mean),
                second=sum(r.second) / len(r.second),
                path=path_of(r.words) or "weight",
                scale=math.sqrt(square),
                predicted=square * sum(r.second_out) / len(r.second_out),
                biases=biases,
                layout=_layout(r.use),
                note=solved.notes.get(name, ""),
                branch=solved.branches.get(name, ""),
                **predicted_shares(solved.leaving.get(name, []))._asdict(),
            )
        )
    depth, chi = out.longest
    return Plan(
        layers=tuple(layers),
        skipped=_reasons(model, {layer.name for layer in layers}, solved, allowed, embedded),
        unsupported=dict(unsupported),
        chi=max(0.0, chi) ** (1 / depth) if depth else 0.0,
        depth=depth,
        mode=options.mode,
        distribution=options.distribution,
        inputs=inputs,
        gain=solved.gain,
        advice=tuple(advice(layers, solved, embedded)),
        shifts=_shifts(solved),
        parameters={name: tuple(p.shape) for name, p in model.named_parameters() if not is_lazy(p)},
    )


def _shifts(solved: Solved) -> dict[str, float]:
    found: dict[str, float] = {}
    for (name, _), shift in solved.shifts.items():
        found[name] = max(found.get(name, 0.0), shift)
    return found


def _table(name: str, table: Table) -> LayerPlan:
    width = table.shape[-1]
    return LayerPlan(
        name=name, op="embedding", shape=table.shape, fan_in=width, fan_out=width, mean=0.0, second=1.0, path="input",
        scale=math.sqrt(width * table.second), predicted=table.second, signal=1.0, noise=0.0,
        layout=Layout(tuple(range(1, len(table.shape))), (), {}, table.padding),
    )  # fmt: skip


def _layout(use: Use) -> Layout:
    connection = use.connection
    columns = placed(use.parameter, use.operand, connection.columns) or ()
    batch = placed(use.parameter, use.operand, connection.batch) or ()
    return Layout(columns, tuple(d for d in batch if d not in columns), connection.fill)


def _reasons(
    model: nn.Module, taken: set[str], solved: Solved, allowed: dict[str, str | None], embedded: set[str]
) -> dict[str, str]:
    """Return the reason for every weight that is left alone."""
    out = solved.out
    first: dict[int, str] = {}
    reasons = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)
        if parameter.dim() < 2 or name in taken:
            continue
        ops = list(dict.fromkeys(out.seen.get(owner, ())))
        reason = allowed.get(owner)
        if owner != name:
            reasons[name] = f"tied to {owner}"
        elif owner in embedded:
            reasons[name] = "embedding"
        elif reason is not None:
            reasons[name] = reason
        elif owner in out.standardised:
            reasons[name] = "standardised: the forward pass normalises it, so its scale has no effect"
        elif "parametrizations" in name or name.endswith(("weight_g", "weight_v", "weight_orig")):
            reasons[name] = "parametrised: the weight is computed from it"
        elif owner in out.cut_off:
            reasons[name] = "only constants reach it: a path from the input through numpy or .item() cannot be traced"
        elif not ops:
            reasons[name] = "unreached: no op uses it"
        elif any(op in RULES and RULES[op].weights for op in ops):
            reasons[name] = f"parametrised: transformed before {ops[0]}"
        else:
            reasons[name] = f"not a weight: used by {', '.join(ops[:3])}"
    return reasons
