"""BatchNorm statistics of federated clients: merged by counts, against averaging running statistics.

Paper: nothing; its data are in one place.
Ours: the 8x8 digits over ten clients of two classes each, federated averaging of a small DenseNet with dropout. After
the last round the server needs statistics for the averaged weights. It can average what clients' running statistics
have become, or merge what bn_statistics gives at each client: with one message a client that equals pooling all
clients' batches, and a layer at a time it equals what evaluation sees, however skewed the clients are.
One core, minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import unitvar
from unitvar import BatchNormStatistics
from unitvar_reproduction import data, networks, record
from unitvar_reproduction.data.images import Images
from unitvar_reproduction.statistics import Estimate, estimate
from unitvar_reproduction.sweep.run import sweep
from unitvar_reproduction.training.batchnorm import Batches
from unitvar_reproduction.training.loop import Schedule, evaluate, seeded, train

__all__ = ["Federated", "Trial", "run_trial"]

AVERAGED = "averaged running statistics"
MERGED = "merged, one message a client"
POOLED = "pooled over the clients' batches"
LAYERWISE = "merged, a layer at a time"
SHUFFLED = "pooled, all data in one place"
VARIANTS = (AVERAGED, MERGED, POOLED, LAYERWISE, SHUFFLED)


@dataclass(frozen=True)
class Trial:
    """One federated training."""

    seed: int
    rounds: int
    clients: int
    dropout: float


def clients_of(training: Images, clients: int) -> list[Images]:
    """Sort by label and deal two shards to each client, so that most see two classes of ten."""
    order = torch.argsort(training.labels, stable=True)
    shards = torch.chunk(order, 2 * clients)
    return [training[torch.cat((shards[i], shards[i + clients]))] for i in range(clients)]


def run_trial(trial: Trial) -> dict[str, object]:
    """Train by federated averaging and judge the last weights under each kind of statistics."""
    training, test = data.digits(trial.seed)
    parts = clients_of(training, trial.clients)
    with seeded(trial.seed):
        model, local = (networks.DenseNet(13, 8, trial.dropout, channels=1) for _ in range(2))
    for i in range(trial.rounds):
        states = []
        for j, part in enumerate(parts):
            local.load_state_dict(model.state_dict())
            train(local, part, Schedule(1, rate=0.05, batch=20), seed=1000 * trial.seed + 100 * i + j)
            states.append({name: value.clone() for name, value in local.state_dict().items()})
        model.load_state_dict(average(states, [len(part) for part in parts]))
    batches = [Batches(part, 50) for part in parts]
    everyone = [batch for each in batches for batch in each]
    found = {AVERAGED: evaluate(model, test)}
    each = [unitvar.bn_statistics(model, own) for own in batches]
    merged, pooled = each[0].merge(*each[1:]), unitvar.bn_statistics(model, everyone)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for name, statistics in ((MERGED, merged), (POOLED, pooled)):
        statistics.apply_(model)
        found[name] = evaluate(model, test)
    model.load_state_dict(before)
    layer_by_layer(model, batches)
    found[LAYERWISE] = evaluate(model, test)
    exact = unitvar.bn_statistics(model, everyone, method="sequential")
    off = {"merged": deviation(merged, pooled), "a layer at a time": distance(model, exact)}
    model.load_state_dict(before)
    unitvar.reestimate_bn_(model, Batches(training))
    found[SHUFFLED] = evaluate(model, test)
    return {"measured": found, "deviation": off}


def average(states: Sequence[dict[str, Tensor]], sizes: Sequence[int]) -> dict[str, Tensor]:
    """Average parameters and buffers, weighted by the number of images."""
    shares = [size / sum(sizes) for size in sizes]
    whole = {name: sum(s * state[name].double() for s, state in zip(shares, states, strict=True)) for name in states[0]}
    return {name: torch.as_tensor(value).to(states[0][name].dtype) for name, value in whole.items()}


def layer_by_layer(model: nn.Module, batches: Sequence[Batches]) -> None:
    """Merge and apply the first layer's statistics, freeze it, go on with the next: one message a client and layer."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for _ in norms:
        first, *others = (unitvar.bn_statistics(model, own) for own in batches)
        merged = first.merge(*others)
        name = merged.layers[0].name  # the first that is not frozen, in execution order
        merged.select(name).apply_(model)
        model.get_submodule(name).eval().requires_grad_(False)
    for norm in norms:
        norm.train().requires_grad_(True)


def deviation(one: BatchNormStatistics, two: BatchNormStatistics) -> float:
    """Return the largest difference of a mean, in standard deviations, or relative difference of a variance."""
    pairs = list(zip(one, two, strict=True))
    means = max(((a.mean - b.mean).abs() / b.var.sqrt()).max().item() for a, b in pairs)
    return max(means, *((a.var / b.var - 1).abs().max().item() for a, b in pairs))


def distance(model: nn.Module, exact: BatchNormStatistics) -> float:
    """Return the same between what a model holds and other statistics."""
    worst = 0.0
    for layer in exact:
        norm = model.get_submodule(layer.name)
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        means = ((norm.running_mean - layer.mean).abs() / layer.var.sqrt()).max().item()
        worst = max(worst, means, (norm.running_var / layer.var - 1).abs().max().item())
    return worst


@dataclass(frozen=True)
class Federated:
    """Statistics of skewed clients: averaged, merged and pooled, on the embedded digits."""

    out: Path = record.OUT
    """Folder for federated.json and one file for each trial."""

    seeds: int = 5
    """Trainings."""

    rounds: int = 30
    """Rounds of federated averaging, one local epoch each."""

    clients: int = 10
    """Clients, of two classes each."""

    dropout: float = 0.2
    """Drop probability."""

    workers: int | None = None
    """Trials at once; default: one for each core."""

    def run(self, console: Console) -> None:
        """Train, merge, print and save."""
        trials = [Trial(seed, self.rounds, self.clients, self.dropout) for seed in range(self.seeds)]
        records = sweep(run_trial, trials, self.out / "federated", console, label="federated", workers=self.workers)
        rows = [summary(name, records) for name in VARIANTS]
        worst = {key: max(r["deviation"][key] for r in records) for key in records[0]["deviation"]}
        console.print(_table(rows))
        console.print(
            f"Merged from pooled: {worst['merged']:.1e} at most; layer by layer from sequential over all batches: "
            f"{worst['a layer at a time']:.1e}."
        )
        config = {key: value for key, value in asdict(self).items() if key not in ("out", "workers")}
        payload = {"experiment": "federated", "config": config, "rows": rows, "worst_deviation": worst}
        path = record.save(self.out / "federated.json", {**payload, "environment": record.combined(records)})
        console.print(f"Saved {path}")


def summary(name: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean error and log loss of a variant, and the paired difference to averaging."""
    row: dict[str, Any] = {"statistics": name, "seeds": len(records)}
    for metric in ("error", "log_loss"):
        values = [r["measured"][name][metric] for r in records]
        base = [r["measured"][AVERAGED][metric] for r in records]
        row[metric] = asdict(estimate(values))
        row[f"{metric} minus averaged"] = asdict(estimate([a - b for a, b in zip(values, base, strict=True)]))
    return row


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Federated digits, clients of two classes", title_justify="left")
    for head in ("BatchNorm", "test error, %", "log loss", "Δ error"):
        table.add_column(head, justify="left" if head == "BatchNorm" else "right")
    for row in rows:
        error, loss, delta = (Estimate(**row[key]) for key in ("error", "log_loss", "error minus averaged"))
        table.add_row(row["statistics"], error.percent(), f"{loss:.3f}", delta.percent())
    return table
