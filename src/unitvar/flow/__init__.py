"""measure() and watch(): what really flows through a model, beside what is predicted."""

from unitvar.flow.history import History, watch
from unitvar.flow.report import LayerFlow, NormGap, VarianceReport
from unitvar.flow.run import measure

__all__ = ["History", "LayerFlow", "NormGap", "VarianceReport", "measure", "watch"]
