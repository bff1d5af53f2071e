"""Random numbers that the model draws itself, and the masks that it makes of them."""

from __future__ import annotations

from typing import Any

import torch

from unitvar.expectation.laws import Law, law_of
from unitvar.expectation.ops.draws import MASKS, VIEWS, draw
from unitvar.expectation.ops.noise import drawn, masked
from unitvar.expectation.program.writer import Writer, recast, target
from unitvar.expectation.record import static
from unitvar.graph import Node, Value

__all__ = ["Masks"]


class Masks:
    """Follows random numbers as a distribution until they multiply a tensor or meet anything else.

    Args:
        writer: the new graph.
        device: where numbers are, once they are a mean and a variance.
    """

    def __init__(self, writer: Writer, device: torch.device) -> None:
        self.writer, self.device = writer, device
        self.laws: dict[int, Law] = {}

    def follow(self, node: Node) -> bool:
        """Follow an op that draws numbers, changes or multiplies by them; return False if it does none of these."""
        if any(id(v) in self.laws for v in node.inputs) and self._changes(node):
            return True
        if self._draws(node):
            return True
        if self._multiplies(node):
            self._multiply(node)
            return True
        for value in node.inputs:  # numbers that meet anything else count by mean and variance
            if id(value) in self.laws:
                self.settled(value)
        return False

    def _draws(self, node: Node) -> bool:
        if not node.op.random:
            return False
        found = draw(node.name, node.op.overload, static(node))
        out = node.outputs[0] if node.outputs else None
        if found is None or out is None:
            return False
        kind, parameters = found
        law = law_of(kind, parameters, out.shape, self.writer.number(out))
        if law is None:
            return False
        self.laws[id(out)] = law
        return True

    def _changes(self, node: Node) -> bool:
        """Return True if an op makes only other random numbers of random numbers."""
        laws = {id(v): self.laws[id(v)] for v in node.inputs if id(v) in self.laws}
        rest = [v for v in node.inputs if id(v) not in laws]
        out = node.outputs[0]
        if out is None or len({law.source for law in laws.values()}) > 1:
            return False
        law = next(iter(laws.values()))
        if node.name in VIEWS:
            same = all(n in (1, m) for n, m in zip(law.drawn[::-1], out.shape[::-1], strict=False))
            expands = "expand" in node.name and same
            numel = torch.Size(out.shape).numel() == torch.Size(law.drawn).numel()
            if expands or numel:
                self.laws[id(out)] = law if expands else law.seen(out.shape)
            return expands or numel
        if not node.op.pointwise or any(v.tensor is None or v.tensor.numel() != 1 for v in rest):
            return False
        if any(v.kind != "constant" for v in rest):
            return False
        places: dict[int, Any] = {key: value.numbers for key, value in laws.items()}
        places |= {id(v): v.tensor.reshape(()).double() for v in rest if v.tensor is not None}
        args, kwargs = self.writer.arguments(node, places)
        numbers = target(node)(*args, **kwargs)
        self.laws[id(out)] = law.through(numbers if recast(node) is None else numbers.double())
        return True

    def _multiplies(self, node: Node) -> bool:
        inputs = list(node.inputs)
        return node.name in MASKS and len(inputs) == 2 and sum(id(v) in self.laws for v in inputs) == 1

    def _multiply(self, node: Node) -> None:
        a, b = node.inputs
        mask, other = (a, b) if id(a) in self.laws else (b, a)
        law, writer = self.laws[id(mask)], self.writer
        if law.var == 0 and law.mean == 1:
            writer.bind(node, writer.at[id(other)], uncertain=id(other) in writer.uncertain)
            return
        made = writer.call(
            masked, writer.at[id(other)], law.drawn, law.mean, law.var, key=writer.number(node.outputs[0])
        )
        writer.note(node, "exact")
        writer.bind(node, made, uncertain=True)

    def settled(self, value: Value) -> Any:
        """Turn random numbers into a mean and a variance; return what was written."""
        writer = self.writer
        if id(value) not in writer.at:
            law = self.laws[id(value)]
            name = f"like_{value.dtype}".replace(".", "_")
            if not hasattr(writer.root, name):
                writer.root.register_buffer(name, torch.empty(0, dtype=value.dtype, device=self.device))
            like = writer.fx.get_attr(name)
            writer.at[id(value)] = writer.call(drawn, tuple(value.shape), law.mean, law.var, like)
            writer.uncertain.add(id(value))
        return writer.at[id(value)]
