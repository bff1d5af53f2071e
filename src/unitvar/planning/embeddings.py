"""Embeddings of unit second moment, and those that are an output layer's weight, too."""

from __future__ import annotations

from collections.abc import Mapping

from unitvar.graph import Graph
from unitvar.moments import Propagation, Rule
from unitvar.moments.forward import rule_of
from unitvar.moments.known import followed
from unitvar.planning.records import Record, Table
from unitvar.planning.walker import Walker

__all__ = ["embedding_tables", "with_tables"]

_PASSES = 10
_SAME = 1e-3  # a relative change of E w² that is none


def with_tables(
    walker: Walker, records: dict[str, Record], out: Propagation, fixed: dict[str, float]
) -> tuple[dict[str, Record], Propagation]:
    """Choose what every embedding is filled with, and walk with it.

    A table that is also a weight gets the scale of the weight, since a loss depends on the outputs; tables of the same
    width then get that scale, too, or positions would drown tokens.
    """
    found = embedding_tables(walker.graph, walker.options.overrides)
    tables = {name: t for name, t in found.items() if walker.allowed.get(name, "") is None}
    for _ in range(_PASSES):
        tied = {t.shape[-1]: _second(records[name]) for name, t in tables.items() if name in records}
        new = {n: Table(t.shape, tied.get(t.shape[-1], 1.0), t.padding) for n, t in tables.items()}
        done = all(n in walker.tables and abs(t.second / walker.tables[n].second - 1) < _SAME for n, t in new.items())
        walker.tables = new
        if done:
            break
        records, out = walker.walk(fixed)
    return records, out


def _second(record: Record) -> float:
    """Return E w² of a weight that gives unit second moment."""
    return record.square * record.use.part / record.use.fan_in


def embedding_tables(graph: Graph, overrides: Mapping[str, Rule]) -> dict[str, Table]:
    """Find the parameters whose rows are looked up, with the rows that stand for padding."""
    found: dict[str, Table] = {}
    for node in graph.nodes:
        rule = rule_of(node, overrides)
        table = next(iter(node.inputs), None) if rule is not None and rule.embeds else None
        parameter = None if table is None else followed(table)
        if parameter is None:
            continue
        row = rule.padding(*node.args) if rule is not None and rule.padding is not None else None
        padding = () if row is None else (row % parameter.shape[0],)
        found[parameter.name] = Table(parameter.shape, 1.0, padding)
    return found
