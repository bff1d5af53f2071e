"""Walk a graph forward, with the scales chosen so far."""

from __future__ import annotations

from unitvar.graph import Graph
from unitvar.moments import Propagation, Weighing, propagate
from unitvar.moments.inputs import input_signals, renamed_inputs
from unitvar.moments.signal import Signal
from unitvar.planning.options import Options
from unitvar.planning.records import Record, Table

__all__ = ["Walker"]


class _Pass:
    """One walk over the graph, with the scales fixed so far, each times its factor."""

    def __init__(self, allowed: dict[str, str | None], fixed: dict[str, float], factors: dict[str, float]) -> None:
        self.allowed, self.fixed, self.factors = allowed, fixed, factors
        self.records: dict[str, Record] = {}
        self.silent: set[str] = set()

    def solve(self, weighing: Weighing) -> float | None:
        name = weighing.use.parameter.name
        if self.allowed.get(name, "") is not None:
            return None
        if weighing.second <= 0:  # perhaps a later use meets a signal, as after a state that starts from zero
            self.silent.add(name)
            return self.fixed[name] * self.factors.get(name, 1.0) if name in self.fixed else None
        x = weighing.x
        record = self.records.get(name)
        if record is None:
            op = weighing.node.name.partition(".")[2]
            words = x.path.words if x.path.words or x.path.depth is not None else ("input",)
            record = self.records[name] = Record(weighing.use, op, words)
        record.shares.append(weighing.share)
        record.second_out.append(weighing.second)
        record.mean.append(x.mean)
        record.second.append(x.second)
        return self.fixed.get(name, record.square) * self.factors.get(name, 1.0)


class Walker:
    """Walk a graph forward as often as it takes.

    Attributes:
        inputs: what is known of the graph's inputs.
        factors: what a weight's squared scale is multiplied by after it was solved for.
        tables: the embeddings that are filled.
    """

    def __init__(self, graph: Graph, options: Options, allowed: dict[str, str | None]) -> None:
        self.graph, self.options, self.allowed = graph, options, allowed
        self.inputs: list[Signal] = input_signals(graph, options.inputs)
        self.factors: dict[str, float] = {}
        self.tables: dict[str, Table] = {}
        self.out: Propagation | None = None

    def walk(self, fixed: dict[str, float], *, quiet: bool = False) -> tuple[dict[str, Record], Propagation]:
        """Walk once; weights whose squared scale is not fixed are solved for. Quiet: with every mask at its mean."""
        this = _Pass(self.allowed, fixed, self.factors)
        self.out = propagate(
            self.graph, self.inputs, this.solve, zeroed=lambda name: self.allowed.get(name, "") is None,
            overrides=self.options.overrides, numbers=None if self.out is None else self.out.numbers,
            tables={name: table.second for name, table in self.tables.items()}, quiet=quiet,
        )  # fmt: skip
        for name in this.silent - set(this.records):
            self.allowed[name] = "no signal reaches it: its input is always 0"
        return this.records, self.out

    def first(self, fixed: dict[str, float]) -> tuple[dict[str, Record], Propagation]:
        """Walk, and find out which dimension of an input counts examples: the one that nothing mixes."""
        best, chosen = self.walk(fixed), self.inputs
        for inputs in renamed_inputs(self.graph, self.options.inputs) if best[1].mixed else ():
            self.inputs = inputs
            other = self.walk(fixed)
            if other[1].mixed < best[1].mixed:
                best, chosen = other, inputs
        self.inputs = chosen
        return best
