"""How the second moment of an image is distributed along its sides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from unitvar.moments.signal import Signal

__all__ = ["flattened", "folded", "side_of", "window"]


def flattened(profile: tuple[Any, ...], sizes: tuple[int, ...]) -> tuple[Any]:
    """Lay the sides of an image out as one, as unfold does."""
    flat = np.ones(1)
    for side, n in zip(profile, sizes, strict=True):
        flat = np.multiply.outer(flat, np.ones(n) if side is None else np.asarray(side)).ravel()
    return (flat,)


def folded(x: Signal, shape: tuple[int, ...]) -> tuple[Any, ...] | None:
    """Return the profile of an image whose sides were one; None if it has none."""
    if x.profile is None or len(x.profile) != 1 or x.profile[0] is None or len(x.shape) != 3 or len(shape) < 4:
        return None
    if shape[:2] != x.shape[:2] or math.prod(shape[2:]) != x.shape[2] != 0:
        return None
    image = np.asarray(x.profile[0]).reshape(shape[2:])
    n = image.ndim
    sides = tuple(image.mean(tuple(d for d in range(n) if d != side)) for side in range(n))
    return sides if np.allclose(image, flattened(sides, shape[2:])[0].reshape(image.shape)) else None


def window(part: Signal, x: Signal, dim: int, start: int) -> Signal:
    """Cut a profile to the part of an image that a slice along one dimension keeps."""
    assert x.profile is not None
    side = x.profile[dim - 2]
    if side is None or len(side) != x.shape[dim]:
        return part.but(profile=x.profile)
    seen = np.asarray(side)[start : start + part.shape[dim]]
    ratio = float(seen.mean()) if len(seen) else 0.0
    # Where there are zeros, there are fewer numbers; elsewhere they are smaller.
    factor = ratio if float(np.min(side)) == 0.0 else math.sqrt(ratio)
    after = tuple(seen / ratio if i == dim - 2 and ratio > 0 else p for i, p in enumerate(x.profile))
    level = x.mean * factor
    made = part.like(mean=level, second=max(level**2, x.second * ratio), profile=after)
    return made.related({k: x.pair(k) * factor**2 for k in ("positions", "neighbours", "features")}, profile=after)


def side_of(x: Signal, i: int, n: int) -> Any:
    """Return a tensor's profile along one spatial dimension."""
    own = x.profile[i] if x.profile is not None and len(x.profile) == n else None
    return np.ones(x.shape[2 + i]) if own is None or len(own) != x.shape[2 + i] else np.asarray(own)
