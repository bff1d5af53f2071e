"""Exploding, vanishing, too large or steady: what the words mean here.

**Trend.** Forward, E z² is judged; backward, the squared norm of the gradient, E g² times the elements of the layer:
with a second moment of one at every layer it is the norm that backward steps keep, whatever the widths, and pools keep
it too. What counts is what compounds with depth, not a jump at one layer: a global average pool shrinks every gradient
before it once, and harms nothing. So the trend of the logarithm against depth is the median of the slopes of all pairs
of layers (Theil and Sen). A quantity explodes or vanishes if that trend, over the whole depth, is above ``GROWS`` or
below ``FALLS``, and if at least the share ``AGREEING`` of all pairs goes its way; else it is steady. Zeros are left out
of the trend, unless most values are zero and so is the last: then nothing arrives.

**Level.** An output whose E z² is above ``LARGE`` is too large: a softmax is then sure of itself and wrong. Training
makes outputs as large without harm, by fitting the weights to the data; so what counts is the smaller of what was
measured and what is predicted for weights that know nothing of the data.

The limits were chosen on pilot runs of ``unitvar-paper verdicts``, so that families that train stay within them and
networks that are built to fail do not; docs/healthy.md has the table, and how often they are wrong in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["AGREEING", "FALLS", "FEWEST", "GROWS", "LARGE", "level", "trend", "verdict"]

GROWS = 1e4
"""The trend above which a quantity explodes: what the signal's or the gradient's square grows by over the depth."""
FALLS = 1e-5
"""The trend below which it vanishes. Optimisers that rescale gradients bear more of this than of growth."""
LARGE = 16.0
"""E z² of an output above which it is too large."""
FEWEST = 3
"""Layers that it takes to speak of depth at all."""
AGREEING = 0.75
"""The share of pairs of layers that must change in the direction of the trend for it to be one."""


def trend(values: Sequence[float]) -> tuple[float, float]:
    """Return the factor by which positive numbers change from first to last, by the median slope of all pairs.

    Returns:
        The factor, and the share of pairs that go its way.
    """
    if len(values) < 2:
        return 1.0, 0.0
    logs = np.log(np.asarray(values, dtype=np.float64))
    i, j = np.triu_indices(len(logs), 1)
    slopes = (logs[j] - logs[i]) / (j - i)
    slope = float(np.median(slopes))
    return math.exp(min(700.0, slope * (len(logs) - 1))), float(np.mean(np.sign(slopes) == np.sign(slope)))


def verdict(what: str, labels: Sequence[str], values: Sequence[float | None]) -> str:
    """Say how a quantity changes from the first label to the last; "" if there is nothing to say."""
    known = [(label, value) for label, value in zip(labels, values, strict=True) if value is not None]
    if len(known) < 2:
        return ""
    for label, value in known:
        if not math.isfinite(value):
            return f"{what} is {value} at {label}: exploding"
    positive = [(label, value) for label, value in known if value > 0]
    # Residual branches that start at zero get no gradient; what bypasses them does.
    if len(positive) <= len(known) / 2 and known[-1][1] == 0:
        return f"{what} is 0 at {len(known) - len(positive)} of {len(known)} layers: vanishing"
    factor, share = trend([value for _, value in positive])
    word = "exploding" if factor > GROWS else "vanishing" if factor < FALLS else "steady"
    word = word if share >= AGREEING and len(positive) >= FEWEST else "steady"
    change = f"grows {factor:.2g}-fold" if factor >= 1 else f"falls to {factor:.2g} of its value"
    change = "holds" if 0.95 < factor < 1.05 else change
    return f"{what} {change} from {positive[0][0]} to {positive[-1][0]} (median trend): {word}"


def level(label: str, measured: float | None, predicted: float | None) -> str:
    """Say whether an output is too large; "" if it is not.

    Args:
        label: of the weight that makes it.
        measured: E z².
        predicted: E z² for weights that know nothing of the data; None if it is not known.
    """
    if measured is None or not math.isfinite(measured):
        return ""
    found = measured if predicted is None or not math.isfinite(predicted) else min(measured, predicted)
    return f"the output of {label} has E z² = {measured:.3g}: too large" if found > LARGE else ""
