"""One network, trained once and judged with dropout off, sampled, and integrated out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unitvar
from unitvar_reproduction import record
from unitvar_reproduction.experiments.expectation.tasks import TASKS
from unitvar_reproduction.experiments.expectation.weights import trained
from unitvar_reproduction.networks.architectures import evaluating
from unitvar_reproduction.training.loop import seeded

__all__ = [
    "DRAWS",
    "OFF",
    "ONE_PASS",
    "Answer",
    "Trial",
    "answers",
    "auroc",
    "calibration_error",
    "judged",
    "run_trial",
]

OFF, ONE_PASS, PLUG_IN = "off", "integrated", "integrated, softmax of the mean"
DRAWS = (1, 10, 50, 100)


@dataclass(frozen=True)
class Trial:
    """All that a result depends on."""

    task: str
    seed: int
    judged: int = 1000
    """Test images, and images of another kind."""


def run_trial(trial: Trial, data_dir: Path | None = None, weights: Path | None = None) -> dict[str, Any]:
    """Train, or load what was trained before, and judge."""
    task = TASKS[trial.task]
    split = task.load(data_dir)
    model, training = trained(trial.task, trial.seed, split, weights)
    order = torch.randperm(len(split.test), generator=torch.Generator().manual_seed(0))[: trial.judged]
    test = split.test[order]
    other = None
    if split.other is not None:
        chosen = torch.randperm(len(split.other), generator=torch.Generator().manual_seed(0))[: trial.judged]
        other = split.other[chosen]
    with seeded(1000 + trial.seed), torch.no_grad():
        found = dict(answers(model, test.images))
        strange = {} if other is None else dict(answers(model, other))
    rows = {
        way: {**judged(answer, test.labels), **_told_apart(answer, strange.get(way))} for way, answer in found.items()
    }
    config = {"trial": asdict(trial), "schedule": asdict(task.schedule), "images": task.images}
    return {
        "config": config,
        "ways": rows,
        "agreement": _agreement(found),
        **training,
        "environment": record.environment(),
    }


@dataclass(frozen=True)
class Answer:
    """Probabilities, classes last, and what the masks disagree on; None where there is one answer only."""

    probabilities: Tensor
    information: Tensor | None
    mean: Tensor
    var: Tensor | None


def _last(logits: Tensor) -> Tensor:
    """Put the classes last."""
    return logits.movedim(1, -1) if logits.dim() > 2 else logits


def answers(model: nn.Module, images: Tensor, batch: int = 250) -> Iterator[tuple[str, Answer]]:
    """Ask a network in every way."""
    with evaluating(model):
        logits = torch.cat([_last(model(part)) for part in torch.split(images, batch)])
        yield OFF, Answer(logits.softmax(-1), None, logits, None)
        expected = unitvar.expected(nn.Sequential(model, _ClassesLast()))
        parts = [expected.expect(part) for part in torch.split(images, batch)]
        mean, var = torch.cat([p.mean for p in parts]), torch.cat([p.var for p in parts])
        mixed = torch.cat([p.probabilities for p in parts])
        yield ONE_PASS, Answer(mixed, torch.cat([p.mutual_information for p in parts]), mean, var)
        yield PLUG_IN, Answer(mean.softmax(-1), None, mean, var)
        for module in model.modules():
            module.training = not isinstance(module, nn.BatchNorm2d)
        total, entropy = torch.zeros_like(logits), torch.zeros_like(logits[..., 0])
        first, second = torch.zeros_like(logits), torch.zeros_like(logits)
        for n in range(1, max(DRAWS) + 1):
            sample = torch.cat([_last(model(part)) for part in torch.split(images, batch)])
            p = sample.softmax(-1)
            total += p
            entropy += _entropy(p)
            first += sample - logits
            second += (sample - logits).square()
            if n in DRAWS:
                mean = first / n
                var = (second / n - mean.square()) * n / max(1, n - 1)
                information = _entropy(total / n) - entropy / n if n > 1 else None
                yield f"{n} samples", Answer(total / n, information, logits + mean, var)
        model.eval()


class _ClassesLast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _last(x)


def _entropy(p: Tensor) -> Tensor:
    nats: Tensor = -torch.special.xlogy(p, p).sum(-1)
    return nats


def judged(answer: Answer, labels: Tensor) -> dict[str, float]:
    """Return error, log loss, calibration error, and how well wrong answers are told from right ones."""
    p, labels = answer.probabilities.flatten(0, -2), labels.flatten()
    confidence, choice = p.max(-1)
    right = choice == labels
    loss = -p[torch.arange(len(p)), labels].clamp_min(1e-12).log().mean()
    found = {
        "error": 1 - right.double().mean().item(),
        "log_loss": loss.item(),
        "calibration_error": calibration_error(confidence, right),
        "wrong_by_entropy": auroc(_entropy(p), ~right),
    }
    if answer.information is not None:
        found["wrong_by_information"] = auroc(answer.information.flatten(), ~right)
    return {key: float(f"{value:.5g}") for key, value in found.items()}


def _told_apart(answer: Answer, strange: Answer | None) -> dict[str, float]:
    """Return how well images of another kind are told from those of the test set."""
    if strange is None:
        return {}
    pairs = {"other_by_entropy": (_entropy(answer.probabilities), _entropy(strange.probabilities))}
    if answer.information is not None and strange.information is not None:
        pairs["other_by_information"] = answer.information, strange.information
    found = {}
    for name, (own, foreign) in pairs.items():
        truth = torch.cat([torch.zeros_like(own), torch.ones_like(foreign)]).bool()
        found[name] = float(f"{auroc(torch.cat([own, foreign]), truth):.5g}")
    return found


def _agreement(found: dict[str, Answer]) -> dict[str, float]:
    """Compare mean and variance of the logits with those of the most samples.

    The sample mean's own error is taken off the squared distance.
    """
    n = max(DRAWS)
    most, ours, off = found[f"{n} samples"], found[ONE_PASS], found[OFF]
    assert most.var is not None
    assert ours.var is not None
    spread = most.var.mean()
    own = spread / n
    pair = torch.stack([ours.var.flatten().log(), most.var.flatten().log()])

    def distance(mean: Tensor) -> float:
        return float((((mean - most.mean).square().mean() - own).clamp_min(0) / spread).sqrt())

    return {
        "mean_off_by_deviations": distance(ours.mean),
        "mean_off_by_deviations_dropout_off": distance(off.mean),
        "variance_ratio": float(ours.var.mean() / most.var.mean()),
        "variance_correlation_of_logs": float(torch.corrcoef(pair)[0, 1]),
    }


def calibration_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """Return the expected calibration error: |accuracy - confidence|, averaged over bins by their share."""
    index = (confidence * bins).long().clamp(0, bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64)
    gaps.index_add_(0, index, right.double() - confidence.double())
    return float(gaps.abs().sum() / len(confidence))


def auroc(score: Tensor, positive: Tensor) -> float:
    """Return the probability that a positive scores above a negative, ties counted half."""
    if not positive.any() or positive.all():
        return float("nan")
    _, place, counts = torch.unique(score.double(), return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts - 1) / 2)[place]  # ties share their mean rank
    n, others = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * others))
