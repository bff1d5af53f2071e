"""One DenseNet, trained once, its BatchNorm re-estimated in four ways half-way and at the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unitvar import reestimated_bn
from unitvar_reproduction import data, networks, record
from unitvar_reproduction.sweep.staged import stopwatch, time_spent
from unitvar_reproduction.training.batchnorm import Batches, in_every_variant
from unitvar_reproduction.training.loop import averages, evaluate, judge, seeded, train
from unitvar_reproduction.training.replicas import replica
from unitvar_reproduction.training.schedule import Schedule

__all__ = ["CLASSES", "Trial", "network", "run_trial", "schedule"]

CLASSES = {"cifar10": 10, "cifar100": 100, "svhn": 10}
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
SIZES = (4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Trial:
    """All that a result depends on; its file is named by the hash of these fields."""

    dataset: str
    depth: int
    growth: int
    keep: float
    seed: int
    epochs: int = 300
    images: int | None = None
    """Images to train on, drawn by the seed; None for all there are."""

    batch: int = 64
    sensitivity: bool = False
    """Whether to re-estimate with few batches, and with small and large ones, too."""

    precision: str = "float32"
    reestimated: int | None = None
    """Images to re-estimate from, the first of those to train on; None for all of them."""


def load(trial: Trial, data_dir: Path | None) -> tuple[data.Images, data.Images, int]:
    """Return what to train on and what to test on, channels standardised, and of how many the former were drawn."""
    if trial.dataset not in CLASSES:
        raise ValueError(f"dataset={trial.dataset!r} is not one of {', '.join(map(repr, CLASSES))}.")
    everything, test = data.LOADERS[trial.dataset](data_dir)
    there = len(everything)
    if trial.images is not None and trial.images < there:
        everything, _ = everything.split(trial.images, seed=trial.seed)
    training, test = data.standardised(everything, test)
    return training, test, there


def network(trial: Trial) -> nn.Sequential:
    """Build the network and draw its weights, He's as in the DenseNet paper, from the trial's seed."""
    with seeded(trial.seed):
        model = networks.DenseNet(trial.depth, trial.growth, 1 - trial.keep, classes=CLASSES[trial.dataset])
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    # Both make a step cheaper on CPUs: docs/benchmarks.md.
    return networks.quicken_(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def schedule(trial: Trial) -> Schedule:
    """Return the paper's schedule, at any length."""
    return Schedule(trial.epochs, 0.1, trial.batch, forget=5, precision=trial.precision)


def halfway(trial: Trial) -> int:
    """Return how many epochs are done just before the first drop of the rate."""
    plan = schedule(trial)
    return next((epoch for epoch in range(trial.epochs) if plan.rate_at(epoch) < plan.rate), trial.epochs)


def run_trial(
    trial: Trial,
    *,
    data_dir: Path | None = None,
    checkpoint: Path | None = None,
    device: str = "cpu",
    compiled: bool = False,
) -> dict[str, Any]:
    """Train one network and measure every variant just before the first drop of the rate, and at the end.

    Args:
        trial: what to train.
        data_dir: where the data are; default: the cache.
        checkpoint: where to save training after every epoch, and to go on from.
        device: where to train.
        compiled: whether to compile the network first.

    Returns:
        The training loss of each epoch; error and log loss on the test set in each variant at each moment; how they
        depend on the number and the size of the batches, if asked for; where training diverged, or None.
    """
    training, test, there = load(trial, data_dir)
    training, test = training.to(device), test.to(device)
    model = network(trial).to(device)
    place = replica()
    own = training[place.rank :: place.count]  # re-estimation merges what the processes find
    batches = Batches(own[: trial.reestimated], trial.batch)
    notes: dict[str, Any] = {"measured": {}}
    note_time = stopwatch(notes)

    def after_epoch(epoch: int) -> None:
        moment = {halfway(trial): "halfway", trial.epochs: "end"}.get(epoch)
        if moment:
            notes["measured"][moment] = compare(model, batches, test, seed=trial.seed + epoch)
        note_time()

    curve = train(
        model,
        training,
        schedule(trial),
        seed=trial.seed,
        after_epoch=after_epoch,
        notes=notes,
        checkpoint=checkpoint,
        compiled=compiled,
    )
    wanted = trial.sensitivity and curve.diverged is None
    by_batches = sensitivity(model, training, test, trial) if wanted else None
    note_time()
    return {
        "curve": {"training": record.rounded(curve.training)},
        "measured": notes["measured"],
        "sensitivity": by_batches,
        "diverged": curve.diverged,
        # With a part of a data set in its folder, there are fewer to draw from, and others are drawn.
        "images": {"training": len(training), "of": there, "test": len(test)},
        **time_spent(notes),
    }


def compare(model: nn.Module, batches: Batches, test: data.Images, *, seed: int) -> dict[str, dict[str, Any]]:
    """Measure every variant; count the images that each gets wrong and an earlier one right, and the reverse."""
    with seeded(seed):  # the dropout of the variant that has it
        judged = in_every_variant(model, batches, lambda: judge(model, test))
    found: dict[str, dict[str, Any]] = {}
    for name, (wrong, loss) in judged.items():
        changed = {
            other: replica().sum(torch.stack([(wrong & ~judged[other][0]).sum(), (~wrong & judged[other][0]).sum()]))
            for other in found
        }
        found[name] = {
            **averages(wrong, loss),
            "changed": {
                other: dict(zip(("worse", "better"), pair.tolist(), strict=True)) for other, pair in changed.items()
            },
        }
    return found


def sensitivity(model: nn.Module, training: data.Images, test: data.Images, trial: Trial) -> dict[str, Any]:
    """Re-estimate both moments from so many batches of the trial's size, and from all in batches of each size."""

    def measured(size: int, most: int | None = None) -> dict[str, float]:
        batches = Batches(training, size, seed=trial.seed + 1)
        # Every process for itself: of so many batches each, there would be more in all.
        with reestimated_bn(model, batches, max_batches=most, group=False):
            return evaluate(model, test)

    whole = -(-len(training) // trial.batch)
    counts = [count for count in COUNTS if count < whole] + [whole]
    sizes = [size for size in SIZES if size <= len(training)]
    return {
        "batches": [{"batches": count, **measured(trial.batch, count)} for count in counts],
        "sizes": [{"size": size, **measured(size)} for size in sizes],
    }
