"""The row norm that keeps the variance of a signal or of its gradient at one."""

from __future__ import annotations

import math
from numbers import Real
from types import EllipsisType

from unitvar.activations import Activation, activation_moments

__all__ = ["MODES", "drop_rate", "gain"]

MODES = ("forward", "backward", "mean", "paper")


def gain(
    nonlinearity: Activation = "relu",
    dropout: float = 0.0,
    *,
    mode: str = "forward",
    fan_ratio: float = 1.0,
    next_nonlinearity: Activation | EllipsisType = ...,
    next_dropout: float | EllipsisType = ...,
) -> float:
    r"""Return the row norm s that keeps the variance of a signal at one.

    With keep rate p = 1 - dropout, f the activation before the weight and z ~ N(0, 1) its input:

    =============  ==========================================================================
    ``forward``    :math:`s_f^2 = p / E[f(z)^2]`: the pre-activation keeps its second moment
    ``backward``   :math:`s_b^2 = p\, n_{in} / (n_{out} E[f'(z)^2])`: so does its gradient
    ``mean``       :math:`s^2 = 2 / (1/s_f^2 + 1/s_b^2)`: a compromise
    ``paper``      :math:`s^2 = 1 / (E[f^2]/p + r\, p_{next} E[f_{next}'^2])`, r = ``fan_ratio``: Hendrycks & Gimpel
                   (2016), verbatim; see ``docs/errata.md`` before using it
    =============  ==========================================================================

    Like ``torch.nn.init.calculate_gain``, it goes with a standard deviation of s / sqrt(fan_in). ``backward`` assumes
    that z stays N(0, 1); for an activation that is not piecewise linear, that holds only as far as the forward signal
    stays at one, too.

    Args:
        nonlinearity: the activation before the weight, as in :func:`unitvar.activation_moments`; ``"identity"`` at the
            network's input.
        dropout: the drop probability between that activation and the weight, in [0, 1).
        mode: ``"forward"``, ``"backward"``, ``"mean"`` or ``"paper"``.
        fan_ratio: fan_out / fan_in of the weight.
        next_nonlinearity: ``paper`` only: the activation after the weight; default: the one before it.
        next_dropout: ``paper`` only: the drop probability after it; default: the one before it.

    Returns:
        The norm of a row, s.

    Example:
        >>> gain("relu", dropout=0.5)
        1.0
        >>> round(gain("tanh"), 4), round(gain("tanh", mode="backward"), 4)
        (1.5925, 1.4674)
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(map(repr, MODES))}.")
    if mode != "paper" and not (next_nonlinearity is ... and next_dropout is ...):
        raise ValueError(f"next_nonlinearity and next_dropout belong to mode='paper'; mode={mode!r} does not use them.")
    if not isinstance(fan_ratio, Real):
        raise TypeError(f"fan_ratio={fan_ratio!r} is not a number; it is fan_out / fan_in.")
    if not 0 < fan_ratio < math.inf:
        raise ValueError(f"fan_ratio={fan_ratio!r} is not a positive number; it is fan_out / fan_in.")
    keep = 1.0 - drop_rate("dropout", dropout)
    before = activation_moments(nonlinearity)
    if mode == "paper":
        keep_next = keep if next_dropout is ... else 1.0 - drop_rate("next_dropout", next_dropout)
        after = before if next_nonlinearity is ... else activation_moments(next_nonlinearity)
        loss = before.second / keep + fan_ratio * keep_next * after.slope
    else:
        loss = {  # by how much a row of norm one multiplies the second moment
            "forward": before.second / keep,
            "backward": fan_ratio * before.slope / keep,
            "mean": (before.second + fan_ratio * before.slope) / (2 * keep),
        }[mode]
    if loss <= 0:
        what = "slope" if mode == "backward" else "value"
        raise ValueError(
            f"nonlinearity={nonlinearity!r} has {what} 0 everywhere: no scale of the next weight restores the signal."
        )
    return 1 / math.sqrt(loss)


def drop_rate(name: str, value: float) -> float:
    """Check a drop probability."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} is not a number; pass the drop probability, as in nn.Dropout(p).")
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value!r} is not in [0, 1); it is the probability to drop, not to keep.")
    return float(value)
