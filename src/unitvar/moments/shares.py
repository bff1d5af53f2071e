"""What E z² is made of: what all examples have in common, what tells them apart, and the noise of dropout masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from unitvar.moments.signal import Signal

__all__ = ["Shares", "predicted_shares"]


class Shares(NamedTuple):
    """Split E z² of a pre-activation.

    Two examples under two draws of the masks have ``common`` in common; one example under two draws has that and
    ``signal``. The rest is ``noise``.

    Attributes:
        signal: the share that differs from example to example, and not from mask to mask.
        noise: the share that differs from mask to mask.
    """

    signal: float = math.nan
    noise: float = math.nan

    @property
    def common(self) -> float:
        """Return the share that is the same for all examples."""
        return 1 - self.signal - self.noise


def predicted_shares(signals: Sequence[Signal]) -> Shares:
    """Split E z² by the pair moments of some signals, all uses of one weight; NaN where nothing flows."""
    second = sum(s.second for s in signals)
    if second <= 0:
        return Shares()
    common, kept = (sum(s.pair(kind) for s in signals) / second for kind in ("examples", "masks"))
    return Shares(max(0.0, kept - common), max(0.0, 1 - kept))
