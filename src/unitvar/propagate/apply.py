"""Rules, applied to the moments of an op's arguments; ops without one are sampled."""

from __future__ import annotations

from collections.abc import Mapping

from unitvar.graph import Node
from unitvar.propagate.sample import sampled, sampled_backward
from unitvar.propagate.state import State
from unitvar.propagate.walk import NONE, Walk
from unitvar.rules import Moments, Rule
from unitvar.rules.moments import default_features

__all__ = ["apply", "factor", "forward", "unknown"]

_SAMPLED = Rule(lambda: None)


def apply(walk: Walk, node: Node, rule: Rule) -> None:
    """Follow a signal through an op by its rule; where that gives None, the op is sampled."""
    results = forward(walk, node, rule)
    if results:
        _finish(walk, node, rule, results)
    else:
        unknown(walk, node)


def unknown(walk: Walk, node: Node) -> None:
    """Run an op without a rule on random numbers, and report it."""
    walk.out.unsupported[node.name] += 1
    walk.out.where.setdefault(node.name, node.path)
    _finish(walk, node, _SAMPLED, sampled(node, walk.moments))


def forward(walk: Walk, node: Node, rule: Rule, replaced: Mapping[int, Moments] = NONE) -> tuple[Moments, ...]:
    """Return the moments of an op's outputs; none if its rule does not know these arguments."""
    result = rule.forward(*(walk.moments(a, replaced) for a in node.args))
    return result if isinstance(result, tuple) else () if result is None else (result,)


def factor(walk: Walk, node: Node, rule: Rule, replaced: Mapping[int, Moments] = NONE) -> float:
    """Return E[g_in²] / E[g_out²] for the signal among the inputs."""
    if rule.backward is None:
        return sampled_backward(node, walk.moments, replaced)
    found = rule.backward(*(walk.moments(a, replaced) for a in node.args))
    if not isinstance(found, tuple):
        return float(found)
    signal = next((i for i, v in enumerate(node.inputs) if v.kind in ("input", "activation")), 0)
    return float(found[min(signal, len(found) - 1)])


def _finish(walk: Walk, node: Node, rule: Rule, results: tuple[Moments, ...]) -> None:
    """Turn what a rule returned into states."""
    x = walk.signal(node)
    origin = x if x is not None else State(Moments(0.0, 1.0))
    slope = x.slope * factor(walk, node, rule) if walk.backward and x is not None else 1.0
    chi, depth = (1.0, None) if rule.resets else (origin.chi, origin.depth)
    word = _word(node, rule)
    words = (*origin.words, word) if word else origin.words
    made = []
    for moments, output in zip(results, node.outputs, strict=False):
        shape = output.shape if output is not None else ()
        made.append(State(moments.like(shape=shape), words=words, chi=chi, depth=depth, slope=slope, keep=origin.kept,
                          features=_features(moments, x, shape), last=origin.last))  # fmt: skip
    walk.put(node, made)


def _word(node: Node, rule: Rule) -> str:
    if callable(rule.word):
        return rule.word(*node.args)
    return node.name.partition(".")[2] if rule.word is None else rule.word


def _features(moments: Moments, x: State | None, shape: tuple[int, ...]) -> int | None:
    if moments.features is not None:
        return moments.features
    return x.features if x is not None and len(x.shape) == len(shape) else default_features(shape)
