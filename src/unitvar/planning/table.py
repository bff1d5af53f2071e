"""A plan as text, 80 columns wide, nothing cut off."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unitvar.planning.layers import LayerPlan, Plan

__all__ = ["path_of", "text"]

WIDTH = 80
_COLUMNS = ("fan-in", "E x", "E x²", "scale")
_WIDE = 10  # characters a number, and the space before it
_ROOM = WIDTH - _WIDE * len(_COLUMNS)


def text(plan: Plan) -> str:
    """Lay a plan out."""
    wide = min(_ROOM, max([len("weight"), *(len(layer.name) for layer in plan.layers)]))
    lines = [
        f"{plan.distribution} weights, mode {plan.mode}: {len(plan.layers)} weights, {len(plan.skipped)} left alone"
    ]
    lines.append("weight".ljust(wide) + "".join(head.rjust(_WIDE) for head in _COLUMNS))
    for layer in plan.layers:
        lines += _layer(layer, wide)
    for name, reason in plan.skipped.items():
        lines += textwrap.wrap(f"left alone: {name} ({reason})", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    if plan.unsupported:
        ops = ", ".join(f"{name} ({count})" for name, count in plan.unsupported.items())
        lines += textwrap.wrap(f"unsupported, taken apart or sampled: {ops}", WIDTH, subsequent_indent="  ")
    lines += textwrap.wrap(_stability(plan), WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _layer(layer: LayerPlan, wide: int) -> list[str]:
    *above, name = textwrap.wrap(layer.name, WIDTH, break_on_hyphens=False) or [""]
    if len(name) > wide:  # too long to stand beside its numbers: it stands above them
        above, name = [*above, name], ""
    cells = (f"{layer.fan_in:.6g}", _number(layer.mean), _number(layer.second), _number(layer.scale))
    row = name.ljust(wide) + "".join(cell.rjust(_WIDE) for cell in cells)
    told = f"{layer.op} {'x'.join(map(str, layer.shape))} after {layer.path}"
    lines = [*above, row]
    for line in (told, layer.note):
        lines += textwrap.wrap(line, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _stability(plan: Plan) -> str:
    if not plan.depth:
        return "chi: no two weights without a norm between them; deviations do not add up"
    said = f"chi {plan.chi:.3f} a layer over {plan.depth} layers without a norm"
    if plan.chi <= 1 + 1e-6:
        return f"{said}: deviations do not grow"
    return (
        f"{said}: depth amplifies deviations by {plan.chi**plan.depth:.3g} in all. "
        'Put norms between the layers, or use method="measured".'
    )


def _number(x: float) -> str:
    return f"{x:.2e}" if x != 0 and not 1e-3 <= abs(x) < 1e5 else f"{x:.4g}"


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
