"""The subcommands of the command line, and the one that runs them all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import torch
import tyro
from rich.console import Console

from unitvar_reproduction.experiments.backward import Backward
from unitvar_reproduction.experiments.budget import Budget
from unitvar_reproduction.experiments.cost import Cost
from unitvar_reproduction.experiments.densenet.experiment import Densenet
from unitvar_reproduction.experiments.depth import Depth
from unitvar_reproduction.experiments.digits import Digits
from unitvar_reproduction.experiments.expectation.experiment import Expectation
from unitvar_reproduction.experiments.expectation.paper import Integrated
from unitvar_reproduction.experiments.factors import Factors
from unitvar_reproduction.experiments.federated import Federated
from unitvar_reproduction.experiments.forward import Forward
from unitvar_reproduction.experiments.healthy import Healthy
from unitvar_reproduction.experiments.merging import Merging
from unitvar_reproduction.experiments.mnist import Mnist
from unitvar_reproduction.experiments.placement import Placement
from unitvar_reproduction.experiments.reestimation import Reestimation
from unitvar_reproduction.experiments.shift import Shift
from unitvar_reproduction.experiments.stability import Stability
from unitvar_reproduction.experiments.table1 import Table1
from unitvar_reproduction.experiments.tolerance import Tolerance
from unitvar_reproduction.experiments.trainability.experiment import Trainability
from unitvar_reproduction.experiments.training.experiment import Training
from unitvar_reproduction.experiments.verdicts.experiment import Verdicts
from unitvar_reproduction.experiments.vgg.experiment import Vgg
from unitvar_reproduction.experiments.zoo import Zoo
from unitvar_reproduction.record import OUT
from unitvar_reproduction.report import Report, headlines

__all__ = ["COMMANDS", "Reproduce"]

Experiment: TypeAlias = Table1 | Stability | Forward | Backward | Factors | Digits | Reestimation | Cost | Report


HEADLINES = ("table1", "backward", "reestimation")


@dataclass(frozen=True)
class Reproduce:
    """Every table and figure that embedded data can show, at a size for two CPU cores, and the report."""

    out: Path = OUT
    """Folder for the results and the report."""

    workers: int | None = None
    """Processes; default: one for each core."""

    quick: bool = False
    """Only check that everything runs: the sizes are too small for conclusions."""

    def run(self, console: Console) -> None:
        """Run each experiment in turn, then write the report and say what was found."""
        parts = self._parts()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # on a busy machine two take twice the time of the processor, waiting for each other
        try:
            for i, experiment in enumerate(parts, 1):
                console.print(f"[bold]{i} of {len(parts)}: {type(experiment).__name__.lower()}[/bold]")
                experiment.run(console)
                console.print()
        finally:
            torch.set_num_threads(threads)
        for line in headlines(self.out, HEADLINES):
            console.print(f"• {line}")
        console.print(f"The report: {(self.out / 'index.html').resolve()}", soft_wrap=True)

    def _parts(self) -> list[Experiment]:
        """Fewer seeds than our own runs in results/ have: those take an hour, this takes minutes."""
        few = 2 if self.quick else 3
        shared = {"out": self.out, "workers": self.workers}
        return [
            Table1(self.out),
            Stability(self.out, depth=20, seeds=2) if self.quick else Stability(self.out),
            Forward(self.out, 1, ("gelu",)) if self.quick else Forward(self.out, 2),
            Backward(self.out, 1, ("gelu",)) if self.quick else Backward(self.out, 2),
            Factors(out=self.out, seeds=few),
            Digits(seeds=few, epochs=1 if self.quick else 40, **shared),  # type: ignore[arg-type]
            Reestimation(seeds=few, epochs=2 if self.quick else 40, **shared),  # type: ignore[arg-type]
            Cost(self.out, rounds=5 if self.quick else 25),
            Report(self.out),
        ]


COMMANDS: TypeAlias = (
    Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[Table1, tyro.conf.subcommand("table1")]
    | Annotated[Stability, tyro.conf.subcommand("stability")]
    | Annotated[Depth, tyro.conf.subcommand("depth")]
    | Annotated[Zoo, tyro.conf.subcommand("zoo")]
    | Annotated[Healthy, tyro.conf.subcommand("healthy")]
    | Annotated[Verdicts, tyro.conf.subcommand("verdicts")]
    | Annotated[Reestimation, tyro.conf.subcommand("reestimation")]
    | Annotated[Forward, tyro.conf.subcommand("forward")]
    | Annotated[Backward, tyro.conf.subcommand("backward")]
    | Annotated[Digits, tyro.conf.subcommand("digits")]
    | Annotated[Factors, tyro.conf.subcommand("factors")]
    | Annotated[Cost, tyro.conf.subcommand("cost")]
    | Annotated[Mnist, tyro.conf.subcommand("mnist")]
    | Annotated[Vgg, tyro.conf.subcommand("vgg")]
    | Annotated[Trainability, tyro.conf.subcommand("trainability")]
    | Annotated[Densenet, tyro.conf.subcommand("densenet")]
    | Annotated[Training, tyro.conf.subcommand("training")]
    | Annotated[Tolerance, tyro.conf.subcommand("tolerance")]
    | Annotated[Expectation, tyro.conf.subcommand("expectation")]
    | Annotated[Integrated, tyro.conf.subcommand("integrated")]
    | Annotated[Federated, tyro.conf.subcommand("federated")]
    | Annotated[Merging, tyro.conf.subcommand("merging")]
    | Annotated[Placement, tyro.conf.subcommand("placement")]
    | Annotated[Shift, tyro.conf.subcommand("shift")]
    | Annotated[Budget, tyro.conf.subcommand("budget")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)
