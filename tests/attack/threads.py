"""Two threads with two models at once: each gets, to the bit, what it gets alone.

The models draw no random numbers: torch's global generators belong to the process, and what one thread draws from them
depends on what the other has drawn.
"""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch
from torch import Tensor, nn

import unitvar
from tests.attack.case import Case
from tests.attack.snapshot import process_state

__all__ = ["JOBS", "at_once", "threads"]


def _network(seed: int, dropout: float = 0.0) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    width = 4 + seed
    model = nn.Sequential(
        nn.Linear(width, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 8), nn.BatchNorm1d(8),
        nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return model


def _batches(seed: int) -> list[Tensor]:
    return list(torch.randn(4, 16, 4 + seed, generator=torch.Generator().manual_seed(100 + seed)))


def _bits(model: nn.Module, *more: Tensor) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in (*model.state_dict().values(), *more)]


def _plan(seed: int) -> object:
    return str(unitvar.plan(_network(seed), _batches(seed)[0])), _bits(_network(seed))


def _fill(seed: int, method: str) -> object:
    model, generator = _network(seed), torch.Generator().manual_seed(seed)
    plan = unitvar.initialize_(model, _batches(seed)[0], method=method, generator=generator)
    return str(plan), _bits(model)


def _measure(seed: int) -> object:
    model = _network(seed)
    report = unitvar.measure(model, _batches(seed)[0], loss=lambda out: out.square().mean(), runs=2)
    return repr(report.rows), _bits(model)


def _watch(seed: int) -> object:
    model = _network(seed)
    with unitvar.watch(model, every=2) as history:
        for batch in _batches(seed):
            model(batch).square().mean().backward()
    return repr(history.rows), _bits(model, *(p.grad for p in model.parameters() if p.grad is not None))


def _reestimate(seed: int, method: str) -> object:
    model = _network(seed)
    return repr(unitvar.reestimate_bn_(model, _batches(seed), method=method).rows), _bits(model)


def _borrow(seed: int) -> object:
    model, batches = _network(seed), _batches(seed)
    with unitvar.reestimated_bn(model, batches):
        inside = _bits(model)
    return inside, _bits(model)


def _expect(seed: int) -> object:
    model = _network(seed, dropout=0.4)
    found = unitvar.expect(model, _batches(seed)[0])
    return _bits(model, found.mean, found.var)


JOBS: dict[str, Callable[[int], object]] = {
    "plan": _plan,
    "initialize_, analytic": lambda seed: _fill(seed, "analytic"),
    "initialize_, measured": lambda seed: _fill(seed, "measured"),
    "measure": _measure,
    "watch": _watch,
    "reestimate_bn_": lambda seed: _reestimate(seed, "one-pass"),
    "reestimate_bn_, sequential": lambda seed: _reestimate(seed, "sequential"),
    "reestimated_bn": _borrow,
    "expect": _expect,
}


def at_once(*names: str, times: int = 3) -> Case:
    """Run jobs in threads of their own, several times over, each on models of its own."""
    alone = [JOBS[name](seed) for seed, name in enumerate(names)]
    before, barrier = process_state(), Barrier(len(names))

    def work(seed: int, name: str) -> list[object]:
        found = []
        try:
            for _ in range(times):
                barrier.wait(60)
                found.append(JOBS[name](seed))
        except BaseException:
            barrier.abort()  # nobody waits for this one
            raise
        return found

    with ThreadPoolExecutor(len(names)) as pool:
        futures = [pool.submit(work, seed, name) for seed, name in enumerate(names)]
        errors = [error for future in futures if (error := future.exception(timeout=300)) is not None]
    if errors:
        return Case(" and ".join(names), False, "; ".join(f"{type(e).__name__}: {e}" for e in errors)[:200])
    found = [future.result() for future in futures]
    wrong = [name for name, result, runs in zip(names, alone, found, strict=True) if any(r != result for r in runs)]
    left = [key for key, value in process_state().items() if before[key] != value]
    return Case(" and ".join(names), not wrong and not left, f"other results: {wrong}; left: {left}")


def threads(times: int = 5) -> Iterator[Case]:
    """Run every job beside every other, and four threads at once."""
    for one, two in itertools.combinations_with_replacement(JOBS, 2):
        yield at_once(one, two, times=times)
    yield at_once("measure", "watch", "initialize_, measured", "expect", times=times)
