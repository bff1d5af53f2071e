"""Moments through a graph: one record a value, one rule an op, one walk each way."""

from unitvar.moments import ops
from unitvar.moments.correlation import Correlation
from unitvar.moments.forward import known, propagate
from unitvar.moments.propagation import Propagation
from unitvar.moments.rule import RULES, Connection, Rule, rule
from unitvar.moments.signal import Signal
from unitvar.moments.uses import Use, Weighing

Moments = Signal

__all__ = [
    "RULES", "Connection", "Correlation", "Moments", "Propagation", "Rule", "Signal", "Use", "Weighing", "known", "ops",
    "propagate", "rule",
]  # fmt: skip
