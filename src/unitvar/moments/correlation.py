"""Correlations of two elements of a tensor, for five kinds of pairs."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CONSTANT", "KINDS", "UNRELATED", "Correlation", "Tilt"]


class Correlation(NamedTuple):
    """Hold the correlation (E x_1 x_2 - E² x) / var x of two elements, for each kind of pair.

    Attributes:
        features: of two features at one position of an example. Weights of their own make them unrelated; the
            elements of a softmax, which sum to one, repel each other.
        positions: of one feature at two positions (pixels, tokens) of an example. Depth makes positions alike, and what
            a pool, an average or attention does depends on it.
        neighbours: of one feature at two neighbouring positions, which the window of a pool holds.
        examples: of one feature at one position of two examples, each with masks of its own. A batch norm takes away
            what they share.
        masks: of one element under two draws of all masks. What they share is the signal, the rest is dropout's noise.
    """

    features: float = 0.0
    positions: float = 0.0
    neighbours: float = 0.0
    examples: float = 0.0
    masks: float = 0.0

    def with_positions(self, positions: float, neighbours: float | None = None) -> Correlation:
        """Return a copy with this correlation of positions; neighbours get the same one unless their own is passed."""
        return self._replace(positions=positions, neighbours=positions if neighbours is None else neighbours)


KINDS = Correlation._fields
UNRELATED = Correlation()
CONSTANT = Correlation(examples=1.0, masks=1.0)  # of numbers that every run meets alike


class Tilt(NamedTuple):
    """Hold what the output of attention gains because keys and values come from the same tokens.

    A query gives more weight to tokens that are aligned with it, so what it gains points where the query does, and two
    outputs gain in common what their queries have in common.

    Attributes:
        own: what the second moment gains.
        positions: what E x_1 x_2 gains for two queries.
        examples: the same for two examples.
        masks: the same for two runs with masks of their own.
    """

    own: float = 0.0
    positions: float = 0.0
    examples: float = 0.0
    masks: float = 0.0

    def scaled(self, factor: float) -> Tilt:
        """Return so many times as much."""
        return Tilt(*(factor * gain for gain in self))
