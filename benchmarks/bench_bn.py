"""One-pass re-estimation costs at most 1.25 plain eval-mode passes, and 0.8 of what update_bn and fvcore cost.

DenseNet-40-12 and a VGG with BatchNorm, dropout in both, the same batches of 64 at 32x32 for everyone.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from fvcore.nn.precise_bn import update_bn_stats  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import unitvar
from interleaved import RESULTS, interleave, ratio, show
from unitvar_reproduction import networks, record

VGG = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
LIMITS = {"eval pass": 1.25, "update_bn": 0.8, "fvcore": 0.8}


def vgg() -> nn.Sequential:
    """Build VGG-16 for 32x32 images, BatchNorm after every convolution."""
    channels = 3
    layers: list[nn.Module] = []
    for widths in VGG:
        for width in widths:
            conv = nn.Conv2d(channels, width, 3, padding=1)
            layers += [conv, nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.4)]
            channels = width
        layers.append(nn.MaxPool2d(2))
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=4)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    batches = [torch.randn(64, 3, 32, 32) for _ in range(arguments.batches)]
    rows: list[dict[str, object]] = []
    for name, model in (("DenseNet-40-12", networks.DenseNet(40, 12, 0.2)), ("VGG-BN", vgg())):
        competitors: dict[str, Callable[[], object]] = {
            "unitvar": partial(unitvar.reestimate_bn_, model, batches),
            "eval pass": partial(eval_pass, model, batches),
            "update_bn": partial(update_bn, batches, model),
            "fvcore": partial(fvcore, model, batches),
        }
        times = interleave(competitors, repeats=arguments.rounds, label=name)
        for peer, limit in LIMITS.items():
            seconds = {"s": statistics.median(times["unitvar"]), "peer s": statistics.median(times[peer])}
            rows.append({"model": name, "peer": peer, **seconds, **ratio(times, "unitvar", peer), "limit": limit})
    show("Re-estimation of BatchNorm, seconds and time over the peer's", rows)
    record.save(RESULTS / "bn.json", {"batch": 64, "size": 32, **vars(arguments), "bn": rows})
