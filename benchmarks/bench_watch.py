"""Watching training at every=100 costs at most 5 %: a hundred steps, one of them observed, against a hundred alone.

A small MLP, where a step takes least and hooks weigh most, a VGG with BatchNorm and a transformer.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from interleaved import RESULTS, interleave, ratio, show
from unitvar_reproduction import record

LIMIT = 1.05
EVERY = 100


def mlp() -> tuple[nn.Module, Tensor]:
    """Build seven layers of 256, a batch of 64."""
    layers = [m for _ in range(6) for m in (nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.3))]
    return nn.Sequential(*layers, nn.Linear(256, 10)), torch.randn(64, 256)


def vgg() -> tuple[nn.Module, Tensor]:
    """Build six convolutions with BatchNorm on 16x16 images, a batch of 16."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 16, 32, 32, 64, 64):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.3)]
        layers += [nn.MaxPool2d(2)] if width == channels else []
        channels = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*layers, *head), torch.randn(16, 3, 16, 16)


def transformer() -> tuple[nn.Module, Tensor]:
    """Build four layers of 64 with an output layer, 8 sequences of 32."""
    layer = nn.TransformerEncoderLayer(64, 4, 256, 0.1, "gelu", batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.Sequential(body, nn.Flatten(), nn.Linear(32 * 64, 10)), torch.randn(8, 32, 64)


def steps(model: nn.Module, batch: Tensor, watched: bool) -> None:
    """Train for as many steps as lie between two observations."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = torch.zeros(len(batch), dtype=torch.long)
    context: Any = unitvar.watch(model, every=EVERY) if watched else nullcontext()
    with context:
        for _ in range(EVERY):
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(batch), labels))
            optimiser.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows: list[dict[str, object]] = []
    for build in (mlp, vgg, transformer):
        model, batch = build()
        competitors: dict[str, Callable[[], object]] = {
            "watched": partial(steps, model, batch, True),
            "alone": partial(steps, model, batch, False),
        }
        times = interleave(competitors, repeats=arguments.rounds, label=build.__name__)
        milliseconds = statistics.median(times["alone"]) * 1e3 / EVERY
        rows.append(
            {"model": build.__name__, "ms a step": milliseconds, **ratio(times, "watched", "alone"), "limit": LIMIT}
        )
    show(f"A hundred steps watched at every={EVERY}, over a hundred alone", rows)
    record.save(RESULTS / "watch.json", {"every": EVERY, **vars(arguments), "watch": rows})
