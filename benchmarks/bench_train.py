"""An epoch of a trial costs at most 1.05 of a minimal loop over the same model, and at most half of a DataLoader loop.

The MNIST experiment's network and batch on random images, one thread. The minimal loop has the same dropout and the
same optimiser and keeps no curve. The usual one has a DataLoader over stored bytes, of which each image becomes a PIL
image and then a tensor when it is asked for, as torchvision's MNIST with ToTensor has it, nn.Dropout, torch's default
Adam and loss.item(); a third has all images converted beforehand.
Then the sweep: two workers that run finish at least 1.8 times as many trials a second as one.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from interleaved import RESULTS, interleave, ratio, show
from unitvar_reproduction import networks, record
from unitvar_reproduction.data.images import Images
from unitvar_reproduction.experiments.mlp import Trial, run_trial
from unitvar_reproduction.sweep.run import sweep
from unitvar_reproduction.training.loop import Schedule, train

LIMITS = {"minimal loop": 1.05, "DataLoader": 0.5, "DataLoader, converted": None}
SPEEDUP = 1.8


def network(quick: bool) -> nn.Sequential:
    """Build the network of the MNIST experiment, with our dropout or torch's."""
    torch.manual_seed(0)
    model = networks.mlp(784, 0.5, batchnorm=False, width=256, hidden=7)
    return networks.quicken_(model) if quick else model


def ours(data: Images) -> None:
    """Train an epoch as a trial does."""
    schedule = Schedule(1, 1e-3, 64, weight_decay=0, drops=(), optimiser="adam")
    train(network(True), data, schedule, seed=0, points=3)


def minimal(data: Images) -> None:
    """Train an epoch by the least that can be written."""
    model = network(True)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for index in torch.split(torch.randperm(len(data)), 64):
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(data.images[index]), data.labels[index]))
        optimiser.step()


class Stored(Dataset[tuple[Tensor, Tensor]]):
    """Images as MNIST stores them, converted one at a time: bytes, PIL image, tensor."""

    def __init__(self, data: Images) -> None:
        self.images = data.images.mul(255).round().to(torch.uint8)
        self.labels = data.labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture = Image.fromarray(self.images[index, 0].numpy())
        pixels = torch.from_numpy(np.array(picture, copy=True))
        return pixels.unsqueeze(0).to(torch.float32).div(255), self.labels[index]


def usual(dataset: Dataset[tuple[Tensor, ...]]) -> None:
    """Train an epoch as tutorials do."""
    model = network(False)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    total = 0.0
    for images, labels in DataLoader(dataset, batch_size=64, shuffle=True):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        torch.autograd.backward(loss)
        optimiser.step()
        total += loss.item()


def steps(rounds: int, images: int) -> list[dict[str, object]]:
    """Time the three loops in turn."""
    data = Images(torch.rand(images, 1, 28, 28), torch.randint(10, (images,)))
    loops = {
        "ours": functools.partial(ours, data),
        "minimal loop": functools.partial(minimal, data),
        "DataLoader": functools.partial(usual, Stored(data)),
        "DataLoader, converted": functools.partial(usual, TensorDataset(data.images, data.labels)),
    }
    times = interleave(loops, repeats=rounds, label="epoch")
    batches = -(-images // 64)
    rows: list[dict[str, object]] = []
    for peer, limit in LIMITS.items():
        found = ratio(times, "ours", peer)
        milliseconds = {
            f"{name}, ms a step": statistics.median(times[own]) * 1e3 / batches
            for name, own in (("ours", "ours"), ("peer", peer))
        }
        quartiles = {"quartile 1": found["quartile_1"], "quartile 3": found["quartile_3"]}
        rows.append({"peer": peer, **milliseconds, "ratio": found["median"], "limit": limit, **quartiles})
    return rows


def workers(rounds: int, epochs: int) -> list[dict[str, object]]:
    """Time four trials on one worker and on two, and the same number of trials of an epoch, to take their start off."""
    base = Trial("digits", "relu", 0.5, "paper", 1e-3, 0, inputs="standardised", held_out=200, width=256)

    def swept(count: int, epochs: int) -> None:
        trials = [replace(base, seed=seed, epochs=epochs) for seed in range(4)]
        with tempfile.TemporaryDirectory() as folder:
            sweep(run_trial, trials, Path(folder), Console(quiet=True), label="workers", workers=count)

    lengths = {"whole": epochs + 1, "start": 1}
    runs = {f"{n} {what}": functools.partial(swept, n, own) for n in (1, 2) for what, own in lengths.items()}
    times = interleave(runs, repeats=rounds, label="sweep")
    for n in (1, 2):
        times[f"{n} running"] = [a - b for a, b in zip(times[f"{n} whole"], times[f"{n} start"], strict=True)]
    rows: list[dict[str, object]] = []
    for what, limit in (("running", SPEEDUP), ("whole", None)):
        found = ratio(times, f"1 {what}", f"2 {what}")
        seconds = {f"{n} workers, s": statistics.median(times[f"{n} {what}"]) for n in (1, 2)}
        quartiles = {"quartile 1": found["quartile_1"], "quartile 3": found["quartile_3"]}
        rows.append({"time": what, **seconds, "speed-up": found["median"], "at least": limit, **quartiles})
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only see that it runs; nothing is saved")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {"steps": steps(*(2, 640) if arguments.quick else (31, 6400))}
    found["workers"] = workers(*(2, 2) if arguments.quick else (5, 80))
    show("An epoch of a trial against other loops", found["steps"])
    show("A sweep of 4 trials", found["workers"])
    if not arguments.quick:
        record.save(RESULTS / "train.json", found)
