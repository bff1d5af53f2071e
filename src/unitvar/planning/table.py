"""A plan as text, 80 columns wide, nothing cut off."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from unitvar.shown import SHARES, WIDTH, counted, html_table, notes, number, percent

if TYPE_CHECKING:
    from unitvar.planning.layers import LayerPlan, Plan

__all__ = ["NOT_SELECTED", "headline", "html", "left_alone", "path_of", "text"]

NOT_SELECTED = "not selected by only="
_COLUMNS = ("fan-in", "E x", "E x²", "scale")
_SHARES = ("signal", "noise")  # where there is dropout
_WIDE = 10  # characters a number, and the space before it
_NARROW = 8  # of a share


def text(plan: Plan) -> str:
    """Lay a plan out."""
    noisy = is_noisy(plan)
    room = WIDTH - _WIDE * len(_COLUMNS) - (_NARROW * len(_SHARES) if noisy else 0)
    wide = min(room, max([len("weight"), *(len(layer.name) for layer in plan.layers)]))
    lines = [headline(plan)]
    if plan.inputs:
        lines += textwrap.wrap(f"inputs: {plan.inputs}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    heads = "".join(head.rjust(_WIDE) for head in _COLUMNS)
    lines.append("weight".ljust(wide) + heads + ("".join(head.rjust(_NARROW) for head in _SHARES) if noisy else ""))
    for layer in plan.layers:
        lines += _layer(layer, wide, noisy)
    lines += [SHARES] if noisy else []
    for line in left_alone(plan.skipped):
        lines += textwrap.wrap(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    for line in (*_unsupported(plan), _stability(plan), *plan.advice):
        lines += textwrap.wrap(line, WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def headline(plan: Plan) -> str:
    """Say in one line what a plan is for."""
    many = counted(len(plan.layers), "weight")
    gain = "" if plan.gain == 1 else f", gain {plan.gain:g}"
    return f"{plan.distribution} weights, mode {plan.mode}{gain}: {many}, {len(plan.skipped)} left alone"


def is_noisy(plan: Plan) -> bool:
    """Return True if masks make a part of what flows, so that shares are worth telling."""
    return any(layer.noise > 1e-6 for layer in plan.layers)


def html(plan: Plan) -> str:
    """Lay a plan out for a notebook."""
    noisy = is_noisy(plan)
    columns = ("weight", "op", "shape", "after", *_COLUMNS, *(_SHARES if noisy else ()))
    rows = [
        (layer.name, layer.op, "x".join(map(str, layer.shape)), _after(layer), *_cells(layer),
         *(_shares(layer) if noisy else ()))
        for layer in plan.layers
    ]  # fmt: skip
    below = [SHARES if noisy else "", *left_alone(plan.skipped), *_unsupported(plan), _stability(plan), *plan.advice]
    above = f"inputs: {plan.inputs}" if plan.inputs else ""
    return notes(headline(plan), above) + html_table(columns, rows, words=4) + notes(*below)


def _after(layer: LayerPlan) -> str:
    return "; ".join(part for part in (layer.path, layer.branch, layer.note) if part)


def left_alone(skipped: Mapping[str, str]) -> list[str]:
    """Say which weights are left alone and why: one by one, but for those that ``only`` did not select."""
    others = {name: reason for name, reason in skipped.items() if not reason.startswith(NOT_SELECTED)}
    lines = [f"left alone: {name} ({reason})" for name, reason in others.items()]
    left = len(skipped) - len(others)
    if left:
        reason = next(reason for reason in skipped.values() if reason.startswith(NOT_SELECTED))
        lines.append(f"left alone: {counted(left, 'weight')} {reason}")
    return lines


def _layer(layer: LayerPlan, wide: int, noisy: bool) -> list[str]:
    *above, name = textwrap.wrap(layer.name, WIDTH, break_on_hyphens=False) or [""]
    if len(name) > wide:  # too long to stand beside its numbers: it stands above them
        above, name = [*above, name], ""
    row = name.ljust(wide) + "".join(cell.rjust(_WIDE) for cell in _cells(layer))
    row += "".join(cell.rjust(_NARROW) for cell in _shares(layer)) if noisy else ""
    told = f"{layer.op} {'x'.join(map(str, layer.shape))} after {layer.path}"
    told += f"; {layer.branch}" if layer.branch else ""
    lines = [*above, row.rstrip()]
    for line in (told, layer.note):
        lines += textwrap.wrap(line, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _cells(layer: LayerPlan) -> tuple[str, ...]:
    mean = number(layer.mean, beside=layer.second**0.5)
    return f"{layer.fan_in:.6g}", mean, number(layer.second), number(layer.scale)


def _shares(layer: LayerPlan) -> tuple[str, ...]:
    return tuple("" if math.isnan(x) else percent(min(x, 1.0)) for x in (layer.signal, layer.noise))


def _unsupported(plan: Plan) -> list[str]:
    ops = ", ".join(f"{name} ({count})" for name, count in plan.unsupported.items())
    return [f"unsupported, decomposed or sampled: {ops}"] if ops else []


def _stability(plan: Plan) -> str:
    if not plan.depth:
        return "chi: a norm separates all weights, so deviations do not accumulate"
    chi = f"chi {plan.chi:.3f} per layer over {counted(plan.depth, 'layer')} without a norm"
    if plan.chi <= 1 + 1e-6:
        return f"{chi}: deviations do not grow"
    return (
        f"{chi}: deviations grow {plan.chi**plan.depth:.3g}-fold in total. "
        'Put norms between the layers, or use method="measured".'
    )


def path_of(words: tuple[str, ...]) -> str:
    """Tell a path in words; a long run of pointwise ops becomes their number."""
    told: list[str] = []
    run: list[str] = []
    for word in (*words, ""):
        if word.startswith("."):
            run.append(word[1:])
            continue
        if run:
            told += run if len(run) <= 4 else [f"{len(run)} pointwise ops"]
            run = []
        if word:
            told.append(word)
    return " → ".join(told) if told else ""
