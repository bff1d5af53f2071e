"""Networks made of other networks' weights: averages along one run, and the mean of two runs.

Paper: nothing. Averaged weights have statistics that no training has seen. Jordan et al. (2022, REPAIR) show that the
mean of two networks, their units matched by a permutation, fails because variances collapse, and that BatchNorm
statistics computed anew repair it.
Ours: on the embedded digits, with dropout, three kinds of merged weights: an exponential average of a small DenseNet,
half-way and at the end; the mean of two MLPs as they are; the mean of two MLPs, the second's units permuted to match
the first's. Each with its averaged statistics, with torch's update_bn, and with ours. One core, minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from unitvar import reestimated_bn
from unitvar_reproduction import data, networks, record
from unitvar_reproduction.networks.architectures import evaluating
from unitvar_reproduction.statistics import Estimate, estimate
from unitvar_reproduction.sweep.run import sweep
from unitvar_reproduction.training.batchnorm import Batches
from unitvar_reproduction.training.loop import Schedule, evaluate, seeded, train

__all__ = ["Merging", "Trial", "mean_of", "permuted", "run_trial"]

HALFWAY, END = "EMA, half-way", "EMA, end"
SINGLE, PLAIN, MATCHED = "one of the two", "mean of two", "mean of two, matched"
WEIGHTS = (HALFWAY, END, SINGLE, PLAIN, MATCHED)
STATISTICS = ("averaged", "update_bn", "reestimate_bn_")
DECAY = 0.98  # of a step: about three epochs of 16


@dataclass(frozen=True)
class Trial:
    """One DenseNet and two MLPs."""

    seed: int
    epochs: int
    dropout: float


def run_trial(trial: Trial) -> dict[str, object]:
    """Train, merge, and judge each merged network under each kind of statistics."""
    training, test = data.digits(trial.seed)
    batches = Batches(training)
    measured: dict[str, dict[str, dict[str, float]]] = {}

    def judge(name: str, model: nn.Module) -> None:
        measured[name] = in_every_way(model, batches, trial.seed, lambda tried: evaluate(tried, test))

    with seeded(trial.seed):
        model = networks.DenseNet(13, 8, trial.dropout, channels=1)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=True)  # type: ignore[no-untyped-call]
    moments = {trial.epochs // 2: HALFWAY, trial.epochs: END}
    steps = -(-len(training) // 64)
    train(
        model,
        training,
        Schedule(trial.epochs),
        seed=trial.seed,
        points=steps,
        at_point=lambda: average.update_parameters(model),
        after_epoch=lambda epoch: judge(moments[epoch], average) if epoch in moments else None,
    )
    pair = []
    for seed in (2 * trial.seed, 2 * trial.seed + 1):
        with seeded(1000 + seed):
            pair.append(networks.mlp(64, trial.dropout))
        train(pair[-1], training, Schedule(trial.epochs), seed=1000 + seed)
    judge(SINGLE, pair[0])
    judge(PLAIN, mean_of(*pair))
    judge(MATCHED, mean_of(pair[0], permuted(pair[1], pair[0], training.images)))
    return {"measured": measured}


def in_every_way(
    model: nn.Module, batches: Batches, seed: int, measure: Callable[[nn.Module], dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Measure with the statistics that a model has, with update_bn's and with ours; leave the model as it was."""
    found = {STATISTICS[0]: measure(model)}
    other = deepcopy(model).train()
    with seeded(seed):
        update_bn(batches, other)
    found[STATISTICS[1]] = measure(other)
    with reestimated_bn(model, batches):
        found[STATISTICS[2]] = measure(model)
    return found


def mean_of(one: nn.Module, two: nn.Module) -> nn.Module:
    """Average parameters and running statistics."""
    whole, second = deepcopy(one), two.state_dict()
    whole.load_state_dict({k: (v + second[k]) / 2 if v.is_floating_point() else v for k, v in one.state_dict().items()})
    return whole


@torch.no_grad()
def permuted(model: nn.Sequential, like: nn.Sequential, images: Tensor) -> nn.Sequential:
    """Reorder a network's hidden units so that each is most correlated with its namesake in another; same function."""
    ours, theirs = activations(model, images), activations(like, images)
    other = deepcopy(model)
    linears = [i for i, module in enumerate(other) if isinstance(module, nn.Linear)]
    for place, (i, after) in enumerate(pairwise(linears)):
        both = torch.cat((theirs[place], ours[place]), dim=1).T
        width = theirs[place].shape[1]
        correlation = torch.corrcoef(both).nan_to_num()[:width, width:]
        order = torch.from_numpy(linear_sum_assignment(correlation.numpy(), maximize=True)[1])
        for module in (other[i], other[i + 1]):  # the weight and its BatchNorm
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor.dim():
                    tensor.copy_(tensor[order])
        weight = other[after].weight
        assert isinstance(weight, Tensor)
        weight.copy_(weight[:, order])
    return other


def activations(model: nn.Sequential, images: Tensor) -> list[Tensor]:
    """Return what follows each hidden BatchNorm and its activation, without dropout."""
    found, x = [], images
    with evaluating(model), torch.no_grad():
        for module in model:
            x = module(x)
            if isinstance(module, nn.ReLU):
                found.append(x)
    return found


@dataclass(frozen=True)
class Merging:
    """Averaged and merged networks: BatchNorm statistics averaged, by update_bn and by ours, on the embedded digits."""

    out: Path = record.OUT
    """Folder for merging.json and one file for each trial."""

    seeds: int = 10
    """Trials: a DenseNet and two MLPs each."""

    epochs: int = 30
    """Epochs of training."""

    dropout: float = 0.5
    """Drop probability."""

    workers: int | None = None
    """Trials at once; default: one for each core."""

    def run(self, console: Console) -> None:
        """Train, merge, print and save."""
        if self.epochs < 2:
            raise ValueError(f"epochs={self.epochs} has no half-way point; train for 2 or more.")
        trials = [Trial(seed, self.epochs, self.dropout) for seed in range(self.seeds)]
        records = sweep(run_trial, trials, self.out / "merging", console, label="merging", workers=self.workers)
        rows = [summary(weights, name, records) for weights in WEIGHTS for name in STATISTICS]
        console.print(_table(rows))
        config = {key: value for key, value in asdict(self).items() if key not in ("out", "workers")}
        payload = {"experiment": "merging", "config": config, "rows": rows, "environment": record.combined(records)}
        console.print(f"Saved {record.save(self.out / 'merging.json', payload)}")


def summary(weights: str, name: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over trials, and the paired differences to update_bn."""
    row: dict[str, Any] = {"weights": weights, "statistics": name, "seeds": len(records)}
    for metric in ("error", "log_loss"):
        values, base = ([r["measured"][weights][n][metric] for r in records] for n in (name, STATISTICS[1]))
        row[metric] = asdict(estimate(values))
        row[f"{metric} minus update_bn"] = asdict(estimate([a - b for a, b in zip(values, base, strict=True)]))
    return row


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Merged weights on the digits", title_justify="left")
    for head in ("weights", "BatchNorm", "error, %", "log loss", "Δ error to update_bn"):
        table.add_column(head, justify="left" if head in ("weights", "BatchNorm") else "right")
    for row in rows:
        error, loss, delta = (Estimate(**row[key]) for key in ("error", "log_loss", "error minus update_bn"))
        last = row["statistics"] == STATISTICS[-1]
        table.add_row(
            row["weights"], row["statistics"], error.percent(), f"{loss:.3f}", delta.percent(), end_section=last
        )
    return table
