"""One network, initialised one way and trained once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unitvar_reproduction import networks, record
from unitvar_reproduction.data import tasks
from unitvar_reproduction.experiments.training.families import FAMILIES
from unitvar_reproduction.networks.fill import fill_
from unitvar_reproduction.training.loop import seeded
from unitvar_reproduction.training.steps import Steps, judge_scores, train_steps

__all__ = ["Trial", "network", "run_trial"]

EXAMPLES = 64  # that an initialisation may look at


@dataclass(frozen=True)
class Trial:
    """All that a result depends on."""

    family: str
    optimiser: str
    init: str
    rate: float
    seed: int
    steps: int = 2000


def network(trial: Trial, example: torch.Tensor) -> torch.nn.Module:
    """Build the network and draw its weights from the trial's seed."""
    with seeded(trial.seed):
        model = FAMILIES[trial.family].make()
        fill_(model, trial.init, example)
    return networks.quicken_(model)


def run_trial(trial: Trial, *, data_dir: Path | None = None) -> dict[str, Any]:
    """Train one network and judge it on both held-out sets.

    Returns:
        Log loss and error on either set at the end, None where they are not finite; the curve of the training loss,
        whose first point is the first step; the step at which training diverged, or None.
    """
    start = time.perf_counter()
    family = FAMILIES[trial.family]
    task = tasks.load(family.task, data_dir)
    model = network(trial, task.training.inputs[:EXAMPLES])
    how = Steps(trial.steps, trial.rate, family.batch, trial.optimiser, clip=family.clip)
    curve, diverged = train_steps(model, task.training, how, seed=trial.seed)
    judged = {
        name: record.finite(judge_scores(model, part) if diverged is None else {"log_loss": float("nan")})
        for name, part in (("tuning", task.tuning), ("report", task.report))
    }
    seconds = round(time.perf_counter() - start, 1)
    return {**judged, "curve": record.rounded(curve), "diverged": diverged, "seconds": seconds}
