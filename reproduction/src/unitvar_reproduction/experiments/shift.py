"""BatchNorm statistics for a shifted test set: CIFAR-10 under noise, blur and low contrast.

Paper: nothing; it re-estimates on the training set. Schneider et al. (2020) replace the statistics by those of the
shifted images, blended with the old ones where images are few (CIFAR-10-C, WRN-28-10: 43.5 → 20.4 %, Wang et al. 2022).
Ours: a small ResNet trained on part of CIFAR-10 at 16x16; the test set corrupted by us; error with the statistics of
training (source), of n corrupted images without labels (target), and of both (blended, the source counted as so many
images or values). The images that statistics come from are not those that are judged. Two minutes a network on one
core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

import unitvar
from unitvar_reproduction import data, record
from unitvar_reproduction.data.images import Images
from unitvar_reproduction.networks.convolution import ResNet
from unitvar_reproduction.statistics import Estimate, estimate
from unitvar_reproduction.sweep.run import sweep
from unitvar_reproduction.training.batchnorm import Batches
from unitvar_reproduction.training.loop import Schedule, evaluate, seeded, train

__all__ = ["CORRUPTIONS", "Shift", "Trial", "run_trial"]

BLENDS = (("examples", 16), ("values", 1024), ("values", 16384))
SOURCE, TARGET = "source", "target"
NOISE, BLUR, CONTRAST = 0.1, 1.0, 0.25


def noise(images: Tensor) -> Tensor:
    """Add Gaussian noise of standard deviation 0.1 to pixels in [0, 1]."""
    drawn = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return (images + NOISE * drawn).clamp(0, 1)


def blur(images: Tensor) -> Tensor:
    """Blur with a Gaussian of a standard deviation of one pixel."""
    at = torch.arange(-4.0, 5.0)
    line = torch.exp(-(at**2) / (2 * BLUR**2))
    kernel = torch.outer(line, line) / line.sum() ** 2
    padded = F.pad(images, (4, 4, 4, 4), mode="reflect")
    return F.conv2d(padded, kernel.expand(images.shape[1], 1, 9, 9), groups=images.shape[1])


def contrast(images: Tensor) -> Tensor:
    """Pull every pixel to its image's mean, to a quarter of the contrast."""
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return mean + CONTRAST * (images - mean)


CORRUPTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda images: images,  # what the statistics of few images cost where nothing has shifted
    "noise": noise,
    "blur": blur,
    "contrast": contrast,
}


@dataclass(frozen=True)
class Trial:
    """One network, trained once and judged under every corruption."""

    seed: int
    images: int
    epochs: int
    judged: int
    sizes: tuple[int, ...]
    dropout: float


def run_trial(trial: Trial, *, data_dir: Path | None = None) -> dict[str, object]:
    """Train on clean images; return the error for every corruption, number of target images and kind of statistics."""
    raw_train, raw_test = (Images(F.avg_pool2d(part.images, 2), part.labels) for part in data.cifar10(data_dir))
    (training,) = data.standardised(raw_train)
    with seeded(trial.seed):
        model = ResNet(16, 1, trial.dropout)
    some, _ = training.split(trial.images, seed=trial.seed)
    train(model, some, Schedule(trial.epochs), seed=trial.seed)
    unitvar.reestimate_bn_(model, Batches(some), max_batches=50)  # so that dropout plays no part in what follows
    found: dict[str, object] = {}
    for name, corrupt in CORRUPTIONS.items():
        _, shifted = data.standardised(raw_train, Images(corrupt(raw_test.images), raw_test.labels))
        found[name] = judged(model, shifted[: trial.judged], shifted[trial.judged :], trial)
    return {"measured": found}


def judged(model: torch.nn.Module, test: Images, target: Images, trial: Trial) -> list[dict[str, Any]]:
    """Return the error with the source's statistics, and for each number of target images with theirs and blends."""
    rows: list[dict[str, Any]] = [{"statistics": SOURCE, "target_images": 0, **evaluate(model, test)}]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for size in trial.sizes:
        few, _ = target.split(size, seed=trial.seed)
        found = unitvar.bn_statistics(model, few.batches(min(size, 100)))
        variants = {TARGET: found} | {blend(unit, n): found.blend(model, n, unit=unit) for unit, n in BLENDS}
        for name, statistics in variants.items():
            statistics.apply_(model)
            rows.append({"statistics": name, "target_images": size, **evaluate(model, test)})
            model.load_state_dict(before)
    return rows


def blend(unit: str, weight: int) -> str:
    """Name a blend."""
    return f"blended, {weight} old {unit}"


@dataclass(frozen=True)
class Shift:
    """Error under corruption with source, target and blended BatchNorm statistics, on CIFAR-10 at 16x16."""

    data_dir: Path | None = None
    """Folder that holds cifar-10-batches-bin; default: download it into the cache."""

    out: Path = record.OUT
    """Folder for shift.json, shift.png and one file for each network."""

    seeds: int = 5
    """Networks."""

    images: int = 10_000
    """Images to train on."""

    epochs: int = 10
    """Epochs of training."""

    judged: int = 2_000
    """Test images to judge by; target images come from the others."""

    sizes: tuple[int, ...] = (1, 4, 16, 64, 256, 2048)
    """Numbers of target images."""

    dropout: float = 0.1
    """Drop probability."""

    workers: int | None = None
    """Trials at once; default: one for each core."""

    def run(self, console: Console) -> None:
        """Train, corrupt, measure, print and save."""
        data.check(["cifar10"], self.data_dir, console)
        settings = (self.images, self.epochs, self.judged, self.sizes, self.dropout)
        trials = [Trial(seed, *settings) for seed in range(self.seeds)]
        run = partial(run_trial, data_dir=self.data_dir)
        records = sweep(run, trials, self.out / "shift", console, label="shift", workers=self.workers)
        rows = summarise(records)
        for name in CORRUPTIONS:
            console.print(_table(name, [row for row in rows if row["corruption"] == name]))
        config = {k: v for k, v in asdict(self).items() if k not in ("out", "data_dir", "workers")}
        payload = {
            "experiment": "shift",
            "config": config,
            "rows": rows,
            "environment": record.combined(records),
        }
        path = record.save(self.out / "shift.json", payload)
        console.print(f"Saved {path} and {_draw(rows, self.out / 'shift.png')}")


def summarise(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each corruption, number of images and kind of statistics, means and paired differences to source."""
    rows = []
    for name in CORRUPTIONS:
        for same in zip(*(r["measured"][name] for r in records), strict=True):
            kind = {"corruption": name, **{key: same[0][key] for key in ("statistics", "target_images")}}
            row = {**kind, **{m: asdict(estimate([x[m] for x in same])) for m in ("error", "log_loss")}}
            source = [r["measured"][name][0]["error"] for r in records]
            row["error minus source"] = asdict(estimate([x["error"] - s for x, s in zip(same, source, strict=True)]))
            rows.append(row)
    return rows


def _table(name: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"CIFAR-10, {name}: test error in %", title_justify="left")
    sizes = sorted({row["target_images"] for row in rows} - {0})
    table.add_column("statistics")
    for size in sizes:
        table.add_column(f"{size} images", justify="right")
    found = {(row["statistics"], row["target_images"]): Estimate(**row["error"]).percent() for row in rows}
    table.add_row(SOURCE, *[found[SOURCE, 0]] * len(sizes))
    for kind in (TARGET, *(blend(*setting) for setting in BLENDS)):
        table.add_row(kind, *(found[kind, size] for size in sizes))
    return table


def _draw(rows: list[dict[str, Any]], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.4), layout="constrained", dpi=150)
    kinds = {TARGET: "#D55E00"} | dict(zip((blend(*b) for b in BLENDS), ("#009E73", "#56B4E9", "#0072B2"), strict=True))
    for ax, name in zip(figure.subplots(1, len(CORRUPTIONS), sharey=True), CORRUPTIONS, strict=True):
        own = [row for row in rows if row["corruption"] == name]
        ax.axhline(100 * own[0]["error"]["mean"], color="0.4", linestyle="--", label=SOURCE)
        for kind, colour in kinds.items():
            line = [row for row in own if row["statistics"] == kind]
            ax.errorbar(
                [row["target_images"] for row in line],
                [100 * row["error"]["mean"] for row in line],
                yerr=[100 * (row["error"]["half_width"] or 0) for row in line],
                marker=".",
                capsize=2,
                color=colour,
                label=kind,
            )
        sizes = sorted({row["target_images"] for row in own if row["target_images"]})
        ax.set_xscale("log")
        ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
        ax.set_xticks([], minor=True)
        ax.set_title("nothing shifted" if name == "none" else name, fontsize="medium")
        ax.set_xlabel("target images")
        ax.spines[["top", "right"]].set_visible(False)
        if name == "none":
            ax.set_ylabel("test error, %")
            ax.legend(frameon=False, fontsize="small")
    figure.savefig(path)
    return path
