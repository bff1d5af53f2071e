"""What each op does to mean and second moment: one short function an op."""

from unitvar.rules import attention, interpolate, noise, norms, pool, recurrent, shapes, weights
from unitvar.rules.moments import Moments
from unitvar.rules.registry import RULES, Rule, rule

__all__ = [
    "RULES",
    "Moments",
    "Rule",
    "attention",
    "interpolate",
    "noise",
    "norms",
    "pool",
    "recurrent",
    "rule",
    "shapes",
    "weights",
]
