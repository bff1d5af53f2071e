"""The gain of a network in which the noise of dropout masks drowns the signal.

Found by experiment, docs/when-does-it-help.md: of the gains tried on dense ReLU networks of 4, 8 and 12 layers, SGD
trained best near 0.03^(1/layers). Networks that were trained afterwards agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unitvar.graph import Graph
from unitvar.moments import Propagation, Rule
from unitvar.moments.forward import rule_of
from unitvar.moments.shares import predicted_shares
from unitvar.planning.streams import Stream

__all__ = ["TIMES", "automatic_gain", "gain_at", "is_drowned"]

TIMES = 10  # the noise of masks drowns a signal that it exceeds so many times
PRODUCT = 0.03  # of as many gains as there are layers
TRIED = 4, 16  # layers, between which networks have been trained with these gains, to one digit


def is_drowned(signal: float, noise: float) -> bool:
    """Return True if masks make far more of E z² than what tells examples apart."""
    return TIMES * signal < noise


def gain_at(depth: int) -> float:
    """Return the gain of each of so many layers, to one digit as it was tried, or two where one would round to 1."""
    fewest, most = TRIED
    return float(round(PRODUCT ** (1 / max(fewest, depth)), 1 if depth <= most else 2))


def automatic_gain(graph: Graph, out: Propagation, streams: Sequence[Stream], overrides: Mapping[str, Rule]) -> float:
    """Return the gain of a network without norms and skips whose signal drowns; 1 for all others, which need none."""
    rules = (rule_of(node, overrides) for node in graph.nodes)
    if streams or any(rule is not None and rule.resets for rule in rules):
        return 1.0
    shares = map(predicted_shares, out.leaving.values())
    return gain_at(out.longest[0] + 1) if any(is_drowned(*found) for found in shares) else 1.0
