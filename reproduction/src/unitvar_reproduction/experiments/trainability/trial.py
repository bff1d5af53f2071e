"""One short training of the paper's VGG, on any set of images brought to 32x32 and three channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unitvar_reproduction import data, networks, record
from unitvar_reproduction.experiments.vgg.trial import initialise_, signals
from unitvar_reproduction.networks.fill import fill_
from unitvar_reproduction.sweep.staged import stopwatch, time_spent
from unitvar_reproduction.training.loop import evaluate, seeded, train
from unitvar_reproduction.training.schedule import Schedule

__all__ = [
    "ADVISED",
    "DATASETS",
    "INITS",
    "MARGIN",
    "NAMES",
    "SIDE",
    "Trial",
    "chance",
    "first_moved",
    "network",
    "run_trial",
]

NAMES = {
    "paper": "paper",
    "he": "He",
    "default": "torch's default",
    "lsuv": "LSUV",
    "scaled": "unitvar, plan",
    "measured": "unitvar, measured",
    "orthonormal": "unitvar, orthonormal",
    "advised": "unitvar, advised gain",
}
"""Initialisation → what a reader calls it; the last four are ``initialize_`` with its defaults, and one option each."""

ADVISED = {"nesterov": "gain-0.8", "adam": "gain-0.5"}
"""Optimiser → the gain that the plan of this network advises."""

INITS = tuple(NAMES)
DATASETS = ("mnist", "svhn", "cifar10")
SIDE = 32
MARGIN = 0.1  # nats below guessing, at which the training loss has moved


@dataclass(frozen=True)
class Trial:
    """All that a result depends on; its file is named by the hash of these fields."""

    dataset: str
    optimiser: str
    rate: float
    init: str
    seed: int
    width: int = 64
    epochs: int = 1
    batch: int = 128
    images: int = 45_000
    """Images to train on, drawn by the seed."""

    judged: int = 5000
    """Images to choose the rate by, drawn by the seed, and at most so many to test on."""

    points: int = 10
    """Points of the curves in an epoch."""

    precision: str = "float32"
    patience: int | None = None
    """Epochs after which a network whose training loss has not moved is stopped; default: none is."""


def load(trial: Trial, data_dir: Path | None) -> tuple[data.Images, data.Images, data.Images]:
    """Return what to train on, to validate on and to test on: 32x32, three channels, each standardised."""
    if trial.dataset not in DATASETS:
        raise ValueError(f"dataset={trial.dataset!r} is not one of {', '.join(map(repr, DATASETS))}.")
    everything, test = data.LOADERS[trial.dataset](data_dir)
    if len(everything) <= trial.judged:
        raise ValueError(f"{len(everything)} images cannot have {trial.judged} held out; hold out fewer.")
    # Not split, which would copy the images that nobody wants.
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(trial.seed))
    validation, training = (everything[part] for part in (order[: trial.judged], order[trial.judged :][: trial.images]))
    parts = [coloured(part) for part in (training, validation, test[: trial.judged])]
    training, validation, test = data.standardised(*parts)
    return training, validation, test


def coloured(images: data.Images) -> data.Images:
    """Pad images with zeros to 32x32, and repeat a single channel three times."""
    height, width = images.images.shape[2:]
    down, right = SIDE - height, SIDE - width
    padded = F.pad(images.images, (right // 2, right - right // 2, down // 2, down - down // 2))
    return data.Images(padded.expand(-1, 3, -1, -1), images.labels)


def network(trial: Trial, example: Tensor) -> nn.Sequential:
    """Build the network and draw its weights from the trial's seed."""
    with seeded(trial.seed):
        model = networks.vgg(trial.width)
        if trial.init == "paper":
            initialise_(model, "paper", example=example, generator=torch.Generator().manual_seed(trial.seed))
        elif trial.init in INITS:
            fill_(model, ADVISED[trial.optimiser] if trial.init == "advised" else trial.init, example)
        else:
            raise ValueError(f"init={trial.init!r} is not one of {', '.join(map(repr, INITS))}.")
    # Both make a step cheaper on CPUs: docs/benchmarks.md.
    return networks.quicken_(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def chance(labels: Tensor) -> dict[str, float]:
    """Return the least error and the least log loss that need no look at the images."""
    shares = labels.bincount().double() / len(labels)
    return {"error": 1 - shares.max().item(), "log_loss": torch.special.entr(shares).sum().item()}


def update_signals(model: nn.Sequential, batch: data.Images, *, seed: int) -> list[float | None]:
    """Return the root mean square of the gradient of each weight before training, by depth, with dropout on."""
    weights = [m.weight for m in model if isinstance(m, (nn.Conv2d, nn.Linear))]
    model.train()
    with seeded(seed):
        gradients = torch.autograd.grad(F.cross_entropy(model(batch.images), batch.labels), weights)
    return record.rounded(gradient.square().mean().sqrt().item() for gradient in gradients)


def first_moved(losses: Sequence[float | None], guessing: float) -> int | None:
    """Return at which point of a curve the training loss was first below guessing's, by MARGIN; None if at none."""
    below = guessing - MARGIN
    return next((point for point, loss in enumerate(losses, 1) if loss is not None and loss < below), None)


def schedule(trial: Trial) -> Schedule:
    """Return the paper's optimisers and penalty; the rate stays, so that a rate means one rate."""
    return Schedule(
        trial.epochs,
        trial.rate,
        trial.batch,
        weight_decay=1e-3,  # the paper's penalty of 5e-4 on squares
        decay_vectors=False,
        drops=(),
        optimiser=trial.optimiser,
        precision=trial.precision,
    )


def run_trial(
    trial: Trial,
    *,
    data_dir: Path | None = None,
    checkpoint: Path | None = None,
    device: str = "cpu",
    compiled: bool = False,
) -> dict[str, Any]:
    """Train one network for some steps and judge it at the end, with dropout off and on.

    Args:
        trial: what to train.
        data_dir: where the data are; default: the cache.
        checkpoint: where to save training after every epoch, and to go on from.
        device: where to train.
        compiled: whether to compile the network first.

    Returns:
        Before training: E z² and the gradient's root mean square at each weight. On the way: the training loss and the
        first layer's gradient. At the end: error and log loss with dropout off and on; what guessing would give; where
        training diverged, or None; after how many epochs it was stopped because its loss had not moved, or None.
    """
    training, validation, test = (part.to(device) for part in load(trial, data_dir))
    example = training[:256]
    model = network(trial, example.images.cpu()).to(device)
    start = {**signals(model, example.images, seed=trial.seed)}
    start["gradient"] = update_signals(model, example, seed=trial.seed)
    notes: dict[str, Any] = {"gradient": []}
    first = next(m for m in model if isinstance(m, nn.Conv2d))
    note_time = stopwatch(notes)

    def at_point() -> None:
        gradient = first.weight.grad
        notes["gradient"].append(float("nan") if gradient is None else gradient.square().mean().sqrt().item())

    guessing = chance(training.labels)

    def hopeless(losses: Sequence[float]) -> bool:
        waited = trial.patience is not None and len(losses) >= trial.patience * trial.points
        return waited and first_moved(losses, guessing["log_loss"]) is None

    curve = train(
        model,
        training,
        schedule(trial),
        seed=trial.seed,
        enough=hopeless,
        points=trial.points,
        at_point=at_point,
        after_epoch=lambda epoch: note_time(),
        notes=notes,
        checkpoint=checkpoint,
        compiled=compiled,
    )
    judged: dict[str, Any] = {}
    if curve.diverged is None:
        for name, images in (("validation", validation), ("test", test)):
            judged[name] = record.finite(evaluate(model, images))
        with seeded(trial.seed):
            judged["dropout_on"] = record.finite(evaluate(model, validation, dropout=True))
    note_time()
    return {
        "start": start,
        "curve": {"training": record.rounded(curve.training), "gradient": record.rounded(notes["gradient"])},
        "judged": judged,
        "diverged": curve.diverged,
        "stopped": None if curve.diverged or not hopeless(curve.training) else len(curve.training) // trial.points,
        "steps": math.ceil(len(training) / trial.batch) * trial.epochs,
        "chance": {"training": guessing, "validation": chance(validation.labels)},
        "images": {"training": len(training), "validation": len(validation), "test": len(test)},
        **time_spent(notes),
    }
