"""The tables of docs/expectation.md, written from saved trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unitvar_reproduction.experiments.expectation.tasks import TASKS
from unitvar_reproduction.statistics import estimate

__all__ = ["NAMES", "paper_table", "tables"]

NAMES = {
    "mlp-0.3": "MNIST MLP, keep 0.3",
    "mlp-0.5": "MNIST MLP, keep 0.5",
    "mlp-0.7": "MNIST MLP, keep 0.7",
    "vgg": "VGG, CIFAR-10 at 16×16",
    "vgg-slow": "the same, Adam at 0.0001",
    "densenet": "DenseNet, CIFAR-10",
    "vit": "ViT, CIFAR-10 at 16×16",
    "unet": "U-Net, noisy digits",
}
_WAYS = ("off", "1 samples", "10 samples", "100 samples", "integrated")
_MEASURES = (("error", "error, %", 100, 1), ("log_loss", "log loss", 1, 3), ("calibration_error", "ECE, %", 100, 1))
_AGREEMENT = (
    ("mean_off_by_deviations", 3),
    ("mean_off_by_deviations_dropout_off", 3),
    ("variance_ratio", 2),
    ("variance_correlation_of_logs", 2),
)


def tables(trials: Sequence[Mapping[str, Any]]) -> str:
    """Return accuracy, uncertainty and agreement of every network as Markdown, a paragraph before each table."""
    own = {task: [t for t in trials if t["config"]["trial"]["task"] == task] for task in TASKS}
    own = {task: found for task, found in own.items() if found}
    accuracy = [row for task, found in own.items() for row in _accuracy(task, found)]
    uncertainty = [row for task, found in own.items() for row in _uncertainty(task, found)]
    return "\n".join(
        [
            "| network | | off | 1 sample | 10 | 100 | integrated | integrated − 100 |",
            "|---|---|---|---|---|---|---|---|",
            *accuracy,
            "",
            "AUROC of wrong answers and of images of another data set (the 8×8 digits against MNIST, SVHN against "
            "CIFAR-10), by entropy / by mutual information:",
            "",
            "| network | | off | 50 samples | integrated |",
            "|---|---|---|---|---|",
            *uncertainty,
            "",
            "Logits against 100 samples:",
            "",
            "| network | mean off by, deviations | with dropout off | variance, ratio | correlation of log variances |",
            "|---|---|---|---|---|",
            *(_agreement(task, found) for task, found in own.items()),
        ]
    )


def paper_table(trials: Sequence[Mapping[str, Any]]) -> str:
    """Return error and log loss of the paper's networks as Markdown, with differences paired by seed."""
    rows = [
        "| network | | n | off | 100 samples | integrated | integrated − off | integrated − 100 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(t["config"]["network"] for t in trials):
        own = [t for t in trials if t["config"]["network"] == name]
        for key, label, factor, digits in _MEASURES[:2]:
            values = {way: [factor * t["ways"][way][key] for t in own] for way in ("off", "100 samples", "integrated")}
            cells = [f"{_mean(found):.{digits + 1 if factor == 100 else digits}f}" for found in values.values()]
            gaps = [_gap(values["integrated"], values[way], digits + (factor == 100)) for way in ("off", "100 samples")]
            head = (_written(name), label, f"{len(own)}") if key == "error" else ("", label, "")
            rows.append(f"| {' | '.join((*head, *cells, *gaps))} |")
    return "\n".join(rows)


def _written(network: str) -> str:
    activation, _, keep = network.partition("-")
    if not keep:
        return "VGG, Adam at 0.0001"
    return f"{activation if activation == 'tanh' else activation.upper().replace('RELU', 'ReLU')}, keep {keep}"


def _gap(ours: Sequence[float], others: Sequence[float], digits: int) -> str:
    """Write a difference paired by seed, with its interval if it has one, and a star if that excludes zero."""
    gap = estimate([a - b for a, b in zip(ours, others, strict=True)])
    if gap.half_width is None:
        return _signed(gap.mean, digits)
    star = " \\*" if gap.excludes_zero else ""
    return f"{_signed(gap.mean, digits)} ± {gap.half_width:.{digits}f}{star}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _signed(value: float, digits: int) -> str:
    written = f"{abs(value):.{digits}f}"
    return ("" if not float(written) else "−" if value < 0 else "+") + written


def _accuracy(task: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for key, label, factor, digits in _MEASURES:
        values = {way: [factor * t["ways"][way][key] for t in found] for way in _WAYS}
        cells = [f"{_mean(v):.{digits}f}" for v in values.values()]
        name = NAMES[task] if key == "error" else ""
        gap = _gap(values["integrated"], values["100 samples"], digits)
        rows.append(f"| {name} | {label} | {' | '.join(cells)} | {gap} |")
    return rows


def _uncertainty(task: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for kind, label in (("wrong", "wrong answers"), ("other", "other images")):
        if any(f"{kind}_by_entropy" not in t["ways"]["off"] for t in found):
            continue
        cells = [f"{_mean([t['ways']['off'][f'{kind}_by_entropy'] for t in found]):.3f}"]
        for way in ("50 samples", "integrated"):
            pair = [_mean([t["ways"][way][f"{kind}_by_{by}"] for t in found]) for by in ("entropy", "information")]
            cells.append(" / ".join(f"{value:.3f}" for value in pair))
        rows.append(f"| {NAMES[task] if kind == 'wrong' else ''} | {label} | {' | '.join(cells)} |")
    return rows


def _agreement(task: str, found: Sequence[Mapping[str, Any]]) -> str:
    cells = [f"{_mean([t['agreement'][key] for t in found]):.{digits}f}" for key, digits in _AGREEMENT]
    return f"| {NAMES[task]} | {' | '.join(cells)} |"
