"""Functions that are finer than a grid: looked at between its nodes, and integrated there if they differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unitvar.moments.law import NODES, Field

__all__ = ["FINEST", "finer_moments", "is_plain"]

FINEST = 5e-4
"""The narrowest feature of a function that is found for sure, in standard deviations of what it is a function of."""
_NEAR = 5.0  # standard deviations within which one looks
_DIFFERS = 0.01  # relative
# What these make of a smooth law is as smooth.
_PLAIN = frozenset(
    f"aten.{name}" for name in (
        "relu", "relu6", "leaky_relu", "prelu", "_prelu_kernel", "elu", "selu", "celu", "gelu", "silu", "mish",
        "sigmoid", "tanh", "hardtanh", "hardswish", "hardsigmoid", "softplus", "log_sigmoid", "add", "sub", "subtract",
        "mul", "multiply", "neg", "abs", "square", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "where",
    )
)  # fmt: skip


def is_plain(name: str) -> bool:
    """Return True if an op makes nothing finer than what it gets."""
    return name in _PLAIN


def finer_moments(field: Field, call: Callable[[Tensor], Any], second: float) -> tuple[float, float] | None:
    """Look at a function between the nodes of its operand.

    Between the nodes of a panel the operand is the polynomial through them, which it is unless it is fine itself.

    Args:
        field: the operand, a function of one Gaussian.
        call: the function.
        second: E v² on the nodes.

    Returns:
        E v and E v² between the nodes, if they differ from those on them; else None.
    """
    if field.large is None or field.noises or field.values.dim() != 1:
        return None
    nodes, values = field.large.nodes.detach().numpy(), field.values.detach().numpy()
    if len(values) != len(nodes) or len(nodes) % NODES:
        return None
    t = ((nodes - field.large.mean) / field.large.std).reshape(-1, NODES)
    near = np.abs(t).min(1) < _NEAR
    widths = (t[near, -1] - t[near, 0]) / _inner_width()
    matrix, u = _between(int(math.ceil(float(widths.max()) / FINEST / 512) * 512))
    left = t[near, 0] - widths * _first()
    where = left[:, None] + widths[:, None] * u
    # By einsum: the threads of numpy's BLAS gain nothing on this little, and wait for each other on a busy machine.
    inside = np.einsum("pn,un->pu", values.reshape(-1, NODES)[near], matrix)
    try:
        out = call(torch.from_numpy(inside.ravel()))
    except (RuntimeError, TypeError):
        return None
    if not isinstance(out, Tensor) or out.shape != (inside.size,):
        return None
    v = out.detach().double().numpy()
    weights = (np.exp(-where * where / 2) * widths[:, None]).ravel()
    weights /= weights.sum()
    if not np.isfinite(v).all():
        return None
    first, fine = float(np.einsum("i,i", v, weights)), float(np.einsum("i,i,i", v, v, weights))
    return (first, fine) if abs(fine - second) > _DIFFERS * max(fine, second) else None


@lru_cache(maxsize=1)
def _legendre() -> Any:
    return (np.polynomial.legendre.leggauss(NODES)[0] + 1) / 2


def _first() -> float:
    return float(_legendre()[0])


def _inner_width() -> float:
    nodes = _legendre()
    return float(nodes[-1] - nodes[0])


@lru_cache(maxsize=16)
def _between(count: int) -> tuple[Any, Any]:
    """Return the matrix that interpolates from the nodes of a panel to evenly spaced points, and the points."""
    nodes = _legendre()
    u = (np.arange(count) + 0.5) / count
    weights = np.array([1 / np.prod(nodes[i] - np.delete(nodes, i)) for i in range(NODES)])
    ratio = weights / (u[:, None] - nodes + 1e-300)
    return ratio / ratio.sum(1, keepdims=True), u
