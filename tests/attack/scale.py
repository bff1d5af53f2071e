"""Large models, long runs, large batches: what grows with them, and what must not."""

import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import unitvar
from tests.attack.case import Case

__all__ = ["SCALES", "Pointwise", "scales"]


class Pointwise(nn.Module):
    """A layer, and many ops that have no weights and change nothing."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layer, self.count = nn.Linear(4, 4), count

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        for _ in range(self.count):
            x = x * 1.0
        return x


def layers(count: int) -> str:
    """Plan and initialise a deep stack of layers."""
    model = nn.Sequential(*(m for _ in range(count) for m in (nn.Linear(4, 4), nn.ReLU())))
    plan = unitvar.initialize_(model, torch.randn(8, 4))
    return f"{len(plan.layers)} weights planned and filled"


def pointwise(count: int) -> str:
    """Plan a model with many ops that have no weights."""
    return f"{len(unitvar.plan(Pointwise(count), torch.randn(2, 4)).layers)} weight after {count:,} ops"


def channels(count: int) -> str:
    """Re-estimate a BatchNorm with many channels, against torch's own variance."""
    norm, x = nn.BatchNorm1d(count), torch.randn(32, count)
    unitvar.reestimate_bn_(norm, [x[:16], x[16:]])
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_var, x.var(0))
    return f"{count:,} channels as torch.var"


def steps(count: int) -> str:
    """Watch a long training: what is kept between observations must not grow."""
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), torch.randn(4, 2)
    with unitvar.watch(model, every=count) as history:
        for _ in range(200):
            model(x).sum().backward()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(count - 200):
            model(x).sum().backward()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert history.steps == count
    assert grown < 100_000, grown
    return f"{count:,} steps, {grown / 1000:.0f} kB more"


def elements(count: int) -> str:
    """Re-estimate from large batches, against torch's own variance in double precision."""
    norm, x = nn.BatchNorm2d(10), torch.randn(count // 10_000, 10, 25, 40) * 3 + 100
    unitvar.reestimate_bn_(norm, [x])
    assert norm.running_var is not None
    torch.testing.assert_close(
        norm.running_var.double(), x.double().transpose(0, 1).flatten(1).var(1), rtol=1e-5, atol=0
    )
    unitvar.measure(nn.Sequential(nn.Linear(10, 10)), torch.randn(count // 10, 10), runs=1)
    return f"batches of {x.numel():,} elements as torch.var in double precision"


SCALES: dict[str, tuple[Callable[[int], str], int]] = {
    "layers": (layers, 10_000),
    "pointwise ops": (pointwise, 100_000),
    "channels": (channels, 100_000),
    "watched steps": (steps, 100_000),
    "elements of a batch": (elements, 10_000_000),
}


def scales(*, small: int = 1) -> Iterator[Case]:
    """Try every scale, or a fraction of it."""
    for name, (attack, size) in SCALES.items():
        start = time.process_time()
        try:
            note, held = attack(size // small), True
        except Exception as error:
            note, held = f"{type(error).__name__}: {error}"[:200], False
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        yield Case(
            f"{name}: {size // small:,}",
            held,
            f"{note}; {time.process_time() - start:.0f} s of CPU, peak {peak:.0f} MB",
        )
