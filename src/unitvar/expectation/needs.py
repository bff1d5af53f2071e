"""What a program needs of a recording: which ops, and what each value will be asked for."""

from __future__ import annotations

import math

from unitvar.expectation.ops import find
from unitvar.expectation.record import noisy, place
from unitvar.graph import Graph, Node

__all__ = ["asked", "living"]


def living(graph: Graph) -> list[Node]:
    """Return the ops that the result depends on."""
    needed = {id(v) for v in graph.returned}
    found: list[Node] = []
    for node in reversed(graph.nodes):
        if any(o is not None and id(o) in needed for o in node.outputs):
            found.append(node)
            needed |= {id(v) for v in node.inputs}
        elif noisy(node):
            _check_unread(node)
    return found[::-1]


def _check_unread(node: Node) -> None:
    """Refuse a single random number that the result depends on by way of Python; unused dropouts are let through."""
    single = any(o is not None and math.prod(o.shape) == 1 for o in node.outputs)
    if single and find(node.name, node.op.overload) is None:
        raise ValueError(
            f"{node.name} in {place(node)!r} draws a random number that the model reads in Python, as LayerDrop does: "
            "what it computes differs from run to run and cannot be integrated out. Set that rate to zero, or average "
            "sampled runs."
        )


def asked(graph: Graph, live: list[Node]) -> set[tuple[str, int]]:
    """Find out, from the end, which values need their sources, and where dropout must say what mixture it makes."""
    found = {("sources", id(value)) for value in graph.returned}
    for node in reversed(live):
        rule = find(node.name, node.op.overload)
        passes = rule is not None and (rule.affine or rule.keeps) and not rule.mixes and rule.noise is None
        for what in ("sources", "mixture"):
            on = any((what, id(o)) in found for o in node.outputs)
            if what == "sources":
                needed = rule is not None and (rule.mixes or (rule.keeps and on))
            else:
                needed = on if passes else node.op.pointwise
            if needed:
                found |= {(what, id(v)) for v in node.inputs}
    return found
