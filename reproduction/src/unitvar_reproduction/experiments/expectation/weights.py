"""Trained weights, kept outside the results: judging a network again costs no training."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pooch
import torch
from torch import nn

import unitvar
from unitvar_reproduction import record
from unitvar_reproduction.experiments.expectation.tasks import TASKS, Split
from unitvar_reproduction.training.loop import seeded, train

__all__ = ["cached", "trained"]


def cached() -> Path:
    """Return the folder in the user's cache."""
    return Path(pooch.os_cache("unitvar")) / "expectation"


def trained(name: str, seed: int, split: Split, folder: Path | None) -> tuple[nn.Module, dict[str, Any]]:
    """Return a trained network and how its training went: from the folder, if it was trained in the same way.

    Args:
        name: of the task.
        seed: of weights, order and dropout.
        split: the task's data.
        folder: where weights are kept; None keeps none.
    """
    task = TASKS[name]
    how = {"schedule": asdict(task.schedule), "images": task.images, "data": len(split.training)}
    path = None if folder is None else folder / f"{name}_{seed}.pt"
    with seeded(seed):
        model = task.build()
        if path is not None and path.exists():
            saved = torch.load(path, weights_only=True)
            if saved["how"] == how:
                model.load_state_dict(saved["model"])
                return model, saved["training"]
        _, images = split.training.split(len(split.training) - task.images, seed=seed)
        unitvar.initialize_(model, images.images[:64])
    started = time.perf_counter()
    curve = train(model, images, task.schedule, seed=seed)
    minutes = (time.perf_counter() - started) / 60
    training = {"last_training_loss": curve.training[-1], "minutes": round(minutes, 2)}
    if path is not None:
        with record.replacing(path) as file:
            torch.save({"how": how, "model": model.state_dict(), "training": training}, file)
    return model, training
