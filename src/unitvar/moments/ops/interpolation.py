"""Interpolation: each output is an average of neighbours, with weights that sum to one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from unitvar.moments.correlation import KINDS
from unitvar.moments.rule import builtin
from unitvar.moments.signal import Signal

__all__: list[str] = []

_SMOOTH = {
    "linear": ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa"),
    "cubic": ("upsample_bicubic2d", "_upsample_bicubic2d_aa"),
}
_LONG = 256  # a side up to which the weights of an interpolation are all looked at


def _resized(x: Signal, size: Any, factors: Any = None) -> tuple[int, ...]:
    """Return the sides after interpolation, from what was asked for: sizes, or factors."""
    if size is not None:
        return tuple(size)
    return tuple(math.floor(n * f) for n, f in zip(x.shape[2:], factors, strict=True))


@builtin(
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    word="interpolate",
    backward=lambda x, size, *rest: math.prod(_resized(x, size, *rest[:1])) / math.prod(x.shape[2:]),
)  # fmt: skip
def nearest(x: Signal, size: Any = None, *rest: Any) -> Signal:
    shape = (*x.shape[:2], *_resized(x, size, *rest[-1:]))
    return x.like(profile=None, shape=shape, axes=x.axes)


@lru_cache(maxsize=1024)
def _squares(before: int, after: int, kind: str, corners: bool, antialias: bool) -> float:
    """Return the mean over outputs of the sum of squared weights, along one side."""
    if before > _LONG:
        before, after = _LONG, max(1, round(after * _LONG / before))
    # Two columns: torch trips over one.
    units = torch.eye(before, device="cpu").repeat_interleave(2, 1).view(1, before, before, 2)
    weights = F.interpolate(units, (after, 2), mode=f"bi{kind}", align_corners=corners, antialias=antialias)
    return float(weights.double().square().sum(1).mean())


def _smooth(kind: str, antialias: bool) -> tuple[Callable[..., Signal], Callable[..., float]]:
    def shares(x: Signal, size: Any, corners: bool, *rest: Any) -> tuple[float, float]:
        """Return the sum of squared weights of an output, and how many outputs there are for an input."""
        sides = _resized(x, size, *rest[:1])
        pairs = list(zip(x.shape[2:], sides, strict=True))
        with torch.inference_mode(False):
            own = math.prod(_squares(a, b, kind, bool(corners), antialias) for a, b in pairs)
        return own, math.prod(b / a for a, b in pairs)

    def forward(x: Signal, size: Any, corners: bool, *rest: Any) -> Signal:
        # The weights sum to one: what positions share stays, the rest shrinks by their squares.
        own, _ = shares(x, size, corners, *rest)
        common = x.pair("neighbours")
        pairs = {k: min(x.pair(k), common) + max(0.0, x.pair(k) - common) * own for k in KINDS}
        shape = (*x.shape[:2], *_resized(x, size, *rest[:1]))
        return x.related(pairs, second=common + (x.second - common) * own, profile=None, shape=shape, axes=x.axes)

    def backward(x: Signal, size: Any, corners: bool, *rest: Any) -> float:
        return math.prod(shares(x, size, corners, *rest))

    return forward, backward


for _kind, _names in _SMOOTH.items():
    for _name in _names:
        _forward, _backward = _smooth(_kind, _name.endswith("_aa"))
        builtin(_name, word="interpolate", backward=_backward)(_forward)
