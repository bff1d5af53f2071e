"""A warm plan of a ResNet-50 costs at most 2 kaiming_normal_ passes over its weights, initialize_ at most 3.5.

Cost grows linearly with the number of ops: MLPs of 10 to 1000 layers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from interleaved import RESULTS, interleave, ratio, show
from unitvar.paper import record

LIMITS = {"plan": 2.0, "initialize_": 3.5}


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, with BatchNorms and a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.down: nn.Module = nn.Identity()
        if stride > 1 or before != 4 * width:
            self.down = nn.Sequential(nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + self.down(x), inplace=True)


def resnet50() -> nn.Sequential:
    """Build the network whose weights have the shapes of ``shapes.resnet50()``."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, stride if block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def mlp(depth: int) -> nn.Sequential:
    """Build a chain of layers that are cheap to fill."""
    return nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    model, example = resnet50(), torch.zeros(2, 3, 224, 224)
    weights = [p for p in model.parameters() if p.dim() > 1]
    competitors: dict[str, Callable[[], object]] = {
        "plan": lambda: unitvar.plan(model, example),
        "initialize_": lambda: unitvar.initialize_(model, example),
        "kaiming_normal_": lambda: [nn.init.kaiming_normal_(w) for w in weights],
    }
    times = interleave(competitors, repeats=arguments.rounds, label="ResNet-50")
    rows: list[dict[str, object]] = []
    for name, limit in LIMITS.items():
        milliseconds = {
            "ms": statistics.median(times[name]) * 1e3,
            "peer ms": statistics.median(times["kaiming_normal_"]) * 1e3,
        }
        rows.append({"call": name, **milliseconds, **ratio(times, name, "kaiming_normal_"), "limit": limit})
    show("Over one kaiming_normal_ pass over the weights of a ResNet-50", rows)
    depths: list[dict[str, object]] = []
    for depth in (10, 30, 100, 300, 1000):
        net = mlp(depth)
        unitvar.plan(net, torch.zeros(2, 8))
        start = time.perf_counter()
        unitvar.plan(net, torch.zeros(2, 8))
        seconds = time.perf_counter() - start
        depths.append({"layers": depth, "ms": seconds * 1e3, "ms a layer": seconds * 1e3 / depth})
    show("A plan by depth", depths)
    record.save(RESULTS / "plan.json", {**vars(arguments), "resnet50": rows, "depth": depths})
