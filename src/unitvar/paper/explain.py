"""Explain: what would be planned for a model of the user's own, and what flows through it as it is."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from torch import Tensor, nn

from unitvar import plot
from unitvar.flow import VarianceReport, measure
from unitvar.initialize import initialize_, plan
from unitvar.paper.arguments import AtLeast
from unitvar.paper.named import named

__all__ = ["Explain", "drawn"]

_FORMS = "8x3x32x32 for standard normal numbers, or 8x16:int:1000 for whole numbers from 0 to 999"


@dataclass(frozen=True)
class Explain:
    """The plan of your own model, and what flows through it: print both."""

    model: Annotated[str, tyro.conf.Positional]
    """A function that returns the model, or its class: package.module:name."""

    input: tyro.conf.UseAppendAction[tuple[str, ...]]
    """Shape of an input: 8x3x32x32 (standard normal) or 8x16:int:1000 (tokens below 1000); once for each argument."""

    kwargs: str = "{}"
    """Keyword arguments of the function or class, as JSON: '{"num_classes": 10}'."""

    initialize: bool = False
    """Measure the model as initialize_ would leave it, instead of as it is."""

    runs: int = 4
    """How often to run it."""

    seed: Annotated[int, AtLeast(0)] = 0
    """Of the model's weights, the inputs and the masks."""

    plot: Path | None = None
    """Where to draw the measurement: file.png, file.pdf …"""

    def run(self, console: Console) -> None:
        """Plan, measure, print and draw."""
        if not self.input:
            raise ValueError(f"--input is missing: give the shape of each argument, {_FORMS}.")
        torch.manual_seed(self.seed)
        inputs = tuple(drawn(text) for text in self.input)
        model = _built(self.model, self.kwargs)
        try:
            report = measure(model, inputs, runs=self.runs)  # first, as it fails in the model's own words
            planned = initialize_(model, inputs) if self.initialize else plan(model, inputs)
            report = measure(model, inputs, runs=self.runs) if self.initialize else report
        except Exception as error:  # the user's own forward
            given = ", ".join(self.input)
            raise ValueError(
                f"{self.model} cannot be run on --input {given}: {type(error).__name__}: {error}"
            ) from error
        for text in (str(planned), "", str(report)):
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        if self.plot is not None:
            _draw(report, model, inputs, self.plot)
            console.print(f"Saved {self.plot}", markup=False, highlight=False, soft_wrap=True)


def drawn(text: str) -> Tensor:
    """Draw an input: ``8x3x32x32`` from a standard normal, ``8x16:int:1000`` whole numbers below 1000."""
    match = re.fullmatch(r"(\d+(?:x\d+)*)(?::int:(\d+))?", text)
    if match is None:
        raise ValueError(f"--input {text!r} is not a shape: write {_FORMS}.")
    shape = [int(n) for n in match[1].split("x")]
    if 0 in shape or match[2] == "0":
        raise ValueError(f"--input {text!r} has a size of 0: write {_FORMS}.")
    return torch.randn(shape) if match[2] is None else torch.randint(int(match[2]), shape)


def _built(path: str, text: str) -> nn.Module:
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--kwargs {text!r} is not JSON ({error}); write '{{\"num_classes\": 10}}'.") from error
    if not isinstance(options, dict):
        raise ValueError(f"--kwargs {text!r} is not a JSON object; write '{{\"num_classes\": 10}}'.")
    found = named(path, "package.module:name, from the folder that holds the package")
    if isinstance(found, nn.Module):
        if options:
            raise ValueError(f"{path} is a model, not a function or a class: --kwargs has nothing to go to.")
        return found
    if not callable(found):
        raise ValueError(f"{path} is a {type(found).__name__}, not a function that returns a model, nor its class.")
    try:
        model: Any = found(**options)
    except Exception as error:  # the user's own code
        raise ValueError(f"{path}(**{options}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{path}(**{options}) returned a {type(model).__name__}, not an nn.Module.")
    return model


def _draw(report: VarianceReport, model: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2)
    report.plot(left)
    plot.distributions(model, inputs, ax=right)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
