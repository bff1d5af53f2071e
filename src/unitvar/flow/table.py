"""A report or a history as text, 80 columns wide, nothing cut off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unitvar.flow.tally import labelled
from unitvar.shown import SHARES, counted, html_table, notes, number, text_table, wrapped

if TYPE_CHECKING:
    from unitvar.flow.report import LayerFlow, NormGap, VarianceReport

__all__ = ["html", "html_over_steps", "observed", "over_steps", "text"]

_LAYER = (("E z", 10), ("E z²", 9), ("predicted", 10), ("E g²", 9), ("predicted", 10), ("dead", 6))
_STEPS = (("E z²", 10), ("last", 9), ("E g²", 10), ("last", 9), ("|dW|", 10), ("last", 9))
_SHARES = (("signal", 10), ("predicted", 10), ("noise", 10), ("predicted", 10))
_NORM = (("var on", 10), ("var off", 10), ("running", 10), ("on/off", 8), ("predicted", 10))
_SILENT = 1e-3  # a share of noise that rounding makes


def text(report: VarianceReport) -> str:
    """Lay a report out."""
    lines = [_headline(report)]
    lines += text_table("weight", _LAYER, [(layer.label, _layer(layer)) for layer in report.layers])
    if _is_noisy(report):
        lines += wrapped(SHARES)
        lines += text_table("weight", _SHARES, [(layer.label, _shares(layer)) for layer in report.layers])
    if report.norms:
        lines += text_table("batch norm", _NORM, [(norm.label, _norm(norm)) for norm in report.norms])
    for line in _below(report):
        lines += wrapped(line)
    return "\n".join(lines)


def html(report: VarianceReport) -> str:
    """Lay a report out for a notebook."""
    layers = [(layer.label, *_layer(layer)) for layer in report.layers]
    norms = [(norm.label, *_norm(norm)) for norm in report.norms]
    made = notes(report.verdict, bold=True) + notes(_headline(report))
    made += html_table(("weight", *(head for head, _ in _LAYER)), layers)
    if _is_noisy(report):
        shares = [(layer.label, *_shares(layer)) for layer in report.layers]
        made += notes(SHARES) + html_table(("weight", *(head for head, _ in _SHARES)), shares)
    if norms:
        made += html_table(("batch norm", *(head for head, _ in _NORM)), norms)
    return made + notes(*(line for line in _below(report) if line != report.verdict))


def _is_noisy(report: VarianceReport) -> bool:
    return any((layer.noise or 0.0) > _SILENT for layer in report.layers)


def _headline(report: VarianceReport) -> str:
    counts = f"{counted(len(report), 'weight')} in train mode, {counted(report.runs, 'run')}"
    return f"{counts}: z pre-activation, g its gradient"


def _below(report: VarianceReport) -> list[str]:
    lines = [f"no prediction: {report.unpredicted}"] if report.unpredicted else []
    lines.append(report.verdict)
    gaps = [norm for norm in report.norms if norm.gap is not None]
    if gaps:
        widest = max(gaps, key=lambda norm: abs(math.log(norm.gap or 1.0)))
        some = f"up to {widest.gap:.3g}, at {widest.label}" if f"{widest.gap:.3g}" != "1" else "none"
        lines.append(f"train/eval gap of batch norms: {some}")
    return lines


def over_steps(rows: Sequence[Mapping[str, Any]], steps: int) -> str:
    """Lay out what became of each weight from the first observed step to the last."""
    lines = wrapped(_observed(rows, steps))
    return "\n".join(lines + (text_table("weight", _STEPS, _ends(rows)) if rows else []))


def html_over_steps(rows: Sequence[Mapping[str, Any]], steps: int) -> str:
    """Do the same for a notebook."""
    ends = [(label, *cells) for label, cells in _ends(rows)]
    table = html_table(("weight", *(head for head, _ in _STEPS)), ends) if ends else ""
    return notes(_observed(rows, steps)) + table


def observed(rows: Sequence[Mapping[str, Any]], steps: int) -> str:
    """Say in a few words how much was observed."""
    seen = list(dict.fromkeys(row["step"] for row in rows))
    if not seen:
        return f"{counted(steps, 'step')}, none observed"
    return f"{counted(steps, 'step')}, observed {counted(len(seen), 'time')}, first at {seen[0]} and last at {seen[-1]}"


def _observed(rows: Sequence[Mapping[str, Any]], steps: int) -> str:
    why = "z pre-activation, g its gradient, dW the weight's"
    return f"{observed(rows, steps)}: {why if rows else 'the model was not called in train mode with gradients on'}"


def _ends(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[str, ...]]]:
    ends: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    for row in rows:
        label = labelled(row["name"], row["use"])
        ends[label] = ends.get(label, (row, row))[0], row
    return [(label, _change(*pair)) for label, pair in ends.items()]


def _change(first: Mapping[str, Any], last: Mapping[str, Any]) -> tuple[str, ...]:
    whats = ("variance", "gradient", "weight_gradient_norm")
    return tuple(_short(row[what]) for what in whats for row in (first, last))


def _layer(layer: LayerFlow) -> tuple[str, ...]:
    mean = number(layer.mean, digits=3, beside=(layer.variance or 0.0) ** 0.5)
    rest = (layer.variance, layer.predicted_variance, layer.gradient, layer.predicted_gradient)
    return mean, *map(_short, rest), _percent(layer.dead)


def _shares(layer: LayerFlow) -> tuple[str, ...]:
    return tuple(map(_percent, (layer.signal, layer.predicted_signal, layer.noise, layer.predicted_noise)))


def _norm(norm: NormGap) -> tuple[str, ...]:
    return tuple(map(_short, (norm.on, norm.off, norm.running, norm.gap, norm.predicted_gap)))


def _short(x: float | None) -> str:
    return number(x, digits=3)


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return "<1 %" if 0 < share < 0.005 else f"{100 * min(max(0.0, share), 1.0):.0f} %"
