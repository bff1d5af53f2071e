"""From a run to scales: in forward order, each weight for the second moment of what really reaches it."""

from __future__ import annotations

import difflib
import math
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from unitvar.graph import Graph, trace
from unitvar.initialize.layers import LayerPlan, Layout, Plan
from unitvar.initialize.options import Options
from unitvar.initialize.table import path_of
from unitvar.propagate import Propagation, Use, Weighing, known, propagate
from unitvar.propagate.uses import placed
from unitvar.running.randomness import random_state_kept

__all__ = ["planned"]

_PASSES = 12  # over the graph, for weights that are used more than once


@dataclass(eq=False, slots=True)
class _Record:
    """All uses of one parameter in one pass."""

    use: Use
    op: str
    words: tuple[str, ...]
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    share: float = 1.0
    last: str | None = None
    after: list[float] = field(default_factory=list)  # p² times E (dx/dz)², towards the next weight


class _Pass:
    """One walk over the graph, with the scales fixed so far."""

    def __init__(self, options: Options, allowed: dict[str, str | None], fixed: dict[str, float]) -> None:
        self.options, self.allowed, self.fixed = options, allowed, fixed
        self.records: dict[str, _Record] = {}

    def solve(self, weighing: Weighing) -> float | None:
        name = weighing.use.parameter.name
        if self.allowed.get(name, "") is not None:
            return None
        if weighing.forward <= 0:
            self.allowed[name] = "no signal reaches it: what comes before is 0 everywhere"
            return None
        x = weighing.x
        moments = x.moments
        record = self.records.get(name)
        if record is None:
            op = weighing.node.name.partition(".")[2]
            words = x.words if x.words or x.depth is not None else ("input",)
            record = self.records[name] = _Record(weighing.use, op, words, share=weighing.share, last=x.last)
        record.forward.append(weighing.forward)
        record.mean.append(moments.mean)
        record.second.append(moments.second)
        if weighing.backward is not None:
            slope = x.slope
            record.backward.append(weighing.backward * slope)
            before = self.records.get(x.last) if x.last else None
            if before is not None:
                before.after.append(slope * x.kept**2)
        if name in self.fixed:
            return self.fixed[name]
        return weighing.share * len(record.forward) / sum(record.forward)


def planned(model: nn.Module, example: Any, options: Options) -> Plan:
    """Trace a model and solve for its scales."""
    options.check_patterns(model)
    with random_state_kept(model):  # also what a stand-in without data has drawn
        graphs = [trace(model, example, known=lambda op: known(op, options.overrides))]
        try:
            return _planned(model, example, options, graphs)
        finally:
            for graph in graphs:
                graph.release()


def _planned(model: nn.Module, example: Any, options: Options, graphs: list[Graph]) -> Plan:
    allowed = _allowed(model, options)
    found, fixed = _solved(graphs[0], options, allowed, {})
    weights = [n for n, p in model.named_parameters() if p.dim() > 1 and allowed[n] is None]
    unreached = [n for n in weights if n not in found.records and not found.seen.get(n)]
    if unreached:  # a layer that training skips at random runs in evaluation
        try:
            graphs.append(trace(model, example, training=False, known=lambda op: known(op, options.overrides)))
        except Exception:  # a model that cannot evaluate is still one that can train
            pass
        else:
            later, scales = _solved(graphs[1], options, allowed, fixed)
            for name in unreached:
                if name in later.records:
                    found.records[name], fixed[name] = later.records[name], scales[name]
                    found.biases.update({name: later.biases[name]} if name in later.biases else {})
    unsupported = found.unsupported + sum((Counter(g.decomposed) for g in graphs[:1]), Counter())
    if options.strict and unsupported:
        name = next(iter(unsupported))
        where = {**graphs[0].where, **found.where}.get(name, "")
        raise ValueError(
            f"{name} in module {where or '(the model itself)'!r} has no rule; add one with @unitvar.rule({name!r}) or "
            f"rules={{{name!r}: ...}}, or use strict=False to have it taken apart or sampled."
        )
    _warn_of_unused(options, graphs)
    return _plan(model, options, found, fixed, allowed, unsupported)


def _warn_of_unused(options: Options, graphs: list[Graph]) -> None:
    """Name the rules of this call that met no op: they are misspelt, or for another model."""
    ops = {f"{node.name}.{node.op.overload}": node.name for graph in graphs for node in graph.nodes}
    names = sorted(set(ops.values()))
    for key in options.overrides:
        if key in ops or key in names:
            continue
        near = difflib.get_close_matches(key, names, 1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        warnings.warn(
            f"rules[{key!r}] was not used: the model runs no such op.{guess} It runs {', '.join(names)}.", stacklevel=5
        )


@dataclass(eq=False, slots=True)
class _Found:
    records: dict[str, _Record]
    seen: dict[str, list[str]]
    biases: dict[str, list[str]]
    unsupported: Counter[str]
    where: dict[str, str]
    longest: tuple[int, float]
    cut_off: set[str]


def _solved(
    graph: Graph, options: Options, allowed: dict[str, str | None], start: dict[str, float]
) -> tuple[_Found, dict[str, float]]:
    inputs = options.input_moments(graph)
    exact = options.mode != "forward"

    def walk(fixed: dict[str, float]) -> tuple[_Pass, Propagation]:
        this = _Pass(options, allowed, fixed)
        out = propagate(
            graph, inputs, this.solve, zeroed=lambda name: allowed.get(name, "") is None,
            overrides=options.overrides, backward=exact,
        )  # fmt: skip
        return this, out

    fixed = dict(start)
    this, out = walk(fixed)
    # A weight that is used more than once gets one scale, which changes what reaches its later uses.
    for _ in range(_PASSES):
        shared = {
            name: r.share * len(r.forward) / sum(r.forward)
            for name, r in this.records.items()
            if len(r.forward) > 1 and name not in start
        }
        if all(n in fixed and abs(s / fixed[n] - 1) < 1e-9 for n, s in shared.items()):
            break
        fixed.update(shared)
        this, out = walk(fixed)
    scales = {name: start.get(name, _square(record, options)) for name, record in this.records.items()}
    if exact:  # chosen for signals of unit variance; what then really flows is another matter
        this, out = walk(scales)
    found = _Found(this.records, out.seen, out.biases, out.unsupported, out.where, out.longest, out.cut_off)
    return found, scales


def _square(record: _Record, options: Options) -> float:
    """Return s², DESIGN §2."""
    forward = sum(record.forward) / len(record.forward) / record.share
    if options.mode == "forward":
        return 1 / forward
    if options.mode == "paper":
        ratio = record.use.fan_out / record.use.fan_in if options.distribution in ("normal", "uniform") else 1.0
        after = sum(record.after) / len(record.after) if record.after else 1.0
        return 1 / (forward + ratio * after)
    backward = sum(record.backward) / len(record.backward) / record.share
    if backward <= 0:
        raise ValueError(
            f"mode={options.mode!r}: no gradient passes what lies before {record.use.parameter.name!r} "
            f"({path_of(record.words)}); use mode='forward'."
        )
    return 1 / backward if options.mode == "backward" else 2 / (forward + backward)


def _allowed(model: nn.Module, options: Options) -> dict[str, str | None]:
    """Say of every parameter why it may not be touched; None if it may."""
    names = defaultdict(list)  # those of a tied parameter are many, and any of them selects it
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return {
        name: "frozen: requires_grad is False"
        if not parameter.requires_grad
        else f"not selected by only={options.only!r}"
        if not any(map(options.selects, names[id(parameter)]))
        else f"of dtype {parameter.dtype}"
        if not parameter.is_floating_point()
        else None
        for name, parameter in model.named_parameters()
    }


def _plan(
    model: nn.Module,
    options: Options,
    found: _Found,
    scales: dict[str, float],
    allowed: dict[str, str | None],
    unsupported: Counter[str],
) -> Plan:
    embedded = {n for n, ops in found.seen.items() if any("embedding" in op for op in ops)}
    layers = []
    for name, r in found.records.items():
        if name in embedded:  # tied to an output layer: an embedding comes first
            continue
        square = scales[name]
        biases = tuple(b for b in dict.fromkeys(found.biases.get(name, ())) if allowed.get(b, "") is None)
        second = sum(r.second) / len(r.second)
        layers.append(
            LayerPlan(
                name=name,
                op=r.op,
                shape=r.use.parameter.shape,
                fan_in=r.use.fan_in,
                fan_out=r.use.fan_out,
                mean=sum(r.mean) / len(r.mean),
                second=second,
                path=path_of(r.words) or "weight",
                scale=math.sqrt(square),
                predicted=square * sum(r.forward) / len(r.forward),
                biases=biases,
                layout=_layout(r.use),
            )
        )
    depth, chi = found.longest
    return Plan(
        layers=tuple(layers),
        skipped=_reasons(model, {layer.name for layer in layers}, found, allowed, embedded),
        unsupported=dict(unsupported),
        chi=max(0.0, chi) ** (1 / depth) if depth else 0.0,
        depth=depth,
        mode=options.mode,
        distribution=options.distribution,
    )


def _layout(use: Use) -> Layout:
    columns = placed(use.parameter, use.operand, use.columns) or ()
    batch = placed(use.parameter, use.operand, use.batch) or ()
    return Layout(columns, tuple(d for d in batch if d not in columns), use.fill)


def _reasons(
    model: nn.Module, taken: set[str], found: _Found, allowed: dict[str, str | None], embedded: set[str]
) -> dict[str, str]:
    """Give the reason for every weight that is left alone."""
    first: dict[int, str] = {}
    reasons = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)
        if parameter.dim() < 2 or name in taken:
            continue
        ops = list(dict.fromkeys(found.seen.get(owner, ())))
        reason = allowed.get(owner)
        if owner != name:
            reasons[name] = f"tied to {owner}"
        elif owner in embedded:
            reasons[name] = "embedding"
        elif reason is not None:
            reasons[name] = reason
        elif "parametrizations" in name or name.endswith(("weight_g", "weight_v", "weight_orig")):
            reasons[name] = "parametrised: the weight is computed from it"
        elif owner in found.cut_off:
            reasons[name] = "only constants reach it: a way from the input through numpy or .item() cannot be followed"
        elif not ops:
            reasons[name] = "unreached: no op uses it"
        elif any(op.partition(".")[2] in _WEIGHT_OPS for op in ops):
            reasons[name] = f"parametrised: computed with before {ops[0]}"
        else:
            reasons[name] = f"not a weight: used by {', '.join(ops[:3])}"
    return reasons


_WEIGHT_OPS = {
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "bilinear", "lstm", "gru", "rnn_tanh", "rnn_relu",
}  # fmt: skip
