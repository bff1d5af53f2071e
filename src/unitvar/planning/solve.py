"""From a run to scales: each weight for what really reaches it, forward or backward."""

from __future__ import annotations

import difflib
import math
import warnings
from collections import Counter
from typing import Any

from torch import nn

from unitvar.graph import Graph, trace
from unitvar.moments import known
from unitvar.moments.inputs import told_inputs
from unitvar.moments.shift import is_noisy, variance_shifts
from unitvar.planning.backward import after_slopes, backward_scales
from unitvar.planning.branches import Branches
from unitvar.planning.embeddings import embedding_tables, with_tables
from unitvar.planning.gains import automatic_gain
from unitvar.planning.layers import Plan
from unitvar.planning.made import allowed_parameters, made_plan
from unitvar.planning.options import Options
from unitvar.planning.outputs import output_weights
from unitvar.planning.records import Record, Solved
from unitvar.planning.runnable import check_runs
from unitvar.planning.streams import residual_streams
from unitvar.planning.walker import Walker
from unitvar.running.randomness import random_state_kept

__all__ = ["planned"]

_PASSES = 30  # over the graph, for weights that are used more than once, and for gradients that depend on signals
_SAME = 1e-3  # a relative change of squared scales that is none


def planned(model: nn.Module, example: Any, options: Options) -> Plan:
    """Trace a model and solve for its scales."""
    options.check_patterns(model)
    with random_state_kept(model):  # also what a stand-in without data has drawn
        graphs = [trace(model, example, known=lambda op: known(op, options.overrides))]
        try:
            check_runs(model, example, graphs[0], options.overrides)
            return _planned(model, example, options, graphs)
        finally:
            for graph in graphs:
                graph.release()


def _planned(model: nn.Module, example: Any, options: Options, graphs: list[Graph]) -> Plan:
    allowed = allowed_parameters(model, options)
    if options.embeddings == "keep":
        for name in embedding_tables(graphs[0], options.overrides):
            allowed[name] = allowed.get(name) or "embedding"
    solved = _solved(graphs[0], options, allowed, {})
    weights = [n for n, p in model.named_parameters() if p.dim() > 1 and allowed[n] is None]
    unreached = [n for n in weights if n not in solved.records and not solved.out.seen.get(n)]
    if unreached:  # a layer that training skips at random runs in evaluation
        try:
            graphs.append(trace(model, example, training=False, known=lambda op: known(op, options.overrides)))
        except Exception:  # a model that cannot evaluate is still one that can train
            pass
        else:
            _take_over(solved, _solved(graphs[1], options, allowed, solved.squares), unreached)
    unsupported = solved.out.unsupported + Counter(graphs[0].decomposed)
    if options.strict and unsupported:
        name = next(iter(unsupported))
        where = {**graphs[0].where, **solved.out.where}.get(name, "")
        raise ValueError(
            f"{name} in module {where or '(the model itself)'!r} has no rule; add one with @unitvar.rule({name!r}) or "
            f"rules={{{name!r}: ...}}, or use strict=False to decompose or sample it."
        )
    _warn_of_unused(options, graphs)
    inputs = told_inputs(graphs[0], options.inputs, solved.out.signal)
    return made_plan(model, options, solved, allowed, unsupported, inputs)


def _take_over(solved: Solved, later: Solved, names: list[str]) -> None:
    for name in names:
        if name in later.records:
            solved.records[name], solved.squares[name] = later.records[name], later.squares[name]
            if name in later.out.biases:
                solved.out.biases[name] = later.out.biases[name]
            if name in later.branches:
                solved.branches[name] = later.branches[name]
            if name in later.leaving:
                solved.leaving[name] = later.leaving[name]


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


def _solved(graph: Graph, options: Options, allowed: dict[str, str | None], start: dict[str, float]) -> Solved:
    walker = Walker(graph, options, allowed)
    fixed = dict(start)
    records, out = walker.first(fixed)
    if options.embeddings == "unit":
        records, out = with_tables(walker, records, out, fixed)
    streams = residual_streams(graph, out, options.overrides) if options.mode != "paper" else []
    branches = Branches(streams, {n for n in records if n not in start}, options.residual)
    if branches.weights:
        records, out = branches.scale(walker, out, fixed)
    # A weight that is used more than once gets one scale, which changes what reaches its later uses: in steps that are
    # the smaller, the oftener it is used, as the last of n uses meets the n-th power of a change.
    for _ in range(_PASSES):
        shared = {n: r for n, r in records.items() if len(r.second_out) > 1 and n not in start}
        if all(n in fixed and abs(r.square / fixed[n] - 1) < 1e-6 for n, r in shared.items()):
            break
        for name, record in shared.items():
            before = fixed.get(name, record.square)
            fixed[name] = before * (record.square / before) ** (2 / (1 + len(record.second_out)))
        records, out = walker.walk(fixed)
    squares = {name: start.get(name, record.square) for name, record in records.items()}
    notes: dict[str, str] = {}
    unsettled = ""
    if options.mode == "paper":
        after = after_slopes(graph, out, options.overrides)
        squares = {n: _paper(r, after.get(n, 1.0), options) for n, r in records.items()}
        records, out = walker.walk(squares)
    elif options.mode == "mean":
        back, notes = backward_scales(graph, out, options.overrides, records)
        squares = {n: 2 / (1 / s + 1 / back[n]) if n in back else s for n, s in squares.items()}
        records, out = walker.walk(squares)
    elif options.mode == "backward":
        for _ in range(_PASSES):  # slopes and norms depend on the signals, and these on the scales
            back, notes = backward_scales(graph, out, options.overrides, records)
            new = {n: back.get(n, s) for n, s in squares.items()}
            done = all(abs(new[n] / squares[n] - 1) < _SAME for n in new)
            moved = max(new, key=lambda n: abs(math.log(new[n] / squares[n])), default="")
            squares = new
            records, out = walker.walk(squares)
            if done:
                break
        else:
            unsettled = moved
    makers = output_weights(graph, out, streams, options.overrides)
    automatic = options.gain == "auto"
    gain = automatic_gain(graph, out, streams, options.overrides) if automatic else float(options.gain)
    if gain != 1.0:
        last = {name for names in makers.values() for name in names}
        for name in squares:
            if name not in last and name not in start:
                walker.factors[name] = walker.factors.get(name, 1.0) * gain**2
        records, out = walker.walk(squares)
    shifts = {}
    if is_noisy(graph, options.overrides):
        quiet = walker.walk(squares, quiet=True)[1]
        shifts = variance_shifts(graph, out, quiet, options.overrides)
    return Solved(
        records=records, squares={n: s * walker.factors.get(n, 1.0) for n, s in squares.items()}, out=out, notes=notes,
        shifts=shifts, unsettled=unsettled, leaving=out.leaving, branches=branches.labels, tables=walker.tables,
        outputs=[(names, out.signal(value)) for value, names in makers.items()], gain=gain,
    )  # fmt: skip


def _paper(record: Record, after: float, options: Options) -> float:
    """Return s² by the paper's formula, DESIGN §2."""
    ratio = record.use.fan_out / record.use.fan_in if options.distribution in ("normal", "uniform") else 1.0
    return 1 / (1 / record.square + ratio * after)
