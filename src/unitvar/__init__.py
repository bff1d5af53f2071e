"""Unit variance for PyTorch networks with dropout.

After Hendrycks & Gimpel, *Adjusting for Dropout Variance in Batch Normalization and Weight Initialization*.
"""

from unitvar import init
from unitvar.activations import ActivationMoments, activation_moments
from unitvar.batchnorm import BatchNormReport, reestimate_bn_, reestimated_bn
from unitvar.stochastic import dropout_off

__all__ = [
    "ActivationMoments",
    "BatchNormReport",
    "activation_moments",
    "dropout_off",
    "init",
    "reestimate_bn_",
    "reestimated_bn",
]

__version__ = "0.1.0"
