"""Variance shift: by how much the variance at a batch norm differs between training and test, before any training.

Li et al. (CVPR 2019) derive it for a dropout before a norm. Here both variances are followed through the graph: once as
it is, once with every mask at its mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from unitvar.graph import Graph
from unitvar.moments.forward import rule_of
from unitvar.moments.propagation import Propagation
from unitvar.moments.rule import Rule

__all__ = ["is_noisy", "variance_shifts"]


def is_noisy(graph: Graph, overrides: Mapping[str, Rule]) -> bool:
    """Return True if a dropout of a graph comes before one of its batch norms."""
    noisy = False
    for node in graph.nodes:
        rule = rule_of(node, overrides)
        if rule is None:
            continue
        noisy |= rule.quiet is not None
        if noisy and rule.normalises:
            return True
    return False


def variance_shifts(
    graph: Graph, on: Propagation, off: Propagation, overrides: Mapping[str, Rule]
) -> dict[tuple[str, int], float]:
    """Compare the variance at each batch norm that uses its batch's statistics.

    Args:
        graph: a run in train mode.
        on: the signals with dropout on.
        off: the signals with every mask at its mean.
        overrides: rules of this call.

    Returns:
        Module and number of the use, from 1 → variance with dropout on over variance with dropout off. Li et al. call
        the inverse of it the shift ratio.
    """
    uses: Counter[str] = Counter()
    shifts = {}
    for node in graph.nodes:
        rule = rule_of(node, overrides)
        if rule is None or rule.variance is None:
            continue
        uses[node.path] += 1
        variances = [rule.variance(*(found.read(arg) for arg in node.args)) for found in (on, off)]
        if all(variance is not None and variance > 0 for variance in variances):
            shifts[node.path, uses[node.path]] = float(variances[0] / variances[1])  # type: ignore[operator]
    return shifts
