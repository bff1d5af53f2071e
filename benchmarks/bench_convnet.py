"""A training step of the small VGG and of the small DenseNet, in the ways that might make it cheaper.

One thread, the experiments' sizes, random images. Each way against the plain network: torch's optimiser as it comes,
its dropout and its layout. The experiments use the fourth; where there is a C++ compiler, torch.compile comes on top
of it, which takes a while at first ("first s"). Then the fourth again, in a worker of a sweep, which keeps its memory,
against a process that does not.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import nn

from interleaved import RESULTS, interleave, ratio, show
from unitvar_reproduction import networks, record
from unitvar_reproduction.data.images import Images
from unitvar_reproduction.sweep.pools import processes
from unitvar_reproduction.training.loop import train
from unitvar_reproduction.training.schedule import Schedule

NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "VGG, 16 wide": functools.partial(networks.vgg, 16),
    "DenseNet-22-8": functools.partial(networks.DenseNet, 22, 8, 0.2),
}
WAYS = ("plain", "fused", "fused, our dropout", "fused, our dropout, channels last")


class AsItComes(Schedule):
    """A schedule whose optimiser is not fused, but what torch takes if nothing is asked for."""

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the same optimiser, not fused."""
        fused = super().over(parameters)
        for group in fused.param_groups:
            group["fused"] = None
        return fused


def network(build: Callable[[], nn.Sequential], way: str) -> nn.Sequential:
    """Build a network in one of the ways."""
    torch.manual_seed(0)
    model = build()
    if "dropout" in way:
        networks.quicken_(model)
    return model.to(memory_format=torch.channels_last) if "last" in way else model  # type: ignore[call-overload]


def prepared(name: str, way: str, batches: int) -> Callable[[], object]:
    """Return a training over a few batches of 64."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(64 * batches, 3, 32, 32, generator=generator)
    data = Images(images, torch.randint(10, (len(images),), generator=generator))
    schedule = (Schedule if "fused" in way else AsItComes)(1, 1e-4)
    compiled = way.endswith("compiled")
    return functools.partial(train, network(NETWORKS[name], way), data, schedule, seed=0, compiled=compiled)


def compared(name: str, runs: dict[str, Callable[[], object]], rounds: int, batches: int) -> list[dict[str, object]]:
    """Time all in turn, after a first time of each; return a row for each, against the first."""
    begun = {way: first(run) for way, run in runs.items()}
    times = interleave(runs, repeats=rounds, label=name)
    found = []
    for way in runs:
        against = ratio(times, way, next(iter(runs)))
        quartiles = {"quartile 1": against["quartile_1"], "quartile 3": against["quartile_3"]}
        milliseconds = statistics.median(times[way]) * 1e3 / batches
        row = {"network": name, "way": way, "first s": begun[way], "ms a step": milliseconds}
        found.append({**row, "ratio": against["median"], **quartiles})
    return found


def first(run: Callable[[], object]) -> float:
    """Return the seconds that a run takes the first time, compiling if it does."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@functools.cache
def _here(name: str, batches: int) -> Callable[[], object]:
    torch.set_num_threads(1)
    return prepared(name, WAYS[-1], batches)


def train_here(name: str, batches: int) -> None:
    """Train, in a worker, a network that it builds once."""
    _here(name, batches)()


def in_workers(name: str, rounds: int, batches: int) -> list[dict[str, object]]:
    """Time a worker that gives its memory back, and one of a sweep's, in turn."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as plain:
        plain.submit(int).result()  # so that it starts before the other's environment is set
        with processes(1) as kept:
            runs: dict[str, Callable[[], object]] = {
                "in a process": lambda: plain.submit(train_here, name, batches).result(),
                "in a worker": lambda: kept.result(kept.submit(train_here, name, batches)),
            }
            return compared(name, runs, rounds, batches)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only see that it runs; nothing is saved")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction, default=shutil.which("c++") is not None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ways = (*WAYS, f"{WAYS[-1]}, compiled") if arguments.compiled else WAYS
    rounds, batches = (2, 1) if arguments.quick else (9, 3)
    found = []
    for name in NETWORKS:
        found += compared(name, {way: prepared(name, way, batches) for way in ways}, rounds, batches)
        found += in_workers(name, rounds, 2 * batches)  # so that sending the call is nothing beside it
    show("A training step", found)
    if not arguments.quick:
        record.save(RESULTS / "convnet.json", {"rows": found})
