"""A report or a history as text, 80 columns wide, nothing cut off."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unitvar.flow.tally import labelled

if TYPE_CHECKING:
    from unitvar.flow.report import LayerFlow, NormGap, VarianceReport

__all__ = ["over_steps", "text"]

WIDTH = 80
_LAYER = (("E z", 10), ("E z²", 9), ("predicted", 10), ("E g²", 9), ("predicted", 10), ("dead", 6))
_STEPS = (("E z²", 10), ("last", 9), ("E g²", 10), ("last", 9), ("|dW|", 10), ("last", 9))
_NORM = (("var on", 10), ("var off", 10), ("running", 10), ("on/off", 8))


def text(report: VarianceReport) -> str:
    """Lay a report out."""
    counts = f"{_counted(len(report), 'weight')} in train mode, {_counted(report.runs, 'run')}"
    lines = [f"{counts}: z pre-activation, g its gradient"]
    lines += _table("weight", _LAYER, [(layer.label, _layer(layer)) for layer in report.layers])
    if report.norms:
        lines += _table("batch norm", _NORM, [(norm.label, _norm(norm)) for norm in report.norms])
    if report.unpredicted:
        lines += _wrapped(f"no prediction: {report.unpredicted}")
    lines += _wrapped(report.verdict)
    gaps = [norm for norm in report.norms if norm.gap is not None]
    if gaps:
        widest = max(gaps, key=lambda norm: abs(math.log(norm.gap or 1.0)))
        some = f"up to {widest.gap:.3g}, at {widest.label}" if f"{widest.gap:.3g}" != "1" else "none"
        lines += _wrapped(f"train/eval gap of batch norms: {some}")
    return "\n".join(lines)


def over_steps(rows: Sequence[Mapping[str, Any]], steps: int) -> str:
    """Lay out what became of each weight from the first observed step to the last."""
    if not rows:
        called = "the model was not called in train mode with gradients on"
        return "\n".join(_wrapped(f"{_counted(steps, 'step')}, none observed: {called}"))
    ends: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    for row in rows:
        label = labelled(row["name"], row["use"])
        ends[label] = ends.get(label, (row, row))[0], row
    seen = list(dict.fromkeys(row["step"] for row in rows))
    where = f"observed {_counted(len(seen), 'time')}, first at {seen[0]} and last at {seen[-1]}"
    lines = _wrapped(f"{_counted(steps, 'step')}, {where}: z pre-activation, g its gradient, dW the weight's")
    return "\n".join(lines + _table("weight", _STEPS, [(label, _change(*pair)) for label, pair in ends.items()]))


def _change(first: Mapping[str, Any], last: Mapping[str, Any]) -> tuple[str, ...]:
    whats = ("variance", "gradient", "weight_gradient_norm")
    return tuple(_number(row[what]) for what in whats for row in (first, last))


def _table(head: str, columns: tuple[tuple[str, int], ...], rows: list[tuple[str, tuple[str, ...]]]) -> list[str]:
    room = WIDTH - sum(width for _, width in columns)
    wide = max([len(head), *(len(label) for label, _ in rows if len(label) <= room)])
    lines = [head.ljust(wide) + "".join(name.rjust(width) for name, width in columns)]
    for label, cells in rows:
        *above, name = textwrap.wrap(label, WIDTH, break_on_hyphens=False) or [""]
        if len(name) > wide:  # too long to stand beside its numbers: it stands above them
            above, name = [*above, name], ""
        numbers = "".join(cell.rjust(width) for cell, (_, width) in zip(cells, columns, strict=True))
        lines += [*above, name.ljust(wide) + numbers]
    return lines


def _layer(layer: LayerFlow) -> tuple[str, ...]:
    forward = (layer.mean, layer.variance, layer.predicted_variance)
    return (*map(_number, (*forward, layer.gradient, layer.predicted_gradient)), _percent(layer.dead))


def _norm(norm: NormGap) -> tuple[str, ...]:
    return tuple(map(_number, (norm.on, norm.off, norm.running, norm.gap)))


def _number(x: float | None) -> str:
    if x is None:
        return "-"
    return f"{x:.2e}" if x != 0 and not 1e-3 <= abs(x) < 1e4 else f"{x:.3g}" if abs(x) < 1e3 else f"{x:.0f}"


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
