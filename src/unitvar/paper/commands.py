"""The subcommands of the command line, and the one that runs them all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import tyro
from rich.console import Console

from unitvar.paper.backward import Backward
from unitvar.paper.cost import Cost
from unitvar.paper.depth import Depth
from unitvar.paper.digits import Digits
from unitvar.paper.factors import Factors
from unitvar.paper.forward import Forward
from unitvar.paper.mnist import Mnist
from unitvar.paper.reestimation import Reestimation
from unitvar.paper.report import Report
from unitvar.paper.stability import Stability
from unitvar.paper.table1 import ActivationsCommand, Table1
from unitvar.paper.tolerance import Tolerance
from unitvar.paper.zoo.experiment import Zoo

__all__ = ["COMMANDS", "Reproduce"]


@dataclass(frozen=True)
class Reproduce:
    """Every table and figure, at a size for two CPU cores."""

    out: Path = Path("results")
    """Folder for the results."""

    quick: bool = False
    """Only see that everything runs: sizes too small to conclude anything from."""

    def run(self, console: Console) -> None:
        """Run each experiment in turn."""
        small = {"seeds": 2, "epochs": 2} if self.quick else {}
        for experiment in (Table1(out=self.out), Stability(out=self.out), Reestimation(out=self.out, **small)):
            experiment.run(console)
            console.print()


COMMANDS: TypeAlias = (
    Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[Table1, tyro.conf.subcommand("table1")]
    | Annotated[Stability, tyro.conf.subcommand("stability")]
    | Annotated[Depth, tyro.conf.subcommand("depth")]
    | Annotated[Zoo, tyro.conf.subcommand("zoo")]
    | Annotated[Reestimation, tyro.conf.subcommand("reestimation")]
    | Annotated[Forward, tyro.conf.subcommand("forward")]
    | Annotated[Backward, tyro.conf.subcommand("backward")]
    | Annotated[Digits, tyro.conf.subcommand("digits")]
    | Annotated[Factors, tyro.conf.subcommand("factors")]
    | Annotated[Cost, tyro.conf.subcommand("cost")]
    | Annotated[Mnist, tyro.conf.subcommand("mnist")]
    | Annotated[Tolerance, tyro.conf.subcommand("tolerance")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[ActivationsCommand, tyro.conf.subcommand("activations")]
)
