"""Complex numbers: a variance for each element does not describe them, so ops on them are sampled as one."""

from __future__ import annotations

from unitvar.expectation import sampling
from unitvar.expectation.program.writer import Writer
from unitvar.expectation.record import place
from unitvar.graph import Node, Value

__all__ = ["Complexes"]


class Complexes:
    """Follows complex numbers that dropout reaches, until they are real again.

    Args:
        writer: the new graph.
        samples: draws for all ops between real numbers and real numbers.
        strict: whether to refuse them.
    """

    def __init__(self, writer: Writer, samples: int, strict: bool) -> None:
        self.writer, self.samples, self.strict = writer, samples, strict
        self.pending: dict[int, list[Node]] = {}

    def follow(self, node: Node) -> bool:
        """Follow an op that makes or takes complex numbers; return False if it does neither."""
        uncertain = any(id(v) in self.writer.uncertain for v in node.inputs)
        outputs = [o for o in node.outputs if o is not None]
        made = [o for o in outputs if o.dtype.is_complex]
        before = [v for v in node.inputs if id(v) in self.pending]
        if not before and not (uncertain and made):
            return False
        if self.strict:
            raise ValueError(
                f"{node.name} in {place(node)!r} computes with complex numbers, and strict=True. Pass strict=False to "
                "have it sampled."
            )
        self.writer.sampled.setdefault(node.name, place(node))
        self.writer.note(node, "sampled")
        nodes = [*{id(n): n for v in before for n in self.pending[id(v)]}.values(), node]
        for out in outputs:
            if out.dtype.is_complex:
                self.pending[id(out)] = nodes
            else:
                self._sample(nodes, out)
        return True

    def _sample(self, nodes: list[Node], out: Value) -> None:
        writer = self.writer
        function, others = writer.replayed(nodes, [out], [])
        inputs = [writer.at[id(v)] for v in others]
        if out.dtype.is_floating_point:
            writer.at[id(out)] = writer.call(sampling.sampled, function, self.samples, *inputs)
            writer.uncertain.add(id(out))
        else:
            writer.at[id(out)] = writer.call(sampling.at_mean, function, *inputs)

    def check(self, value: Value) -> None:
        """Refuse complex numbers where they would have to be a mean and a variance."""
        if id(value) in self.pending:
            raise ValueError(
                "The model returns complex numbers that depend on dropout, or writes to a part of them. Use "
                "torch.view_as_real(...) of them."
            )
