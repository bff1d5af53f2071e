"""One VGG, trained once on CIFAR-10."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unitvar import initialize_
from unitvar_reproduction import data, networks, record
from unitvar_reproduction.networks.architectures import drop_, evaluating
from unitvar_reproduction.sweep.staged import stopwatch, time_spent
from unitvar_reproduction.training.loop import evaluate, seeded, train
from unitvar_reproduction.training.schedule import Schedule

__all__ = ["INITS", "NAMES", "POINTS", "Trial", "initialise_", "run_trial", "signals"]

NAMES = {"paper": "paper", "he": "He", "plan": "unitvar, plan", "measured": "unitvar, measured"}
INITS = tuple(NAMES)
POINTS = 9  # of the training loss and of the gradient, in an epoch


@dataclass(frozen=True)
class Trial:
    """All that a result depends on; its file is named by the hash of these fields."""

    optimiser: str
    rate: float
    init: str
    seed: int
    width: int = 64
    epochs: int = 150
    batch: int = 128
    augment: bool = True
    held_out: int = 5000
    precision: str = "float32"


def load(trial: Trial, data_dir: Path | None) -> tuple[data.Images, data.Images, data.Images]:
    """Return what to train on, to validate on (drawn by the trial's seed) and to test on, channels standardised."""
    everything, test = data.cifar10(data_dir)
    validation, training = everything.split(trial.held_out, seed=trial.seed)
    training, validation, test = data.standardised(training, validation, test)
    return training, validation, test


def initialise_(model: nn.Sequential, name: str, *, example: Tensor, generator: torch.Generator) -> nn.Sequential:
    """Fill the weights of a VGG in place, and set its biases to zero.

    ``paper`` is that of the release: orthonormal, times sqrt(p / E f²), blind to pooling and borders; where there are
    more filters than inputs to each, as in the first convolution (64 and 27), it is the columns that are orthonormal,
    so that the variance starts at 0.42 (docs/errata.md, 5). ``he`` is N(0, 2 / fan-in). ``plan`` is
    :func:`unitvar.initialize_` with orthonormal weights, which follows pooling and borders, and ``measured`` its method
    of that name.

    Args:
        model: as :func:`unitvar_reproduction.networks.architectures.vgg` builds it.
        name: one of INITS.
        example: images to train on, for ``plan`` and ``measured``.
        generator: the source of randomness.

    Returns:
        The model.
    """
    if name not in INITS:
        raise ValueError(f"init={name!r} is not one of {', '.join(map(repr, INITS))}.")
    for module in model:
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)
    if name in ("plan", "measured"):
        method = "analytic" if name == "plan" else "measured"
        with seeded(generator.initial_seed()):  # measuring drops units
            # inputs: as the recorded trials had it
            initialize_(
                model, example, method=method, distribution="orthonormal", inputs="standard", generator=generator
            )
        return model
    keep = None  # until the first weight is met
    for module in model:
        if isinstance(module, nn.Dropout) and keep is not None:
            keep *= 1 - module.p
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            if name == "he":
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            else:
                # Not ours, which would restore the variance of the first.
                gain = 1.0 if keep is None else math.sqrt(keep / 0.5)
                nn.init.orthogonal_(module.weight, gain, generator=generator)
            keep = 1.0
    return model


def network(trial: Trial, example: Tensor) -> nn.Sequential:
    """Build the network and draw its weights from the trial's seed."""
    model = networks.vgg(trial.width)
    initialise_(model, trial.init, example=example, generator=torch.Generator().manual_seed(trial.seed))
    # Both make a step cheaper on CPUs: docs/benchmarks.md.
    return networks.quicken_(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@torch.no_grad()
def signals(model: nn.Sequential, images: Tensor, *, seed: int) -> dict[str, list[float | None]]:
    """Return E z² of what each weight puts out, by depth, with dropout on as in training, and off as in testing."""
    seen: list[float] = []
    weighted = [module for module in model if isinstance(module, (nn.Conv2d, nn.Linear))]
    hooks = [m.register_forward_hook(lambda _, __, out: seen.append(out.square().mean().item())) for m in weighted]
    try:
        with evaluating(model):
            model(images)
            off = record.rounded(seen)
            seen.clear()
            with seeded(seed):
                drop_(model)(images)
    finally:
        for hook in hooks:
            hook.remove()
    return {"on": record.rounded(seen), "off": off}


def schedule(trial: Trial) -> Schedule:
    """Return the paper's schedule, drops after two thirds and five sixths, at any length."""
    return Schedule(
        trial.epochs,
        trial.rate,
        trial.batch,
        weight_decay=1e-3,  # the paper's penalty of 5e-4 on squares
        decay_vectors=False,
        drops=(2 / 3, 5 / 6),
        shift=4 if trial.augment else 0,
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
    judge: Callable[[nn.Module, data.Images], object] = lambda model, test: None,
) -> dict[str, Any]:
    """Train one network and measure it after every epoch.

    Args:
        trial: what to train.
        data_dir: where the data are; default: the cache.
        checkpoint: where to save training after every epoch, and to go on from.
        device: where to train.
        compiled: whether to compile the network first.
        judge: called with the network at the end, and the test images.

    Returns:
        E z² by layer at the start, with dropout on and off; training loss and the root mean square of the first layer's
        gradient at POINTS points an epoch; error and log loss on the validation and the test set after each epoch, and
        at the end on the validation set with dropout left on and on the test set with dropout integrated out; where
        training diverged, or None.
    """
    training, validation, test = (part.to(device) for part in load(trial, data_dir))
    with seeded(trial.seed):
        model = network(trial, training.images[:256].cpu()).to(device)
    start = signals(model, training.images[:256], seed=trial.seed)
    notes: dict[str, Any] = {"gradient": [], "validation": [], "test": []}
    first = next(m for m in model if isinstance(m, nn.Conv2d))
    note_time = stopwatch(notes)

    def at_point() -> None:
        gradient = first.weight.grad
        notes["gradient"].append(float("nan") if gradient is None else gradient.square().mean().sqrt().item())

    def after_epoch(epoch: int) -> None:
        notes["validation"].append(evaluate(model, validation))
        notes["test"].append(evaluate(model, test))
        note_time()

    curve = train(
        model,
        training,
        schedule(trial),
        seed=trial.seed,
        points=POINTS,
        at_point=at_point,
        after_epoch=after_epoch,
        notes=notes,
        checkpoint=checkpoint,
        compiled=compiled,
    )
    with seeded(trial.seed):
        noisy = evaluate(model, validation, dropout=True) if curve.diverged is None else None
    expected = evaluate(model, test, integrated=True) if curve.diverged is None else None
    note_time()
    judge(model, test)
    return {
        "start": start,
        "curve": {"training": record.rounded(curve.training), "gradient": record.rounded(notes["gradient"])},
        "validation": [record.finite(found) for found in notes["validation"]],
        "test": [record.finite(found) for found in notes["test"]],
        "dropout_on": noisy and record.finite(noisy),
        "integrated": expected and record.finite(expected),
        "diverged": curve.diverged,
        "images": {"training": len(training), "validation": len(validation), "test": len(test)},
        **time_spent(notes),
    }
