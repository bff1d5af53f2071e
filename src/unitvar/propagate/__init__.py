"""Moments through a graph, forward and backward."""

from unitvar.propagate.backward import gradients
from unitvar.propagate.run import known, propagate
from unitvar.propagate.state import State
from unitvar.propagate.uses import Use, Weighing
from unitvar.propagate.walk import Propagation

__all__ = ["Propagation", "State", "Use", "Weighing", "gradients", "known", "propagate"]
