"""Elementwise ops: each is followed from the Gaussian that it goes back to, all ops in between at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from unitvar.expectation.ops import Rule
from unitvar.expectation.ops.activations import region
from unitvar.expectation.program.writer import Writer
from unitvar.graph import Node, Value

__all__ = ["Elementwise"]


@dataclass
class _Region:
    """Elementwise ops between one uncertain tensor and another.

    Attributes:
        root: the tensor that they begin at.
        nodes: the ops.
        affine: whether they are affine all together, so that a Gaussian stays one.
    """

    root: Value
    nodes: list[Node] = field(default_factory=list)
    affine: bool = True


class Elementwise:
    """Follows elementwise ops.

    Args:
        writer: the new graph.
        live: the ops of the run, in order.
        apply: follows an op by its rule.
    """

    def __init__(self, writer: Writer, live: list[Node], apply: Callable[[Node, Rule], None]) -> None:
        self.writer, self.live, self.apply = writer, live, apply
        self.regions: dict[int, _Region] = {}

    def follow(self, node: Node, rule: Rule | None) -> bool:
        """Follow an op from the Gaussian that it goes back to; return False if it goes back to several."""
        operands = [v for v in node.inputs if id(v) in self.writer.uncertain]
        distinct = {id(v): v for v in operands}
        regions = {k: self.regions.get(k) or _Region(v) for k, v in distinct.items()}
        roots = {id(r.root): r.root for r in regions.values()}
        if len(roots) > 1:
            return False
        nodes = {id(n): n for r in regions.values() for n in r.nodes}
        order = [n for n in self.live if id(n) in nodes] + [node]
        (root,) = roots.values()
        alone = len(operands) == 1
        affine = rule is not None and rule.affine and alone
        gaussian = alone and next(iter(regions.values())).affine
        out = node.outputs[0]
        if rule is not None and alone and (affine or gaussian):
            self.apply(node, rule)
        else:
            self._replay(node, root, order)
        if out is not None:
            still = affine and all(r.affine for r in regions.values())
            self.regions[id(out)] = _Region(root, order, still)
        return True

    def _replay(self, node: Node, root: Value, order: list[Node]) -> None:
        """Replay ops on the nodes of a quadrature."""
        (out,) = (o for o in node.outputs if o is not None)
        writer = self.writer
        function, others = writer.replayed(order, [out], [root])
        writer.note(node, "quadrature")
        made = writer.call(region, function, writer.at[id(root)], *(writer.at[id(v)] for v in others))
        writer.bind(node, made, uncertain=True)
