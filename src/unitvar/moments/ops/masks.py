"""Masks on scores: what is set to minus infinity is out, and a softmax learns how few are left."""

from __future__ import annotations

from typing import Any

from unitvar.moments.ops.pointwise import replayed
from unitvar.moments.ops.views import gathered
from unitvar.moments.rule import Call, builtin
from unitvar.moments.signal import Signal, least_seen

__all__ = ["LOWEST"]

LOWEST = -1e4  # a score this low is one that a mask has taken out


def _level(arg: Any) -> float:
    return float(arg.mean) if isinstance(arg, Signal) else float(arg)


def _true(mask: Any) -> tuple[float, ...]:
    """Return the share of a mask that is True, in each of its rows where they are known."""
    return mask.seen if mask.seen != (1.0,) else (float(mask.mean),)


def _taken(scores: Signal, left: tuple[float, ...]) -> Signal:
    return scores.but(seen=least_seen(scores.seen, left))


def _gradient(g: Any, call: Call) -> tuple[Signal | None, ...]:
    """Hand the gradient to what the mask leaves: the largest of the operands that are no masks."""
    out = next(part for part in g if part is not None)
    operands = [a for a in call.args if isinstance(a, Signal)]
    kept = max((a for a in operands if a.second != a.mean), key=lambda a: (a.path.rank, len(a.shape)), default=None)
    share = 1.0 if kept is None else sum(kept.seen) / len(kept.seen)
    return tuple(gathered(out.like(second=out.second * share), a) if a is kept else None for a in operands)


@builtin("masked_fill", call=True, carries=True, word="", gradient=_gradient)
def masked_fill(call: Call) -> Signal | None:
    scores, mask, filled = call.args[:3]
    if _level(filled) > LOWEST:
        return replayed(call)
    return _taken(scores, tuple(1 - share for share in _true(mask)))


@builtin("where", call=True, word="")
def where(call: Call) -> Signal | None:
    if len(call.args) != 3:
        return None
    mask, a, b = call.args
    share = _true(mask)
    for kept, taken, left in ((a, b, share), (b, a, tuple(1 - s for s in share))):
        gone = isinstance(taken, Signal) and not any(taken.seen)
        if isinstance(kept, Signal) and (gone or _level(taken) <= LOWEST):
            return _taken(kept, left)
    return replayed(call)
