"""Arithmetic that overwrites its first operand where nothing else needs it.

A closed form is a dozen elementwise ops. Memory for a dozen results costs more than the arithmetic: writing each result
over the last is three to four times faster. Autograd needs the results, so a formula is written once, with ops that
overwrite or do not: ``o.mul(x, y)`` is ``x * y``, and x is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Arithmetic", "arithmetic"]

_Op = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Elementwise ops; the first operand must be a result that nobody else holds."""

    add: _Op
    sub: _Op
    mul: _Op
    div: _Op
    addcmul: _Op
    clamp: _Op
    exp: _Op
    erf: _Op
    expm1: _Op
    rsqrt: _Op
    square: _Op
    neg: _Op


def _ops(suffix: str) -> Arithmetic:
    return Arithmetic(**{name: getattr(Tensor, name + suffix) for name in Arithmetic.__dataclass_fields__})


_FRESH, _IN_PLACE = _ops(""), _ops("_")


def arithmetic(*tensors: Any) -> Arithmetic:
    """Return the ops for a formula of these tensors: such as overwrite, unless autograd follows one of them."""
    followed = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)
    return _FRESH if followed else _IN_PLACE
