"""A model sharded over 2 or 4 ranks, on 1-D and 2-D meshes, is filled as the unsharded one, bit for bit."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from filelock import FileLock
from torch import Tensor

import unitvar
from tests.planning.ranks import EXAMPLE, built, work

WAYS = {2: ("fsdp", "tensor parallel"), 4: ("fsdp", "tensor parallel", "both", "hybrid")}
CASES = [(world, way) for world, ways in WAYS.items() for way in ways]


def spawned(world: int, folder: Path) -> None:
    """Run all ranks; a run that hangs is ended."""
    unitvar.plan(built(), EXAMPLE).save(folder / "plan.json")
    context = mp.spawn(work, (world, str(folder)), nprocs=world, join=False)
    deadline = time.monotonic() + 240
    while not context.join(timeout=1):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"{world} processes hang")


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]} ranks, {case[1]}")
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, testrun_uid: str
) -> list[dict[str, Any]]:
    """Give what each rank found, from one run for all tests and test processes."""
    world, way = request.param
    folder = tmp_path_factory.getbasetemp().parent / f"sharded-{testrun_uid}-{world}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            spawned(world, folder)
    found = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]
    return [{key: value for (name, key), value in rank.items() if name == way} for rank in found]


def filled(**options: Any) -> tuple[list[Tensor], unitvar.Plan]:
    net = built()
    torch.manual_seed(7)
    made = unitvar.initialize_(net, EXAMPLE, **options)
    return [p.detach() for p in net.parameters()], made


@pytest.mark.parametrize("when", ["apply", "after a run"])
def test_apply_fills_all_shards_with_the_bits_of_the_unsharded_model(ranks: list[dict[str, Any]], when: str) -> None:
    expected, _ = filled(generator=torch.Generator().manual_seed(3))
    for rank in ranks:
        assert all(map(torch.equal, rank[when], expected))


def test_a_model_sharded_on_the_meta_device_is_filled_after_it_gets_memory(ranks: list[dict[str, Any]]) -> None:
    """In bfloat16: the numbers are those of a float32 weight, rounded."""
    expected, made = filled(generator=torch.Generator().manual_seed(3))
    names = [name for name, _ in built().named_parameters()]
    written = {name for layer in made for name in (layer.name, *layer.biases)}
    for rank in ranks:
        for name, found, weight in zip(names, rank["materialised"], expected, strict=True):
            assert name not in written or torch.equal(found, weight.bfloat16())


def test_initialize_plans_and_fills_as_the_first_rank_alone(ranks: list[dict[str, Any]]) -> None:
    """Ranks have other random states and other batches; the weights are those of the first, the states stay apart."""
    expected, made = filled(distribution="orthonormal")
    for number, rank in enumerate(ranks):
        assert all(map(torch.equal, rank["initialize"], expected))
        assert rank["plan"].layers == made.layers
        assert rank["plan"].skipped == made.skipped
        assert rank["plan"].parameters == made.parameters
        assert rank["moved"] is (number == 0)


def test_the_model_stays_sharded_and_trains(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["kept"] and rank["trains"] for rank in ranks)


def test_no_rank_draws_into_more_than_one_layer_and_its_shard(ranks: list[dict[str, Any]]) -> None:
    weights = [layer.shape for layer in unitvar.plan(built(), EXAMPLE)]
    largest = max(4 * torch.Size(shape).numel() for shape in weights)
    assert 2 * largest < sum(4 * torch.Size(shape).numel() for shape in weights)  # the bound below says something
    peaks = [rank["peak"] for rank in ranks]
    assert largest <= min(peaks)
    assert max(peaks) <= 2 * largest


def test_what_cannot_be_done_is_refused_and_leaves_no_trace(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        measured, other, differs, alone = rank["refused"]
        assert "has a different plan" in differs
        assert ("does not fit the plan" if number else "Another rank rejected its plan") in alone
        assert 'method="measured" rescales whole weights' in measured
        assert "does not fit the plan: it lacks weight, bias" in other
        assert rank["untouched"]
