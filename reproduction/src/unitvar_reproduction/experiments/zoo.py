"""Zoo: what a plan promises, and what then flows, in networks of the sizes that people use.

Paper: dense layers and a VGG, each correction worked out by hand.
Ours: one call for every family. For MLPs and CNNs at least 95 % of the weight layers have, in train mode on Gaussian or
random-token inputs, a second moment within 1.5 × of the predicted one; for the others the table says what it is.
Averages over 8 draws of weights, input and dropout.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import unitvar
from unitvar._torch import TorchDispatchMode
from unitvar.graph import trace
from unitvar.graph.op import op_of
from unitvar.moments import RULES
from unitvar.running.calling import call
from unitvar.running.tracker import ParameterTracker
from unitvar_reproduction import record
from unitvar_reproduction.progress import steps

if TYPE_CHECKING:
    from zoo import Family

__all__ = ["Row", "Zoo", "measured", "row"]

NEAR = 1.5


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the second moment of the output of every op that has a parameter for a weight."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracker = ParameterTracker(model.named_parameters())
        self.found: dict[str, list[float]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op and look at what it gives."""
        out = func(*args, **(kwargs or {}))
        rule = RULES.get(op_of(func).name)
        if rule is not None and isinstance(out, Tensor):
            for operand in (a for position in rule.weights for a in _operands(args, position)):
                name = self.tracker.owner(operand)
                if name:
                    self.found.setdefault(name, []).append(out.double().square().mean().item())
        return out


def _operands(args: Any, position: int) -> list[Tensor]:
    arg = args[position] if position < len(args) else None
    return [a for a in (arg if isinstance(arg, (list, tuple)) else (arg,)) if isinstance(a, Tensor)]


def measured(model: nn.Module, example: Any, runs: int = 1) -> dict[str, float]:
    """Return E z² of every weight in train mode, averaged over runs and over the uses of a weight."""
    meter = _Meter(model)
    model.train()
    with torch.inference_mode(), meter:
        for _ in range(runs):
            call(model, example)
    return {name: sum(values) / len(values) for name, values in meter.found.items()}


@dataclass(frozen=True)
class Row:
    """One family: what was found, and how near measured second moments are to the predicted.

    Attributes:
        family: its name.
        parameters: how many numbers it has.
        traced: on what kind of tensors.
        found: weights with a scale.
        alone: weights left alone, by reason.
        measured: weights whose output could be measured; of a recurrence it cannot.
        near: how many of those are within 1.5 × of the prediction.
        worst: the largest ratio, up or down.
        where: its weight.
    """

    family: str
    parameters: int
    traced: str
    found: int
    alone: dict[str, int]
    measured: int
    near: int
    worst: float
    where: str


def row(family: str, make: Family, *, draws: int, seed: int = 0) -> Row:
    """Initialise and measure a family, over and over."""
    seen: dict[str, list[float]] = {}
    plan = None
    for draw in range(draws):
        torch.manual_seed(seed + draw)
        model, example = make()
        plan = plan or unitvar.plan(model, example, inputs="standard")  # as examples are drawn
        plan.apply_(model)
        for name, value in measured(model, example).items():
            if name not in plan.skipped:
                seen.setdefault(name, []).append(value)
    assert plan is not None
    ratios = {name: sum(values) / len(values) / plan[name].predicted for name, values in seen.items()}
    far = {name: math.exp(abs(math.log(ratio))) if ratio > 0 else math.inf for name, ratio in ratios.items()}
    where = max(far, key=far.__getitem__)
    return Row(
        family=family,
        parameters=sum(p.numel() for p in model.parameters()),
        traced="real tensors" if trace(model, example).real else "without data",
        found=len(plan.layers),
        alone=dict(Counter(reason.partition(":")[0].partition(" to ")[0] for reason in plan.skipped.values())),
        measured=len(far),
        near=sum(ratio <= NEAR for ratio in far.values()),
        worst=ratios[where],
        where=where,
    )


@dataclass(frozen=True)
class Zoo:
    """Every family at real size: weights found and left alone, predicted against measured."""

    out: Path = record.OUT
    """Folder for zoo.json."""

    draws: int = 8
    """Networks for each family."""

    small: bool = False
    """The sizes of the tests instead."""

    def run(self, console: Console) -> None:
        """Measure, print and save."""
        zoo = _zoo()
        families = {**zoo.PLAIN, **zoo.ATTENDING}
        for package, made in {"transformers": zoo.HUGGING_FACE, "timm": zoo.TIMM}.items():
            if importlib.util.find_spec(package) is not None:
                families |= made
            else:
                console.print(f"Without {package} there is no {', '.join(made)}: pip install {package}")
        rows = [
            row(name, families[name][self.small], draws=self.draws) for name in steps(list(families), "zoo", console)
        ]
        console.print(_table(rows))
        config = {"draws": self.draws, "small": self.small}
        payload = {"experiment": "zoo", "config": config, "rows": [asdict(r) for r in rows]}
        console.print(f"Saved {record.save(self.out / 'zoo.json', payload)}")


def _zoo() -> ModuleType:
    """Import the models, which are in a checkout only: no package that is installed has them."""
    try:
        return importlib.import_module("zoo")
    except ModuleNotFoundError as error:
        raise ValueError("The models are in the folder zoo of a checkout: run this command from there.") from error


def _table(rows: list[Row]) -> Table:
    table = Table(title=f"Weight layers whose E z² is within {NEAR:g} × of the predicted", title_justify="left")
    for heading in ("family", "parameters", "weights", "left alone", "near", "worst"):
        table.add_column(heading, overflow="fold", justify="left" if heading in ("family", "left alone") else "right")
    for r in rows:
        alone = ", ".join(f"{count} {reason}" for reason, count in r.alone.items())
        size = f"{r.parameters / 1e6:.1f} M"
        table.add_row(r.family, size, str(r.found), alone, f"{r.near} of {r.measured}", f"{r.worst:.2f}")
    return table
