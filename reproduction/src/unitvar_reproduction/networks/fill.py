"""Every initialisation of the training study, by name, for any network."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from unitvar import initialize_
from unitvar_reproduction.networks.lsuv import lsuv_
from unitvar_reproduction.networks.usual import USUAL

__all__ = ["FILLS", "OPTIONS", "fill_"]

_BASE: dict[str, Any] = {
    "mode": "forward",
    "method": "analytic",
    "distribution": "sphere",
    "inputs": "auto",
    "residual": "auto",
    "gain": 1.0,
}
# Written out in full: a result must mean the same when the library's defaults change.
OPTIONS: dict[str, dict[str, Any]] = {
    "scaled": _BASE | {"residual": "scaled"},
    "damped": _BASE | {"residual": "damped"},
    "unit": _BASE | {"residual": "unit"},
    "zero": _BASE | {"residual": "zero"},
    "paper": _BASE | {"residual": "unit", "mode": "paper"},
    "mean": _BASE | {"mode": "mean"},
    "measured": _BASE | {"method": "measured"},
    "orthonormal": _BASE | {"distribution": "orthonormal"},
    **{f"gain-{gain}": _BASE | {"gain": gain} for gain in (0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 2)},
    "embeddings": _BASE | {"embeddings": "unit"},
}
"""Name → the options of :func:`unitvar.initialize_`."""

FILLS = (*USUAL, "lsuv", *OPTIONS)


def fill_(model: nn.Module, name: str, example: Tensor) -> nn.Module:
    """Fill a model, fresh from its constructor, in place from torch's global generator; return it.

    Args:
        model: any network.
        name: one of FILLS.
        example: a batch of its inputs, for those that look at it.
    """
    if name in USUAL:
        USUAL[name](model)
    elif name == "lsuv":
        lsuv_(model, example)
    elif name in OPTIONS:
        initialize_(model, example, **OPTIONS[name])
    else:
        raise ValueError(f"init={name!r} is not one of {', '.join(map(repr, FILLS))}.")
    return model
