"""From a run to scales: each weight for what really reaches it, forward or backward."""

from __future__ import annotations

import difflib
import warnings
from collections import Counter
from typing import Any

from torch import nn

from unitvar.graph import Graph, trace
from unitvar.moments import Propagation, Weighing, known, propagate
from unitvar.moments.inputs import input_signals, other_axes
from unitvar.moments.signal import Signal
from unitvar.planning.backward import after_slopes, backward_scales
from unitvar.planning.layers import Plan
from unitvar.planning.made import allowed_parameters, made_plan
from unitvar.planning.options import Options
from unitvar.planning.records import Record, Solved
from unitvar.running.randomness import random_state_kept

__all__ = ["planned"]

_PASSES = 30  # over the graph, for weights that are used more than once, and for gradients that depend on signals
_SAME = 1e-3  # a relative change of squared scales that is none


class _Pass:
    """One walk over the graph, with the scales fixed so far."""

    def __init__(self, allowed: dict[str, str | None], fixed: dict[str, float]) -> None:
        self.allowed, self.fixed = allowed, fixed
        self.records: dict[str, Record] = {}
        self.silent: set[str] = set()

    def solve(self, weighing: Weighing) -> float | None:
        name = weighing.use.parameter.name
        if self.allowed.get(name, "") is not None:
            return None
        if weighing.second <= 0:  # perhaps a later use meets a signal, as after a state that starts from zero
            self.silent.add(name)
            return self.fixed.get(name)
        x = weighing.x
        record = self.records.get(name)
        if record is None:
            op = weighing.node.name.partition(".")[2]
            words = x.path.words if x.path.words or x.path.depth is not None else ("input",)
            record = self.records[name] = Record(weighing.use, op, words, share=weighing.share)
        record.second_out.append(weighing.second)
        record.mean.append(x.mean)
        record.second.append(x.second)
        return self.fixed.get(name, record.square)


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
    allowed = allowed_parameters(model, options)
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
            f"rules={{{name!r}: ...}}, or use strict=False to have it taken apart or sampled."
        )
    _warn_of_unused(options, graphs)
    return made_plan(model, options, solved, allowed, unsupported)


def _take_over(solved: Solved, later: Solved, names: list[str]) -> None:
    for name in names:
        if name in later.records:
            solved.records[name], solved.squares[name] = later.records[name], later.squares[name]
            if name in later.out.biases:
                solved.out.biases[name] = later.out.biases[name]


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


class _Walker:
    """Walk a graph forward as often as it takes."""

    def __init__(self, graph: Graph, options: Options, allowed: dict[str, str | None]) -> None:
        self.graph, self.options, self.allowed = graph, options, allowed
        self.inputs: list[Signal] = input_signals(graph, options.inputs)
        self.out: Propagation | None = None

    def walk(self, fixed: dict[str, float]) -> tuple[dict[str, Record], Propagation]:
        this = _Pass(self.allowed, fixed)
        self.out = propagate(
            self.graph, self.inputs, this.solve, zeroed=lambda name: self.allowed.get(name, "") is None,
            overrides=self.options.overrides, numbers=None if self.out is None else self.out.numbers,
        )  # fmt: skip
        for name in this.silent - set(this.records):
            self.allowed[name] = "no signal reaches it: what comes before is 0 everywhere"
        return this.records, self.out

    def first(self, fixed: dict[str, float]) -> tuple[dict[str, Record], Propagation]:
        """Walk, and find out which dimension of an input counts examples: the one that nothing mixes."""
        best, chosen = self.walk(fixed), self.inputs
        for inputs in other_axes(chosen) if best[1].mixed else ():
            self.inputs = inputs
            other = self.walk(fixed)
            if other[1].mixed < best[1].mixed:
                best, chosen = other, inputs
        self.inputs = chosen
        return best


def _solved(graph: Graph, options: Options, allowed: dict[str, str | None], start: dict[str, float]) -> Solved:
    walker = _Walker(graph, options, allowed)
    fixed = dict(start)
    records, out = walker.first(fixed)
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
            squares = new
            records, out = walker.walk(squares)
            if done:
                break
    return Solved(records, squares, out, notes)


def _paper(record: Record, after: float, options: Options) -> float:
    """Return s² by the paper's formula, DESIGN §2."""
    ratio = record.use.fan_out / record.use.fan_in if options.distribution in ("normal", "uniform") else 1.0
    return 1 / (1 / record.square + ratio * after)
