"""The weights that make a model's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unitvar.graph import Graph, Value
from unitvar.moments import Propagation, Rule
from unitvar.moments.forward import rule_of
from unitvar.moments.known import followed
from unitvar.moments.uses import operands
from unitvar.planning.streams import Stream

__all__ = ["output_weights"]


def output_weights(
    graph: Graph, out: Propagation, streams: Sequence[Stream], overrides: Mapping[str, Rule]
) -> dict[Value, tuple[str, ...]]:
    """Find, for each floating-point output, the weights after which there is no other weight.

    The branches of a residual stream make none of its outputs alone, and what a norm gives is the norm's.
    """
    sums = {id(value) for stream in streams for value in stream.sums}
    found: dict[Value, tuple[str, ...]] = {}
    for output in graph.outputs:
        if not output.dtype.is_floating_point or output.kind != "activation":
            continue
        names: dict[str, None] = {}
        pending, met = [output], {id(output)}
        while pending:
            node = pending.pop().node
            rule = None if node is None else rule_of(node, overrides)
            if node is None or rule is None or rule.resets or any(id(o) in sums for o in node.outputs):
                continue
            weights = [p.name for _, v in operands(node.args, rule) if isinstance(v, Value) and (p := followed(v))]
            names.update(dict.fromkeys(weights))
            for value in () if weights else node.inputs:
                if value.kind == "activation" and id(value) not in met:
                    met.add(id(value))
                    pending.append(value)
        found[output] = tuple(names)
    return found
