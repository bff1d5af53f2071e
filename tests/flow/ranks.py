"""What each rank of a sharded model measures for test_sharded.py; run by the processes of tests/planning/ranks.py."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import unitvar

__all__ = ["SPLIT", "cases", "per_example", "reports", "steps"]

SPLIT = "own examples"


def per_example(output: Tensor) -> Tensor:
    """Return a loss that is a sum over examples, so that no example's gradient depends on the others."""
    return output.square().sum()


def reports(net: Any, batch: Tensor, own: Tensor | None = None) -> dict[str, list[dict[str, Any]]]:
    """Measure with dropout and without, with two losses, and on a rank's own examples."""
    found = {}
    for rate in (0.0, 0.3):
        net.rate = rate
        torch.manual_seed(1)
        found[f"dropout {rate}"] = unitvar.measure(net, batch, runs=2).rows
    net.rate = 0.0
    found[SPLIT] = unitvar.measure(net, batch if own is None else own, loss=per_example, runs=1).rows
    return found


def steps(net: Any, batch: Tensor, watched: bool = True) -> tuple[list[dict[str, Any]], list[Tensor]]:
    """Train three steps, without dropout; return what was watched and what came out of the model."""
    net.rate = 0.0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    outputs = []
    with unitvar.watch(net, every=2 if watched else 1000) as history:
        if not watched:
            history.steps = 1
        for _ in range(3):
            optimizer.zero_grad()
            outputs.append(net(batch))
            outputs[-1].square().mean().backward()
            optimizer.step()
    return history.rows, [output.detach() for output in outputs]


def cases(build: Callable[[], Any], batch: Tensor, rank: int, world: int) -> dict[str, Any]:
    """Measure and watch a sharded model; say whether it came out as it went in."""
    net = build()
    net(batch).sum().backward()  # gradients to keep, and a root that FSDP2 leaves gathered
    with torch.no_grad():
        net(batch)
    state = torch.get_rng_state()
    out: dict[str, Any] = {}
    unitvar.measure(net, batch, runs=1)  # which shards the root again
    before = _state(net)
    out["random"] = torch.equal(state, torch.get_rng_state())
    out["measured"] = reports(net, batch, batch[rank::world])
    try:
        unitvar.measure(net, batch, loss=_fails, runs=1)
    except ZeroDivisionError:
        out["failed"] = True
    after = _state(net)
    out["same"] = len(before) == len(after) and all(a is b for (_, a, _), (_, b, _) in zip(before, after, strict=True))
    out["equal"] = all(torch.equal(a, b) for (*_, a), (*_, b) in zip(before, after, strict=True))
    out["watched"], out["trained"] = steps(build(), batch)
    _, out["unwatched"] = steps(build(), batch, watched=False)
    return out


def _fails(output: Tensor) -> Tensor:
    raise ZeroDivisionError


def _state(net: nn.Module) -> list[tuple[str, Any, Tensor]]:
    """List parameters and gradients: names, objects and numbers."""
    named = [(n, t) for n, p in net.named_parameters() for t in (p, p.grad) if t is not None]
    return [(n, t, (t.to_local() if hasattr(t, "to_local") else t).detach().clone()) for n, t in named]
