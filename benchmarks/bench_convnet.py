"""A training step of the small VGG and of the small DenseNet, in the ways that might make it cheaper.

One thread, the experiments' sizes, random images. Each way against the plain network: torch's dropout and layout. What
the experiments use is the third; ``--compiled`` adds torch.compile on top of it, which takes minutes to warm up.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable

import torch
from torch import nn

from interleaved import RESULTS, interleave, ratio, show
from unitvar.paper import models, record
from unitvar.paper.data import Images
from unitvar.paper.schedule import Schedule
from unitvar.paper.train import train

NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "VGG, 16 wide": functools.partial(models.vgg, 16),
    "DenseNet-22-8": functools.partial(models.DenseNet, 22, 8, 0.2),
}
WAYS = ("plain", "our dropout", "our dropout, channels last")


def network(build: Callable[[], nn.Sequential], way: str) -> nn.Sequential:
    """Build a network in one of the ways."""
    torch.manual_seed(0)
    model = build()
    if "dropout" in way:
        models.quicken_(model)
    return model.to(memory_format=torch.channels_last) if "last" in way else model  # type: ignore[call-overload]


def rows(name: str, rounds: int, batches: int, ways: tuple[str, ...]) -> list[dict[str, object]]:
    """Time a few batches of 64 in each way, in turn."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(64 * batches, 3, 32, 32, generator=generator)
    data = Images(images, torch.randint(10, (len(images),), generator=generator))
    schedule = Schedule(1, 1e-4)
    runs = {
        way: functools.partial(
            train, network(NETWORKS[name], way), data, schedule, seed=0, compiled=way.endswith("compiled")
        )
        for way in ways
    }
    times = interleave(runs, repeats=rounds, label=name)
    found = []
    for way in ways:
        against = ratio(times, way, "plain")
        quartiles = {"quartile 1": against["quartile_1"], "quartile 3": against["quartile_3"]}
        milliseconds = statistics.median(times[way]) * 1e3 / batches
        found.append({"network": name, "way": way, "ms a step": milliseconds, "ratio": against["median"], **quartiles})
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only see that it runs; nothing is saved")
    parser.add_argument("--compiled", action="store_true", help="torch.compile, too; needs a C++ compiler")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ways = (*WAYS, f"{WAYS[-1]}, compiled") if arguments.compiled else WAYS
    found = [row for name in NETWORKS for row in rows(name, *(2, 1) if arguments.quick else (9, 3), ways)]
    show("A training step", found)
    if not arguments.quick:
        record.save(RESULTS / "convnet.json", {"rows": found})
