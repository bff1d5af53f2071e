"""Many random networks, one image each: mean and variance over dropout against brute force, in three precisions.

    python -m tests.expectation.fuzz --graphs 100 --samples 2000 --seed 0

Counts only networks whose output dropout reaches. Exits with an error if one crashes, or has a variance below zero or a
number that is not finite, in float32, float64 or bfloat16.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

import unitvar
from tests.composition.random_graphs import Description, Graph, seeded
from tests.expectation.sampling import runs
from unitvar._torch import AnyBatchNorm
from unitvar.expectation import Expectation

__all__ = ["Finding", "network", "sound"]


@dataclass(frozen=True)
class Finding:
    """One network: distances from the sample mean in deviations, and the ratio of the variances."""

    seed: int
    mean: float
    off: float
    var: float
    ops: str

    def __str__(self) -> str:
        return f"{self.seed:5} mean {self.mean:6.3f}, off {self.off:6.3f}, variance {self.var:7.3f} ×  {self.ops}"


def network(description: Description, dtype: torch.dtype = torch.float32) -> tuple[Graph, Tensor]:
    """Build an initialised network with running statistics that are not the initial ones, and one image."""
    torch.manual_seed(0)
    model, x = Graph(description), torch.randn(1, *description.shape)
    unitvar.initialize_(model, torch.randn(4, *description.shape))
    for module in model.modules():
        if isinstance(module, AnyBatchNorm) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 1.5)
    return model.to(dtype).eval(), x.to(dtype)


def sound(found: Expectation) -> bool:
    """Return True if all numbers are finite and no variance is negative."""
    numbers = (found.mean, found.var, found.probabilities, found.mutual_information)
    return all(bool(t.isfinite().all()) for t in numbers) and bool((found.var >= 0).all())


@torch.no_grad()
def finding(seed: int, samples: int) -> Finding | None:
    """Compare one network with brute force; return None if dropout does not reach its output."""
    description = seeded(seed)
    model, x = network(description)
    found = unitvar.expect(model, x)
    off = model(x)
    if not found.methods:
        assert torch.equal(found.mean, off)
        assert not found.var.any()
        return None
    for dtype in (torch.float64, torch.bfloat16):
        assert sound(unitvar.expect(*network(description, dtype)))
    assert sound(found)
    drawn = runs(model, x, samples, at_once=200)
    centre, spread = drawn.mean(0), drawn.var(0).mean()

    def distance(mean: Tensor) -> float:
        return float(((mean - centre).square().mean() / spread).sqrt())

    ops = " ".join(step.op for step in description.steps)
    return Finding(seed, distance(found.mean), distance(off), float(found.var.mean() / spread), ops)


def main() -> int:
    """Run, and print what was found."""
    parser = argparse.ArgumentParser(description="Compare dropout integrated out with samples in random networks.")
    parser.add_argument("--graphs", type=int, default=100, help="how many networks")
    parser.add_argument("--samples", type=int, default=2000, help="draws of each")
    parser.add_argument("--seed", type=int, default=0, help="of the first network")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: list[Finding] = []
    crashes: list[str] = []
    for seed in itertools.count(options.seed):
        if len(found) + len(crashes) >= options.graphs:
            break
        try:
            one = finding(seed, options.samples)
        except Exception as error:  # all of them are to be counted, not the first
            crashes.append(f"{seed:5} {type(error).__name__}: {str(error).splitlines()[0][:200]}")
            continue
        found += [] if one is None else [one]
    for name in ("mean", "off", "var"):
        tenths = statistics.quantiles([getattr(f, name) for f in found], n=20)
        sys.stdout.write(
            f"{name:5} 5, 25, 50, 75, 90 and 95 %: " + ", ".join(f"{tenths[i]:.3f}" for i in (0, 4, 9, 14, 17, 18))
        )
        sys.stdout.write("\n")
    worst = sorted(found, key=lambda f: f.var)
    lines = [f"{len(found)} networks, {len(crashes)} failures", *crashes, "", *map(str, worst)]
    sys.stdout.write("\n".join(lines) + "\n")
    return int(bool(crashes))


if __name__ == "__main__":
    sys.exit(main())
