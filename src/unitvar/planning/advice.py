"""What a user should know before training: where little of a signal survives, and outputs that start too large."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from unitvar.planning.gains import TIMES, gain_at, is_drowned
from unitvar.planning.layers import LayerPlan
from unitvar.planning.records import Solved
from unitvar.shown import percent

__all__ = ["advice"]

# The masks' share above which gain=0.5 is advised with AdamW: below, it was worse than 1, docs/when-does-it-help.md.
HEAVILY = 0.6
SHIFTED = 1.1  # variance at a batch norm with dropout on over that with dropout off, or its inverse
LARGE = 10.0  # E z² of an output


def advice(layers: Sequence[LayerPlan], solved: Solved, embedded: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each thing that a user should know before training."""
    if solved.unsettled:
        yield (
            f'mode="backward" found no scales that keep E g² at one: the scale of {solved.unsettled} does not '
            'converge. Post-norm residual streams have no such scales; use mode="forward" or "mean"'
        )
    drowned = [x for x in layers if is_drowned(x.signal, x.noise)]
    if drowned and solved.gain == 1.0:
        first, last = drowned[0], drowned[-1]
        yield (
            f"from {first.name} on, the noise of dropout masks is more than {TIMES} times the signal that tells "
            f"examples apart ({percent(last.noise)} and {percent(last.signal)} of E z² at {last.name}): use less "
            f"dropout, or add skip connections or norms{_gains(last.noise, solved.out.longest[0] + 1)}"
        )
    if solved.shifts:
        (name, _), shift = max(solved.shifts.items(), key=lambda item: abs(math.log(item[1])))
        if abs(math.log(shift)) > math.log(SHIFTED):
            yield (
                f"dropout changes the variance at batch norms, most at {name}: {shift:.3g} times what it is with "
                "dropout off. Put dropout after the last batch norm, or use unitvar.reestimate_bn_ after training"
            )
    for names, signal in solved.outputs:
        left = [name for name in names if name not in solved.squares]
        if left and signal.second > LARGE:
            remedy = ': embeddings="unit" scales it' if left[0] in embedded else ""
            yield (
                f"the output of {left[0]}, which is left alone, starts with E z² = {signal.second:.3g}; the loss of "
                f"logits this large starts far above that of guessing{remedy}"
            )


def _gains(noise: float, depth: int) -> str:
    """Say which gain to try with which optimiser."""
    return f"; with SGD, try gain={gain_at(depth)}" + (", with AdamW gain=0.5" if noise > HEAVILY else "")
