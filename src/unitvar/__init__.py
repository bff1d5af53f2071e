"""Unit variance for PyTorch networks with dropout.

After Hendrycks & Gimpel, *Adjusting for Dropout Variance in Batch Normalization and Weight Initialization*.
"""

from unitvar import init
from unitvar.activations import ActivationMoments, activation_moments

__all__ = ["ActivationMoments", "activation_moments", "init"]

from .batchnorm import BatchNormReport, reestimate_bn_, reestimated_bn
from .stochastic import dropout_off

__version__ = "0.1.0"

__all__ = ["BatchNormReport", "dropout_off", "reestimate_bn_", "reestimated_bn"]
