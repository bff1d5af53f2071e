"""Unit variance for PyTorch networks with dropout.

After Hendrycks & Gimpel, *Adjusting for Dropout Variance in Batch Normalization and Weight Initialization*.
"""

from unitvar import init
from unitvar.activations import ActivationMoments, activation_moments

__all__ = ["ActivationMoments", "activation_moments", "init"]

__version__ = "0.1.0"
