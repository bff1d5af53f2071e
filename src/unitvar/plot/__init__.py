"""Pictures: every function takes an axes and returns it."""

from unitvar.plot.densities import distributions
from unitvar.plot.layers import by_depth, flow, ratio_by_layer, scales, shares
from unitvar.plot.steps import over_steps

__all__ = ["by_depth", "distributions", "flow", "over_steps", "ratio_by_layer", "scales", "shares"]
