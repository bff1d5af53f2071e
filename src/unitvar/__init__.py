"""Unit variance for PyTorch networks with dropout."""

__version__ = "0.1.0"
