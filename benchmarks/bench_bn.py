"""Claim: one-pass re-estimation costs at most 1.25 plain eval-mode passes, and 0.8 of what fvcore and update_bn cost.

DenseNet-40-12 and a VGG with BatchNorm, dropout in both, batches of 64 at 32x32. All methods see the same batches,
interleaved, in a new order every round; the numbers are medians of the ratios within a round. On an idle machine:

    python benchmarks/bench_bn.py [--rounds 7] [--batches 4]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from fvcore.nn.precise_bn import update_bn_stats
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import unitvar

RESULTS = Path(__file__).parent / "results" / "bn.json"
VGG = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")


class DenseLayer(nn.Sequential):
    """BN-ReLU-conv-dropout, its output appended to its input."""

    def __init__(self, channels: int, growth: int) -> None:  # noqa: D107
        conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)
        super().__init__(nn.BatchNorm2d(channels), nn.ReLU(), conv, nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return torch.cat((x, super().forward(x)), 1)


def densenet(depth: int = 40, growth: int = 12) -> nn.Sequential:
    """Build the DenseNet of the paper, without bottlenecks."""
    channels, layers = 16, [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    for block in range(3):
        for _ in range((depth - 4) // 3):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        if block < 2:
            conv = nn.Conv2d(channels, channels, 1, bias=False)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), conv, nn.Dropout(0.2), nn.AvgPool2d(2)]
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers)


def vgg() -> nn.Sequential:
    """Build VGG-16 for 32x32 images, BatchNorm after every convolution."""
    channels, layers = 3, []
    for width in VGG:
        if width == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            conv = nn.Conv2d(channels, width, 3, padding=1)
            layers += [conv, nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.4)]
            channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 10))


def eval_pass(model: nn.Module, batches: list[Tensor]) -> None:
    """Run the batches as at test time, which is the least any method must do."""
    model.eval()
    with torch.no_grad():
        for batch in batches:
            model(batch)


def fvcore(model: nn.Module, batches: list[Tensor]) -> None:
    """Run fvcore's PreciseBN, which wants the model in training mode and gradients off."""
    model.train()
    with torch.no_grad():
        update_bn_stats(model, batches, num_iters=len(batches))


METHODS: dict[str, Callable[[nn.Module, list[Tensor]], object]] = {
    "eval pass": eval_pass,
    "unitvar": lambda model, batches: unitvar.reestimate_bn_(model, batches),
    "update_bn": lambda model, batches: update_bn(batches, model.train()),
    "fvcore": fvcore,
}


def measure(model: nn.Module, batches: list[Tensor], rounds: int) -> dict[str, list[float]]:
    """Time every method once a round, in random order."""
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for method in METHODS.values():  # warm up
        method(model, batches[:1])
    for _ in range(rounds):
        for name in random.sample(list(METHODS), len(METHODS)):
            start = time.perf_counter()
            METHODS[name](model, batches)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], over: str) -> float:
    """Give the median over rounds of unitvar's time as a share of another's."""
    return statistics.median(a / b for a, b in zip(seconds["unitvar"], seconds[over], strict=True))


def environment() -> dict[str, str | int]:
    """Say what the numbers were measured with."""
    versions = {name: importlib.metadata.version(name) for name in ("unitvar", "torch", "fvcore")}
    machine = {"python": platform.python_version(), "processor": processor(), "system": platform.platform()}
    return {**versions, **machine, "threads": torch.get_num_threads()}


def processor() -> str:
    """Name the processor, which platform.processor() often does not."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    batches = [torch.randn(64, 3, 32, 32) for _ in range(arguments.batches)]
    table = Table("model", *(f"{name} s" for name in METHODS), "/ eval", "/ update_bn", "/ fvcore")
    models = {}
    for name, build in (("DenseNet-40-12", densenet), ("VGG-BN", vgg)):
        seconds = measure(build(), batches, arguments.rounds)
        ratios = {over: ratio(seconds, over) for over in METHODS if over != "unitvar"}
        models[name] = {"seconds": seconds, "unitvar_over": ratios}
        medians = (f"{statistics.median(s):.2f}" for s in seconds.values())
        table.add_row(name, *medians, *(f"{r:.2f}" for r in ratios.values()))
    Console().print(table)
    setup = {"batch": 64, "size": 32, "batches": arguments.batches, "rounds": arguments.rounds}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"environment": environment(), "setup": setup, "models": models}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
