"""Integrating dropout out costs at most three evaluation passes, and a hundred samples cost a hundred.

``expected(model)``, called again on a shape that it has recorded, against one pass in evaluation mode and against ten
samples, whose time is multiplied by ten. An MLP and a VGG with ReLUs, a DenseNet with BatchNorm, a U-Net with channel
dropout, a transformer with GELU and an LSTM, on one thread. The first call for a shape, which records, is reported by
itself.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import unitvar
from interleaved import RESULTS, interleave, ratio, show
from unitvar_reproduction import networks, record
from unitvar_reproduction.experiments.expectation.tasks import TASKS
from zoo.sequence import mlp as dense

LIMIT = 3.0
SAMPLES = 10


def mlp() -> tuple[nn.Module, Tensor]:
    """Build eight dense layers of 1,024, a batch of 256."""
    return dense()


def vgg() -> tuple[nn.Module, Tensor]:
    """Build the paper's VGG at width 32, a batch of 32."""
    return networks.vgg(32), torch.randn(32, 3, 32, 32)


def densenet() -> tuple[nn.Module, Tensor]:
    """Build a DenseNet of 22 layers, a batch of 32."""
    return networks.DenseNet(22, 12, 0.2), torch.randn(32, 3, 32, 32)


def unet() -> tuple[nn.Module, Tensor]:
    """Build the U-Net of the study with dropout of whole channels, a batch of 32."""
    return TASKS["unet"].build(), torch.randn(32, 1, 28, 28)


def transformer() -> tuple[nn.Module, Tensor]:
    """Build four layers of 256, 16 sequences of 64."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.1, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(16, 64, 256)


def lstm() -> tuple[nn.Module, Tensor]:
    """Build two layers of 256, 32 sequences of 32."""
    return nn.LSTM(128, 256, 2, dropout=0.3, batch_first=True), torch.randn(32, 32, 128)


@torch.no_grad()
def call(module: nn.Module, batch: Tensor, times: int = 1) -> None:
    """Run a module some times without gradients."""
    for _ in range(times):
        module(batch)


def sampling(build: Callable[[], tuple[nn.Module, Tensor]]) -> nn.Module:
    """Build the same network with its dropout on and its batch norms in evaluation mode."""
    model = build()[0].train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: list[dict[str, object]] = []
    for build in (mlp, vgg, densenet, unet, transformer, lstm):
        model, batch = build()
        model.eval()
        module = unitvar.expected(model)
        started = time.perf_counter()
        call(module, batch)
        first = time.perf_counter() - started
        competitors: dict[str, Callable[[], object]] = {
            "expected": partial(call, module, batch),
            "evaluation": partial(call, model, batch),
            "samples": partial(call, sampling(build), batch, SAMPLES),
        }
        times = interleave(competitors, repeats=arguments.rounds, label=build.__name__)
        sampled = ratio(times, "expected", "samples")
        rows.append(
            {
                "model": build.__name__,
                "ms a pass": statistics.median(times["evaluation"]) * 1e3,
                "first call, ms": first * 1e3,
                **ratio(times, "expected", "evaluation"),
                "limit": LIMIT,
                "over 100 samples": sampled["median"] * SAMPLES / 100,
            }
        )
    show("Dropout integrated out, over one evaluation pass", rows)
    record.save(RESULTS / "expect.json", {"samples": SAMPLES, **vars(arguments), "expect": rows})
