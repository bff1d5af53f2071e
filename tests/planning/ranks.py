"""What each rank of a sharded model does for test_sharded.py: few imports, since every process repeats them."""

import datetime
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

import unitvar
from tests.flow import ranks as flow

__all__ = ["EXAMPLE", "Net", "built", "work"]

EXAMPLE = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """An odd number of rows, so that shards are uneven; values that the plan reads; several kinds of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = 0.3
        self.table = nn.Embedding(11, 10)
        self.norm = nn.LayerNorm(10)
        self.up = nn.Linear(10, 12)
        self.down = nn.Linear(12, 10)
        self.experts = nn.Parameter(torch.empty(3, 10, 7))  # two dimensions of columns before that of rows
        self.conv = nn.Conv1d(7, 9, 3)
        self.head = nn.Linear(9, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = x + self.down(nn.functional.dropout(self.up(self.norm(x)).relu(), self.rate, self.training))
        x = torch.einsum("btc,eco->bot", x, self.experts).relu()
        return self.head(self.conv(x).mean(2).relu())  # type: ignore[no-any-return]


def built() -> Net:
    """Build the network, the same on every rank, with values of its own in what is left alone."""
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        net.experts.normal_()
        net.table.weight.mul_(0.3)
        net.norm.weight.uniform_(0.5, 2.0)
    return net


def _fsdp(net: Net, mesh: DeviceMesh) -> None:
    for module in (net.up, net.down):
        fully_shard(module, mesh=mesh)
    fully_shard(net, mesh=mesh)


def _tensor_parallel(net: Net, mesh: DeviceMesh) -> None:
    parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def _both(net: Net, mesh: DeviceMesh) -> None:
    _tensor_parallel(net, mesh["tp"])
    _fsdp(net, mesh["dp"])


def _hybrid(net: Net, mesh: DeviceMesh) -> None:
    _fsdp(net, mesh)  # replicated along one dimension, sharded along the other


def _ways(world: int) -> Iterator[tuple[str, Callable[[Net, DeviceMesh], None], DeviceMesh]]:
    line = init_device_mesh("cpu", (world,))
    yield "fsdp", _fsdp, line
    yield "tensor parallel", _tensor_parallel, line
    if world == 4:
        yield "both", _both, init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        yield "hybrid", _hybrid, init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def _full(net: nn.Module) -> list[Tensor]:
    with torch.no_grad():
        return [p.full_tensor().clone() if isinstance(p, DTensor) else p.detach().clone() for p in net.parameters()]


class _Largest(TorchDispatchMode):
    """Remember the largest sum of the storages that are alive at once, without those of a model."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        own = [p.to_local() if isinstance(p, DTensor) else p for p in net.parameters()]
        self.own = {p.untyped_storage()._cdata for p in own}
        self.alive: dict[int, Any] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if type(tensor) is Tensor and tensor.is_floating_point():  # random states are bytes
                storage = tensor.untyped_storage()
                if storage._cdata not in self.own:
                    self.alive[storage._cdata] = weakref.ref(tensor), storage.nbytes()
        self.alive = {key: pair for key, pair in self.alive.items() if pair[0]() is not None}
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return out


@contextmanager
def _seeded(rank: int) -> Iterator[list[bool]]:
    """Give every rank another global random state, and tell whether it is advanced or kept."""
    torch.manual_seed(7 + rank)
    state = torch.get_rng_state()
    moved: list[bool] = []
    yield moved
    moved.append(not torch.equal(state, torch.get_rng_state()))


def _cases(rank: int, world: int, folder: str) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    plan = unitvar.Plan.load(f"{folder}/plan.json")
    for name, shard, mesh in _ways(world):
        net = built()
        shard(net, mesh)
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
        parameters = list(net.parameters())
        with _Largest(net) as largest:
            plan.apply_(net, torch.Generator().manual_seed(3))
        out[name, "apply"], out[name, "peak"] = _full(net), largest.peak
        with torch.device("meta"):
            shell = Net().bfloat16()
        shard(shell, mesh)
        plan.apply_(shell.to_empty(device="cpu"), torch.Generator().manual_seed(3))
        out[name, "materialised"] = _full(shell)
        with _seeded(rank) as moved:  # other random states, and other batches
            made = unitvar.initialize_(net, EXAMPLE if rank == 0 else EXAMPLE[:2], distribution="orthonormal")
        out[name, "initialize"], out[name, "plan"], out[name, "moved"] = _full(net), made, moved[0]
        out[name, "kept"] = hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()] and all(
            a is b for a, b in zip(parameters, net.parameters(), strict=True)
        )
        net(EXAMPLE).sum().backward()  # training works
        out[name, "trains"] = all(p.grad is not None for p in net.parameters())
        with torch.no_grad():
            net(EXAMPLE)  # after which FSDP2 leaves the root's parameters gathered
        plan.apply_(net, torch.Generator().manual_seed(3))
        out[name, "after a run"] = _full(net)
        before = _full(net)
        out[name, "refused"] = []
        for call in (
            lambda: unitvar.initialize_(net, EXAMPLE, method="measured"),  # noqa: B023
            lambda: unitvar.plan(nn.Linear(3, 3), torch.zeros(2, 3)).apply_(net),  # noqa: B023
            lambda: (replace(plan, distribution="normal") if rank else plan).apply_(net),  # noqa: B023
            lambda: (unitvar.plan(nn.Linear(3, 3), EXAMPLE[:, :3].float()) if rank else plan).apply_(net),  # noqa: B023
        ):
            try:
                call()
            except ValueError as error:
                out[name, "refused"].append(str(error))
        out[name, "untouched"] = all(map(torch.equal, before, _full(net)))

        def again() -> Net:
            net = built()
            shard(net, mesh)  # noqa: B023
            return net

        out[name, "way"], out[name, "flow"] = name, flow.cases(again, EXAMPLE, rank, world)
    return out


def work(rank: int, world: int, folder: str) -> None:
    """Run all cases on one rank, and save what came out."""
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world, timeout=limit
    )
    try:
        torch.save(_cases(rank, world, folder), f"{folder}/{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()
    os._exit(0)  # what holds the group keeps gloo's threads; where the interpreter ends under them, it may abort
