"""Several processes: one result, the same bits everywhere, and no failure that hangs."""

import datetime
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from filelock import FileLock
from torch import Tensor, nn

import unitvar
from tests.batchnorm.test_reestimate import actual, mlp, norms

DATA = [torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (16, 3, 1, 24, 9, 30, 12)]
#                 rank by rank: uneven, and one of four has nothing at all
SHARDS = {2: [DATA[:5], DATA[5:]], 4: [DATA[:3], [], DATA[3:4], DATA[4:]]}

Found = list[dict[Any, Any]]


def fresh(norm: type[nn.Module] = nn.BatchNorm1d) -> nn.Sequential:
    torch.manual_seed(0)
    return mlp(0.5, depth=3, width=8, norm=norm)


def stats(model: nn.Module) -> list[Tensor]:
    return [x.clone() for n in norms(model) for x in (n.running_mean, n.running_var)]


class Failing:
    """Breaks, or brings a NaN, at its second batch; the other ranks go on."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def __iter__(self):
        yield DATA[0]
        if self.error is not None:
            raise self.error
        yield torch.full((4, 8), torch.nan)


def attempt(model: nn.Module, batches: Any, **options: Any) -> dict[str, str | bool]:
    before = stats(model)
    try:
        unitvar.reestimate_bn_(model, batches, **options)
    except BaseException as error:
        kept = all(map(torch.equal, before, stats(model)))
        return {"kind": type(error).__name__, "text": str(error), "kept": kept}
    return {"kind": "none"}


def scenarios(rank: int, world: int) -> dict[str, Any]:
    mine, out = SHARDS[world][rank], {}
    for method in ("one-pass", "sequential"):
        model = fresh()
        report = unitvar.reestimate_bn_(model, mine, method=method)
        errors = [layer.standard_error for layer in report]
        out[method] = stats(model), report.batches, [layer.values for layer in report], errors
    model = fresh(nn.SyncBatchNorm)
    unitvar.reestimate_bn_(model, mine)
    out["sync"] = stats(model)
    wrapped = nn.parallel.DistributedDataParallel(fresh())
    unitvar.reestimate_bn_(wrapped, mine)
    out["ddp"] = stats(wrapped)

    model = fresh()
    if rank == 0:  # a call on one rank alone must not wait for the others
        unitvar.reestimate_bn_(model, DATA, group=False)
    out["alone"] = stats(model)
    pair = dist.new_group([0, 1])
    if rank < 2:
        unitvar.reestimate_bn_(model := fresh(), DATA[rank : rank + 1], group=pair)
        out["pair"] = stats(model)
    else:
        out["outsider"] = attempt(model, DATA, group=pair)

    last = world - 1
    for name, error in (("loader", OSError("disk")), ("interrupt", KeyboardInterrupt()), ("nan", None)):
        for method in ("one-pass", "sequential"):
            bad = Failing(error) if rank == last else mine or DATA[:1]
            out[name, method] = attempt(fresh(), bad, method=method)
    out["one-shot"] = attempt(fresh(), iter(DATA) if rank == last else DATA, method="sequential")
    out["empty"] = attempt(fresh(), [])
    lazy = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    out["lazy"] = attempt_lazy(lazy, [] if rank == last else DATA)
    return out


def attempt_lazy(model: nn.Module, batches: Any) -> tuple[str, bool]:
    try:
        unitvar.reestimate_bn_(model, batches)
    except (ValueError, RuntimeError) as error:
        return str(error), isinstance(model[1], nn.LazyBatchNorm1d)
    return "none", False


def sharded(rank: int, world: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,))
    mine, out = SHARDS[world][rank], {}
    for method in ("one-pass", "sequential"):
        model = fresh()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        unitvar.reestimate_bn_(model, mine, method=method)
        out[method] = stats(model)
        bad = Failing(OSError("disk")) if rank == world - 1 else DATA
        out["failure", method] = attempt(model, bad, method=method)
        kinds = {type(p).__name__ for p in model.parameters()}
        model(DATA[0]).square().mean().backward()  # training goes on, and shards again
        out["after", method] = kinds, {type(p.grad).__name__ for p in model.parameters() if p.grad is not None}
    return out


def worker(rank: int, world: int, folder: str, work: str) -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world, timeout=limit
    )
    try:
        torch.save(globals()[work](rank, world), f"{folder}/{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()
    os._exit(0)  # DDP keeps gloo's threads alive; where the interpreter ends under them, the process may abort


def run(world: int, folder: Path, work: str) -> Found:
    context = mp.spawn(worker, (world, str(folder), work), nprocs=world, join=False)
    deadline = time.monotonic() + 120
    while not context.join(timeout=1):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"{work} hangs on {world} processes")
    return load(world, folder)


def load(world: int, folder: Path) -> Found:
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Found:
    # Test processes share one run: the folder above theirs is common to all of them.
    folder = tmp_path_factory.getbasetemp().parent / f"ranks-{testrun_uid}-{request.param}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            run(request.param, folder, "scenarios")
    return load(request.param, folder)


@pytest.mark.parametrize("method", ["one-pass", "sequential"])
def test_all_ranks_end_with_the_same_bits_equal_to_one_process(ranks: Found, method: str) -> None:
    single = fresh()
    # A batch of a single value takes what was pooled on its rank so far: here the order is the same in one process.
    report = unitvar.reestimate_bn_(single, DATA, method=method)
    for rank in ranks:
        found, batches, values, errors = rank[method]
        assert all(map(torch.equal, found, ranks[0][method][0]))
        assert batches == report.batches == len(DATA)
        assert values == [layer.values for layer in report]
        for a, b in zip(found, stats(single), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        for a, layer in zip(errors, report, strict=True):
            torch.testing.assert_close(a, layer.standard_error, rtol=1e-3, atol=1e-6)


def test_sequential_over_ranks_is_what_evaluation_sees(ranks: Found) -> None:
    model = fresh()
    found = iter(ranks[-1]["sequential"][0])
    for norm in norms(model):
        norm.running_mean.copy_(next(found))
        norm.running_var.copy_(next(found))
    for norm, (_, var) in actual(model, DATA).items():
        torch.testing.assert_close(norm.running_var.double(), var, rtol=1e-5, atol=0)


def test_sync_batch_norm_and_ddp_give_the_same(ranks: Found) -> None:
    for rank in ranks:
        for kind in ("sync", "ddp"):
            assert all(map(torch.equal, rank[kind], ranks[0]["one-pass"][0]))


def test_group_false_is_this_process_alone_and_a_group_is_that_group(ranks: Found) -> None:
    alone, pair = fresh(), fresh()
    unitvar.reestimate_bn_(alone, DATA)
    unitvar.reestimate_bn_(pair, DATA[:2])
    assert all(map(torch.equal, ranks[0]["alone"], stats(alone)))
    assert all(map(torch.equal, ranks[1]["alone"], stats(fresh())))
    for rank in ranks[:2]:
        for a, b in zip(rank["pair"], stats(pair), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    for rank in ranks[2:]:
        assert "not in group" in rank["outsider"]["text"]


@pytest.mark.parametrize("method", ["one-pass", "sequential"])
@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        ("loader", "OSError", "disk"),
        ("interrupt", "KeyboardInterrupt", ""),
        ("nan", "ValueError", "Batch 1 gives BatchNorm"),
    ],
)
def test_a_failure_on_one_rank_is_an_error_that_names_it_on_all(ranks, case, kind, text, method) -> None:
    *others, failed = [rank[case, method] for rank in ranks]
    assert failed["kind"] == kind
    assert text in failed["text"]
    for other in others:
        assert other["kind"] == "RuntimeError"
        assert f"Rank {len(others)} failed" in other["text"]
        assert text in other["text"]
    assert all(rank["kept"] for rank in (*others, failed))


def test_arguments_that_are_wrong_on_one_rank_do_not_hang_either(ranks: Found) -> None:
    *others, failed = [rank["one-shot"] for rank in ranks]
    assert "read only once" in failed["text"]
    assert all("read only once" in other["text"] for other in others)
    assert all("batches is empty" in rank["empty"]["text"] for rank in ranks)
    assert all("Lazy layer '0' needs a batch" in text and still_lazy for text, still_lazy in (r["lazy"] for r in ranks))


def test_fsdp2_models_work_with_uneven_shards_and_failures(tmp_path: Path) -> None:
    found = run(2, tmp_path, "sharded")
    for method in ("one-pass", "sequential"):
        single = fresh()
        unitvar.reestimate_bn_(single, DATA, method=method)
        for rank in found:
            for a, b in zip(rank[method], stats(single), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
            assert rank["failure", method]["kept"]
            assert rank["after", method] == ({"DTensor"}, {"DTensor"})
        assert "Rank 1 failed" in found[0]["failure", method]["text"]
