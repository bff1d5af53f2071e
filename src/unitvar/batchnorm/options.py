"""The options of one re-estimation, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from unitvar.batchnorm.feed import Forward
from unitvar.batchnorm.ranks import Group

STATS = ("both", "var")
METHODS = ("one-pass", "sequential")


@dataclass(frozen=True)
class Options:
    """Hold what :func:`unitvar.reestimate_bn_` takes by keyword."""

    stats: str
    method: str
    forward: Forward | None
    max_batches: int | None
    tolerance: float | None
    frozen: bool
    progress: bool
    group: Group

    def __post_init__(self) -> None:
        for name, value, allowed in (("stats", self.stats, STATS), ("method", self.method, METHODS)):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}.")
        n = self.max_batches
        if n is not None and (isinstance(n, bool) or not isinstance(n, int)):
            raise TypeError(f"max_batches={n!r} is a {type(n).__name__}, not an int or None.")
        if n is not None and n < 1:
            raise ValueError(f"max_batches={n} is not at least 1; None uses all batches.")
        if self.tolerance is not None and not isinstance(self.tolerance, Real):
            raise TypeError(f"tolerance={self.tolerance!r} is not a number; 0.01 stops at 1 %, None uses all batches.")
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise ValueError(
                f"tolerance={self.tolerance!r} is not a finite number above 0; 0.01 stops at 1 %, None uses all "
                "batches; to stop after a number of batches, pass max_batches."
            )
        if self.forward is not None and not callable(self.forward):
            raise TypeError(f"forward={self.forward!r} is not a function; pass forward(model, batch), or None.")
