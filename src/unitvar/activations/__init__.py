"""E f, E f², E f'² of any activation under a Gaussian input."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from torch import Tensor, nn

from unitvar.activations import closed, integrate
from unitvar.activations.check import as_function, check_elementwise
from unitvar.activations.names import NAMES, canonical, resolve
from unitvar.shown import html_table, number

__all__ = ["NAMES", "Activation", "ActivationMoments", "activation_moments"]

Activation: TypeAlias = str | nn.Module | Callable[[Tensor], Tensor] | None
"""A name, a module, an elementwise callable, or None for "unknown"."""


@dataclass(frozen=True)
class ActivationMoments:
    r"""What an activation f makes of z ~ N(mean, std²).

    Attributes:
        mean: :math:`E f(z)`.
        second: :math:`E f(z)^2`, the forward factor of a layer.
        slope: :math:`E f'(z)^2`, the backward factor; f' is what autograd computes.
        chi: :math:`E[z f f'] / E[f^2]`, the factor by which a layer multiplies a small relative deviation of
            :math:`E z^2`. Above one, deviations grow with depth. NaN where :math:`E f^2 = 0`.
    """

    mean: float
    second: float
    slope: float
    chi: float = field(default=math.nan, repr=False, kw_only=True)

    @property
    def var(self) -> float:
        """Variance of f(z)."""
        return max(0.0, self.second - self.mean**2)

    def _repr_html_(self) -> str:
        cells = [number(x, beside=1.0) for x in (self.mean, self.second, self.slope, self.var, self.chi)]
        return html_table(("E f", "E f²", "E f'²", "var f", "chi"), [cells], words=0)


def activation_moments(fn: Activation, mean: float = 0.0, std: float = 1.0) -> ActivationMoments:
    r"""Compute the moments of an activation whose input is Gaussian.

    .. math:: E f(z), \quad E f(z)^2, \quad E f'(z)^2, \qquad z \sim N(\text{mean}, \text{std}^2)

    These are the adjustment factors of Hendrycks & Gimpel (Table 1 at mean 0, std 1), for any activation: by closed
    form where one is known, else by adaptive Gauss quadrature in float64, split wherever f or f' jumps.

    Quadrature sees f at points only. Within 5 standard deviations of the mean, f is evaluated at least once in every
    1e-4 standard deviations: no bump of f as wide as that, and no jump or ramp however narrow, is missed. A narrower
    bump may be. The integrals of f and f² must agree with the mean over all those points; a function for which they do
    not, or that the quadrature cannot resolve (such as sin(1e5 x)), is refused.

    Args:
        fn: a name (``"relu"``; see ``unitvar.activations.NAMES``), an ``nn.Module``, a torch function or any
            elementwise callable, which is given 1-D float64 tensors. ``None``, the unknown activation, halves the
            second moment whatever its size (the paper's default factors of 0.5).
        mean: the mean of its input.
        std: the standard deviation of its input; at 0, the values at the mean.

    Returns:
        The moments, correct to 1e-8 relative (or 1e-11, whichever is larger) for a function without narrower bumps.

    Raises:
        ValueError: an unknown name; a callable that is random, not elementwise, not finite, not integrable or too
            fine; a bad mean or std.
        TypeError: something that is not an activation.

    Example:
        >>> activation_moments("relu")
        ActivationMoments(mean=0.3989422804014327, second=0.5, slope=0.5)
        >>> round(activation_moments(lambda x: x * torch.sigmoid(1.702 * x), std=2.0).second, 6)
        1.915723
    """
    mean, std = _number("mean", mean), _number("std", std)
    if std < 0:
        raise ValueError(f"std={std} is negative; a standard deviation is 0 or more.")
    if fn is None:
        square = mean**2 + std**2
        return ActivationMoments(0.0, 0.5 * square, 0.5, chi=1.0)
    found = resolve(fn)
    return _of_name(found, mean, std) if isinstance(found, str) else _compute(found, mean, std)


def _number(name: str, value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r} is not a number; pass a finite float.") from None
    if not math.isfinite(number):
        raise ValueError(f"{name}={number} is not finite; pass a finite float.")
    return number


# Names cannot change their meaning; modules and functions can (a trained PReLU), so only names are remembered.
@lru_cache(maxsize=4096)
def _of_name(name: str, mean: float, std: float) -> ActivationMoments:
    return _compute(NAMES[canonical(name)], mean, std)


def _compute(fn: nn.Module | Callable[[Tensor], Tensor], mean: float, std: float) -> ActivationMoments:
    pieces = closed.pieces(fn)
    if pieces is not None and std > 0:
        first, second, slope, growth = closed.integrals(pieces, mean, std)
    else:
        function = as_function(fn)
        check_elementwise(function, mean, std)
        first, second, slope, growth = integrate.integrals(function, mean, std)
    chi = growth / second if second > 0 else math.nan
    return ActivationMoments(first, max(0.0, second), max(0.0, slope), chi=chi)
