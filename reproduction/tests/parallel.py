"""What the processes of a torchrun do in test_replicas; each saves what it found."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from unitvar_reproduction.data.images import Images
from unitvar_reproduction.experiments.densenet import trial as densenet
from unitvar_reproduction.sweep.run import sweep, trial_path
from unitvar_reproduction.training.loop import Schedule, evaluate, seeded, train
from unitvar_reproduction.training.replicas import joined, leave, replica

SCHEDULE = Schedule(4, 0.05, 24, shift=1)
DATA = Images(
    torch.randn(101, 1, 8, 8, generator=torch.Generator().manual_seed(0)),
    torch.randint(10, (101,), generator=torch.Generator().manual_seed(1)),
)


@dataclass(frozen=True)
class Trial:
    """A small network."""

    seed: int
    dropout: float


def network(trial: Trial, *, batchnorm: bool = False) -> nn.Sequential:
    with seeded(trial.seed):
        norm = [nn.BatchNorm1d(32)] if batchnorm else []
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), *norm, nn.Tanh(), nn.Dropout(trial.dropout), nn.Linear(32, 10)
        ).double()


def run_trial(trial: Trial) -> dict[str, Any]:
    data = Images(DATA.images.double(), DATA.labels)
    model = network(trial)
    curve = train(model, data, SCHEDULE, seed=trial.seed, points=2)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"curve": list(curve.training), "weights": weights.tolist(), "test": evaluate(model, data)}


class StoppedError(Exception):
    """Training was stopped on purpose."""


def resumed(path: Path, stop: int | None) -> list[torch.Tensor]:
    """Train with dropout, to the end or until a stop after some epochs."""
    model = network(Trial(0, 0.5), batchnorm=True).float()

    def after_epoch(epoch: int) -> None:
        if epoch == stop:
            raise StoppedError

    try:
        train(model, DATA, SCHEDULE, seed=0, checkpoint=path, after_epoch=after_epoch)
    except StoppedError:
        return []
    return list(model.state_dict().values())


def by_batches() -> dict[str, Any]:
    """Measure how the error of an untrained DenseNet depends on the batches."""
    data = Images(DATA.images.repeat(1, 3, 1, 1), DATA.labels)
    trial = densenet.Trial("cifar10", 7, 4, 0.8, 0, batch=48)
    return densenet.sensitivity(densenet.network(trial), data, data, trial)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    trials = [Trial(0, 0.0), Trial(1, 0.0), Trial(0, 0.5)]
    with joined() as place:
        records = sweep(run_trial, trials, folder / "trials", Console(quiet=True), label="parallel")
        whole = resumed(folder / "whole.pt", None)
        resumed(folder / "stopped.pt", 3)
        found = {
            "place": (place.rank, place.count, replica() == place),
            "records": [{key: r[key] for key in ("curve", "weights", "test")} for r in records],
            "files": sorted(file.name for file in (folder / "trials").iterdir()),
            "expected": sorted(trial_path(folder, trial).name for trial in trials),
            "whole": whole,
            "by batches": by_batches(),
            "resumed": resumed(folder / "stopped.pt", None),
        }
        with place.in_turn():
            found["before"] = sorted(file.name for file in folder.glob("*.turn"))
            (folder / f"{place.rank}.turn").touch()
        torch.save(found, folder / f"{place.rank}.pt")
    leave(0)
