"""Several processes: uneven and empty shards, one that raises, one that is killed, sub-groups, an early stop."""

import datetime
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import unitvar
from tests.attack.case import Case

__all__ = ["SCENARIOS", "ranks"]

DATA = [torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(12)]
TIMEOUT = 20  # seconds
SCENARIOS = ("even", "uneven", "empty", "raises", "killed", "sub-group", "tolerance")


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4))


def _statistics(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for name, buffer in model.named_buffers() if "running" in name]


def _fails(how: str) -> Iterator[Tensor]:
    yield DATA[0]
    if how == "killed":
        os.kill(os.getpid(), 9)
    raise OSError("a broken file")


def _shard(scenario: str, rank: int, world: int) -> Any:
    if scenario in ("raises", "killed") and rank == world - 1:
        return _fails(scenario)
    if scenario == "uneven":
        return DATA[: 12 - world + 1] if rank == 0 else DATA[12 - world + rank : 12 - world + rank + 1]
    if scenario == "empty":
        return [] if rank == world - 1 else DATA[rank :: world - 1]
    return DATA[rank::world]


def _run(rank: int, world: int, folder: str, scenario: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{scenario}-{world}", rank=rank, world_size=world,
        timeout=datetime.timedelta(seconds=TIMEOUT),
    )  # fmt: skip
    group = dist.new_group([0, 1]) if scenario == "sub-group" else None
    model, start = _model(), time.monotonic()
    before = _statistics(model)
    out: dict[str, Any] = {"error": ""}
    options = {"tolerance": 0.5} if scenario == "tolerance" else {}
    try:
        if group is None or rank < 2:
            out["batches"] = unitvar.reestimate_bn_(
                model, _shard(scenario, rank, world), group=group, **options
            ).batches
    except Exception as error:
        out["error"] = f"{type(error).__name__}: {error}"
    out |= {"seconds": time.monotonic() - start, "statistics": _statistics(model), "before": before}
    torch.save(out, f"{folder}/{scenario}-{world}-{rank}.pt")
    os._exit(0)  # a group that has lost a rank cannot be taken apart


def _found(world: int, scenario: str) -> list[dict[str, Any] | None]:
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        processes = [context.Process(target=_run, args=(rank, world, folder, scenario)) for rank in range(world)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(10 * TIMEOUT)
            if process.is_alive():
                process.kill()
        paths = [Path(folder) / f"{scenario}-{world}-{rank}.pt" for rank in range(world)]
        return [torch.load(path) if path.exists() else None for path in paths]


def _same(found: list[dict[str, Any]], expected: list[Tensor] | None) -> bool:
    first = found[0]["statistics"]
    agree = all(torch.equal(a, b) for other in found for a, b in zip(first, other["statistics"], strict=True))
    close = expected is None or all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(first, expected, strict=True))
    return agree and close and not any(other["error"] for other in found)


def judged(world: int, scenario: str) -> Case:
    """Run a scenario and compare: the bits of one process, or an error that names the rank, and no trace."""
    found = _found(world, scenario)
    there = [f for f in found if f is not None]
    kept = all(torch.equal(a, b) for f in there for a, b in zip(f["before"], f["statistics"], strict=True))
    told = "; ".join(f["error"][:90] for f in there if f["error"])
    slowest = max(f["seconds"] for f in there)
    name = f"{world} processes, {scenario}"
    if scenario in ("raises", "killed"):
        others = [f for f in found[: world - 1] if f is not None]
        named = all(f"ank {world - 1}" in f["error"] for f in others) and len(others) == world - 1
        return Case(name, named and kept and slowest < 2 * TIMEOUT, f"{told}; {slowest:.0f} s")
    alone = _model()
    used = [b for rank in range(world) for b in _shard(scenario, rank, world)]
    if scenario == "sub-group":
        used, there = [b for rank in range(2) for b in _shard(scenario, rank, world)], there[:2]
    unitvar.reestimate_bn_(alone, used, group=False)
    return Case(name, _same(there, None if scenario == "tolerance" else _statistics(alone)), f"{told}; {slowest:.0f} s")


def ranks(worlds: tuple[int, ...] = (2, 4)) -> Iterator[Case]:
    """Run every scenario with 2 and 4 processes."""
    for world in worlds:
        for scenario in SCENARIOS:
            yield judged(world, scenario)
