"""Moments through a graph, forward and backward."""

from unitvar.propagate.run import Propagation, Weighing, known, propagate
from unitvar.propagate.state import State
from unitvar.propagate.uses import Use

__all__ = ["Propagation", "State", "Use", "Weighing", "known", "propagate"]
