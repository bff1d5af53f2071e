"""Initialisers in the manner of torch.nn.init, scaled for the activation and the dropout before the weight.

PyTorch's rows are the paper's columns: a weight is ``[fan_out, fan_in]``, and a *row* is all that one output sums over.
"""

from unitvar.init.connections import Fans, fans
from unitvar.init.distributions import normal_, orthonormal_, sphere_, uniform_
from unitvar.init.gains import MODES, drop_rate, gain

__all__ = ["MODES", "Fans", "drop_rate", "fans", "gain", "normal_", "orthonormal_", "sphere_", "uniform_"]
