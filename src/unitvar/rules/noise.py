"""Randomness: what the dropouts do, and what fresh noise looks like."""

from __future__ import annotations

from typing import Any

from unitvar.rules.moments import Moments
from unitvar.rules.registry import builtin

__all__ = ["DROPOUTS", "NOISE"]

# name → whether one mask covers all positions of a feature. Arguments: input, p, train.
DROPOUTS = {
    "aten.dropout": False,
    "aten.native_dropout": False,
    "aten.feature_dropout": True,
    "aten._fused_dropout": False,
}
# Ops that draw. The value says what: uniform on (a, b), normal (mean, std), Bernoulli (p).
NOISE = {
    "aten.rand": "uniform",
    "aten.rand_like": "uniform",
    "aten.uniform": "uniform",
    "aten.randn": "normal",
    "aten.randn_like": "normal",
    "aten.normal": "normal",
    "aten.normal_functional": "normal",
    "aten.bernoulli": "bernoulli",
}


def _alpha(x: Moments, p: float, train: bool) -> Moments:
    """Set dropped elements to SELU's negative limit; a and b restore mean 0 and variance 1 of such a signal."""
    if not train or p == 0:
        return x
    if p == 1:
        return x.like(mean=0.0, second=0.0, cross=None)
    keep, limit = 1.0 - p, -1.7580993408473766
    a = (keep + limit**2 * keep * (1 - keep)) ** -0.5
    b = -a * limit * (1 - keep)
    mean = a * (keep * x.mean + (1 - keep) * limit) + b
    second = a**2 * (keep * x.second + (1 - keep) * limit**2) + 2 * a * b * (keep * x.mean + (1 - keep) * limit) + b**2
    return x.like(mean=mean, second=second)


def _alpha_slope(x: Moments, p: float, train: bool) -> float:
    keep = 1.0 - p if train else 1.0
    return 1 / (1 + 1.7580993408473766**2 * (1 - keep)) if keep > 0 else 0.0


def _alpha_word(x: Any, p: float, train: bool) -> str:
    return f"alpha dropout {p:g}" if train else ""


@builtin("alpha_dropout", "feature_alpha_dropout", word=_alpha_word, backward=_alpha_slope)
def alpha_dropout(x: Moments, p: float, train: bool) -> Moments:
    return _alpha(x, p, train)
