"""What the experiments cost at the paper's scale: arithmetic counted, hours of a GPU estimated.

The paper's VGGs and DenseNets need GPUs. Here a training step of each network is counted, operation by operation, and
multiplied by images, epochs and networks of ``--scale paper``. Hours are an estimate: they assume a sustained speed,
which nobody measured here. Seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from unitvar_reproduction import networks, record
from unitvar_reproduction.experiments.densenet.experiment import plan
from unitvar_reproduction.experiments.trainability import experiment as trainability
from unitvar_reproduction.experiments.vgg import experiment as vgg

__all__ = ["Budget", "Line", "lines", "step_flop"]

CLASSES = {"cifar10": 10, "cifar100": 100, "svhn": 10}
IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "svhn": 73_257}  # to train on, as published


@dataclass(frozen=True)
class Line:
    """Networks of one kind at the paper's scale."""

    command: str
    network: str
    networks: int
    epochs: int
    images: int
    make: Callable[[], nn.Module]

    @property
    def flop(self) -> float:
        """Operations of all trainings together."""
        return step_flop(self.make()) * self.images * self.epochs * self.networks


def lines() -> Iterator[Line]:
    """Give every kind of network that ``--scale paper`` trains on images of 32x32."""
    base = vgg.Vgg(scale="paper").base
    kept = IMAGES["cifar10"] - base.held_out
    yield Line("vgg", "VGG", vgg.planned_trials("paper", 1), base.epochs, kept, networks.vgg)
    short = trainability.Trainability(scale="paper").base
    yield Line("trainability", "VGG", trainability.planned_trials(), short.epochs, short.images, networks.vgg)
    for trial in plan("paper", 1, 1):
        make = partial(networks.DenseNet, trial.depth, trial.growth, 1 - trial.keep, classes=CLASSES[trial.dataset])
        name = f"L = {trial.depth}, {trial.dataset}, keep {trial.keep:g}"
        yield Line("densenet", name, 1, trial.epochs, IMAGES[trial.dataset], make)


def step_flop(model: nn.Module, images: int = 2) -> float:
    """Count the floating-point operations of a training step, forward and backward, for each image.

    A multiplication and an addition count as two; what is not a convolution or a matrix product does not count.
    """
    x, y = torch.empty(images, 3, 32, 32, device="meta"), torch.empty(images, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(F.cross_entropy(model.to("meta")(x), y))
    return float(counter.get_total_flops()) / images


@dataclass(frozen=True)
class Budget:
    """What the experiments cost at the paper's scale: operations counted, GPU hours estimated."""

    out: Path = record.OUT
    """Folder for budget.json."""

    teraflops: float = 10.0
    """What a GPU sustains on these networks, in 10¹² operations a second. An assumption: set your own."""

    def __post_init__(self) -> None:
        if not self.teraflops > 0:
            raise ValueError(f"--teraflops {self.teraflops:g} is not above 0; take what your GPU sustains, such as 10.")

    def run(self, console: Console) -> None:
        """Count, print and save."""
        table = Table(title="The paper's scale", title_justify="left", box=box.SIMPLE, pad_edge=False, padding=0)
        for head in ("command", "network"):
            table.add_column(head, no_wrap=True)
        for head in ("× epochs", "GFLOP/image", "PFLOP", "hours"):
            table.add_column(head, justify="right", no_wrap=True)
        rows = []
        for line in lines():
            gigaflop = step_flop(line.make()) / 1e9
            petaflop = line.flop / 1e15
            hours = petaflop / self.teraflops / 3.6
            table.add_row(
                line.command,
                line.network,
                f"{line.networks} × {line.epochs}",
                f"{gigaflop:.2f}",
                f"{petaflop:,.0f}",
                f"{hours:.1f}",
            )
            row = {name: getattr(line, name) for name in ("command", "network", "networks", "epochs", "images")}
            rows.append({**row, "gigaflop_an_image": gigaflop, "petaflop": petaflop, "gpu_hours": hours})
        console.print(table)
        console.print(
            f"PFLOP and hours are of all networks together, on a GPU that sustains {self.teraflops:g} TFLOP/s."
        )
        config = {"teraflops": self.teraflops}
        payload = {"experiment": "budget", "config": config, "rows": rows, "environment": record.environment()}
        console.print(f"Saved {record.save(self.out / 'budget.json', payload)}", soft_wrap=True)
