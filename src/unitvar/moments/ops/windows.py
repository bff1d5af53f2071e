"""Windows that slide along a dimension: what a pool or a convolution sees, and what zeros at borders hide."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Windows", "tallied", "windows"]


class Windows(NamedTuple):
    """What windows see that slide along a dimension.

    Attributes:
        outputs: how many windows there are.
        seen: how many real elements each sees on average, weighted by the profile.
        profile: of what they see.
        common: how many taps two windows have in common, drawn with replacement, weighted by amplitude: zeros beyond a
            border fall on other taps at the one than at the other.
        own: the same for a window and itself.
        beside: the same for a window and the next.
    """

    outputs: int
    seen: float
    profile: Any
    common: float
    own: float
    beside: float


def windows(
    size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool = False, profile: Any = None
) -> Windows:
    """Slide a window along a dimension."""
    even = profile is None or len(profile) != size
    return _windows(size, kernel, stride, padding, dilation, ceil, b"" if even else profile.tobytes())


@lru_cache(maxsize=4096)
def _windows(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool, packed: bytes) -> Windows:
    """Slide a window; cached, because networks repeat their blocks."""
    profile = np.frombuffer(packed) if packed else np.ones(size)
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = max(1, (-(-span // stride) if ceil else span // stride) + 1)
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1
    taps = np.zeros((kernel, count))
    for tap in range(kernel):
        # Windows o with 0 <= o * stride + start < size.
        start = tap * dilation - padding
        first, last = max(0, -(start // stride)), min(count - 1, (size - 1 - start) // stride)
        if last >= first:
            taps[tap, first : last + 1] = profile[first * stride + start : last * stride + start + 1 : stride]
    return tallied(taps, profile)


def tallied(taps: Any, profile: Any) -> Windows:
    """Count, from what the input's profile is at each tap of each window."""
    seen = taps.sum(0)
    mean = float(seen.mean())
    amplitude, flat = np.sqrt(taps), np.sqrt(profile)
    own = float((amplitude**2).mean(1).sum()) / flat.mean() ** 2
    common = float((amplitude.mean(1) ** 2).sum()) / flat.mean() ** 2
    beside = _next(amplitude) / (_next(flat[None]) or 1.0)
    return Windows(len(seen), mean, seen / mean if mean > 0 else None, common, own, beside)


def _next(amplitude: Any) -> float:
    """Return the mean over windows of what a window and the next, with the same taps, see together."""
    if amplitude.shape[1] == 1:
        return float((amplitude**2).sum())
    return float((amplitude[:, 1:] * amplitude[:, :-1]).sum(0).mean())
