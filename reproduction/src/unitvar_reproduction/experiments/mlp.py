"""One fully connected network, trained once: the trial of the MNIST and of the digits experiment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unitvar_reproduction import data, networks, record
from unitvar_reproduction.networks.initialisations import initialise_
from unitvar_reproduction.training.loop import Schedule, evaluate, seeded, train

__all__ = ["POINTS", "Trial", "load", "network", "run_trial"]

POINTS = 3  # of the curve, in each epoch, as the authors' release has them


@dataclass(frozen=True)
class Trial:
    """All that a result depends on; its file is named by the hash of these fields, so they only ever grow by need."""

    dataset: str
    activation: str
    keep: float
    init: str
    rate: float
    seed: int
    inputs: str = "raw"
    """``raw``, as the data come, or ``standardised`` by what is left to train on."""

    epochs: int = 25
    batch: int = 64
    held_out: int = 5000
    width: int = 256
    hidden: int = 7
    batchnorm: bool = False
    precision: str = "float32"


def load(trial: Trial, data_dir: Path | None) -> tuple[data.Images, data.Images, data.Images]:
    """Return what to train on, to validate on (drawn by the trial's seed) and to test on."""
    if trial.dataset == "digits":
        everything, test = data.digits(trial.seed)
    elif trial.dataset == "mnist":
        everything, test = data.mnist(data_dir)
    else:
        raise ValueError(f"dataset={trial.dataset!r} is not one of 'digits', 'mnist'.")
    validation, training = everything.split(trial.held_out, seed=trial.seed)
    if trial.inputs == "standardised":
        training, validation, test = data.standardised(training, validation, test)
    elif trial.inputs != "raw":
        raise ValueError(f"inputs={trial.inputs!r} is not one of 'raw', 'standardised'.")
    return training, validation, test


def network(trial: Trial, example: torch.Tensor) -> torch.nn.Sequential:
    """Build the network and draw its weights from the trial's seed."""
    model = networks.mlp(
        example[0].numel(),
        1 - trial.keep,
        activation=trial.activation,
        batchnorm=trial.batchnorm,
        width=trial.width,
        hidden=trial.hidden,
    )
    generator = torch.Generator().manual_seed(trial.seed)
    initialise_(model, trial.init, activation=trial.activation, keep=trial.keep, example=example, generator=generator)
    return networks.quicken_(model)


def run_trial(
    trial: Trial,
    *,
    data_dir: Path | None = None,
    device: str = "cpu",
    compiled: bool = False,
    judge: Callable[[nn.Module, data.Images], object] = lambda model, test: None,
) -> dict[str, Any]:
    """Train one network and measure it.

    Args:
        trial: what to train.
        data_dir: where the data are; default: the cache.
        device: where to train.
        compiled: whether to compile the network first.
        judge: called with the network of the best validation loss, and the test images.

    Returns:
        The curve at POINTS equally spaced points an epoch, None where it is not finite; the epoch at which training
        diverged, or None; error and log loss on the test set at the end and at the point of the best validation loss.
    """
    start = time.perf_counter()
    training, validation, test = (part.to(device) for part in load(trial, data_dir))
    with seeded(trial.seed):
        model = network(trial, training.images[:1000].cpu()).to(device)
    best, kept = math.inf, {name: value.clone() for name, value in model.state_dict().items()}
    losses: list[float] = []

    def at_point() -> None:
        nonlocal best
        losses.append(evaluate(model, validation)["log_loss"])
        if losses[-1] < best:
            best = losses[-1]
            for name, value in model.state_dict().items():
                kept[name].copy_(value)

    schedule = Schedule(
        trial.epochs, trial.rate, trial.batch, weight_decay=0, drops=(), optimiser="adam", precision=trial.precision
    )
    curve = train(model, training, schedule, seed=trial.seed, points=POINTS, at_point=at_point, compiled=compiled)
    end = evaluate(model, test)
    model.load_state_dict(kept)
    judge(model, test)
    return {
        "curve": {"training": record.rounded(curve.training), "validation": record.rounded(losses)},
        "diverged": curve.diverged,
        "test": {"end": record.finite(end), "best": record.finite(evaluate(model, test))},
        "images": {"training": len(training), "validation": len(validation), "test": len(test)},
        "seconds": round(time.perf_counter() - start, 1),
    }
