"""How the second moment of an image is distributed along its sides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from unitvar.moments.signal import Signal

__all__ = ["side_of", "window"]


def window(part: Signal, x: Signal, dim: int, start: int) -> Signal:
    """Take what a profile says of a part of an image along one dimension."""
    assert x.profile is not None
    side = x.profile[dim - 2]
    if side is None or len(side) != x.shape[dim]:
        return replace(part, profile=x.profile)
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
