"""The gain of a network in which the noise of dropout masks drowns the signal.

Found by experiment, docs/when-does-it-help.md: dense ReLU networks of 4, 8, 12 and 16 layers trained best with the gain
that leaves 3 % of a signal's size after all layers, 0.03^(1/layers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unitvar.graph import Graph
from unitvar.moments import Propagation, Rule
from unitvar.moments.forward import rule_of
from unitvar.moments.shares import predicted_shares
from unitvar.planning.streams import Stream

__all__ = ["LITTLE", "automatic_gain", "gain_at", "is_drowned"]

LITTLE = 0.03  # of E z²: the examples' share below which depth has used it up …
FEW = 0.1  # … if it is less than this part of the masks' share
KEPT = 0.03  # of a signal's size, after all layers


def is_drowned(signal: float, noise: float) -> bool:
    """Return True if little of E z² tells examples apart, and far less than the masks make of it."""
    return signal < min(LITTLE, FEW * noise)


def gain_at(depth: int) -> float:
    """Return the gain that leaves KEPT of a signal's size after so many layers, to one digit."""
    return float(round(KEPT ** (1 / max(1, depth)), 1))


def automatic_gain(graph: Graph, out: Propagation, streams: Sequence[Stream], overrides: Mapping[str, Rule]) -> float:
    """Return the gain of a network without norms and skips whose signal drowns; 1 for all others, which need none."""
    rules = (rule_of(node, overrides) for node in graph.nodes)
    if streams or any(rule is not None and rule.resets for rule in rules):
        return 1.0
    shares = map(predicted_shares, out.leaving.values())
    return gain_at(out.longest[0] + 1) if any(is_drowned(*found) for found in shares) else 1.0
