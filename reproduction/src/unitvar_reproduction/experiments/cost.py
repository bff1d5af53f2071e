"""Cost: what BatchNorm adds to the time of a forward pass.

Paper (§1, §3, after Mishkin & Matas): BatchNorm costs "up to 30 %" more computation, and an initialisation costs none.
Ours: a fully connected and a convolutional network with BatchNorm over the same without, in training and in evaluation,
the two interleaved, by the time of the processor, so that other programs do not count. One thread, seconds.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from unitvar_reproduction import networks, record
from unitvar_reproduction.arguments import AtLeast
from unitvar_reproduction.progress import steps
from unitvar_reproduction.statistics import median_interval

__all__ = ["Cost"]


def convolutional(batchnorm: bool) -> nn.Sequential:
    """Build six 3x3 convolutions of 32, 64 and 128 channels, halving the image twice."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        for _ in range(2):
            norm = [nn.BatchNorm2d(width)] if batchnorm else []
            layers += [nn.Conv2d(channels, width, 3, padding=1), *norm, nn.ReLU(), nn.Dropout(0.3)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


@dataclass(frozen=True)
class Cost:
    """What BatchNorm adds to the time of a forward pass."""

    out: Path = record.OUT
    """Folder for cost.json."""

    rounds: Annotated[int, AtLeast(2)] = 25
    """Times that each network is run."""

    def run(self, console: Console) -> None:
        """Measure, print and save."""
        cases = {
            "8 layers of 256, batch 64": (
                [networks.mlp(784, 0.5, batchnorm=norm, width=256, hidden=7) for norm in (True, False)],
                torch.randn(64, 784),
            ),
            "6 convolutions, batch 16": ([convolutional(norm) for norm in (True, False)], torch.randn(16, 3, 32, 32)),
        }
        rows = []
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for name, (pair, batch) in cases.items():
                for training in (True, False):
                    ratios = self._ratios([m.train(training) for m in pair], batch, console)
                    low, high = median_interval(ratios)
                    found = {"median": statistics.median(ratios), "low": low, "high": high}
                    rows.append({"network": name, "mode": "training" if training else "evaluation", **found})
        finally:
            torch.set_num_threads(threads)
        table = Table(title="Forward time with BatchNorm over without, median (95 % interval)", title_justify="left")
        for head in ("network", "mode", "ratio"):
            table.add_column(head)
        for row in rows:
            ratio = f"{row['median']:.2f} ({row['low']:.2f}, {row['high']:.2f})"
            table.add_row(str(row["network"]), str(row["mode"]), ratio)
        console.print(table)
        path = record.save(
            self.out / "cost.json", {"experiment": "cost", "config": {"rounds": self.rounds}, "rows": rows}
        )
        console.print(f"Saved {path}")

    @torch.no_grad()
    def _ratios(self, pair: list[nn.Sequential], batch: Tensor, console: Console) -> list[float]:
        """Time the two in turn, once to warm up."""
        ratios = []
        for i in steps(range(self.rounds + 1), "cost", console):
            seconds = []
            for model in pair:
                start = time.process_time()
                model(batch)
                seconds.append(time.process_time() - start)
            if i:
                ratios.append(seconds[0] / seconds[1])
        return ratios
