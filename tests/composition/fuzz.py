"""``make fuzz``: many random networks, and a summary of the weights that are not as predicted.

    python -m tests.composition.fuzz --graphs 1000 --draws 8 --seed 0

Exits with an error if a network crashes, or if fewer than 97 % of all weights are within 1.5 ×.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass

import torch

import unitvar
from tests.composition.random_graphs import BATCH, Description, Graph, seeded
from tests.composition.spelling import drawn, second_moments

__all__ = ["LIMIT", "SHARE", "Finding", "findings"]

LIMIT, SHARE = 1.5, 0.97


@dataclass(frozen=True)
class Finding:
    """One weight of one network: measured over predicted E z², the mean over draws."""

    network: str
    name: str
    path: str
    ratio: float

    @property
    def within(self) -> bool:
        """Whether the ratio is between 1/1.5 and 1.5."""
        return 1 / LIMIT <= self.ratio <= LIMIT

    @property
    def before(self) -> str:
        """Name the op before the weight."""
        return self.path.split(" → ")[-1].split()[0]

    def __str__(self) -> str:
        return f"{self.ratio:9.3g} ×  {self.network} {self.name}: {self.path}"


def findings(description: Description, draws: int, network: str = "") -> list[Finding]:
    """Initialise a network several times; compare each weight's E z² with its prediction.

    Args:
        description: of the network.
        draws: how often, each time with fresh weights, inputs and masks.
        network: what to call it.
    """
    ratios: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for model, x, plan in drawn(lambda: Graph(description), lambda: torch.randn(BATCH, *description.shape), draws):
        assert len(plan) > 2, f"left alone: {plan.skipped}"
        measured = second_moments(model, x)
        for layer in plan:
            if layer.name in measured:  # not a step that nothing uses
                ratios[layer.name, layer.path].append(measured[layer.name] / layer.predicted)
    return [Finding(network, name, path, sum(r) / len(r)) for (name, path), r in ratios.items()]


def main() -> int:
    """Run, and print what was found."""
    parser = argparse.ArgumentParser(description="Compare predicted and measured signals in random networks.")
    parser.add_argument("--graphs", type=int, default=1000, help="how many networks")
    parser.add_argument("--draws", type=int, default=8, help="how many draws of each")
    parser.add_argument("--seed", type=int, default=0, help="of the first network; the next has the next")
    parser.add_argument("--listed", type=int, default=40, help="how many weights to list, worst first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: list[Finding] = []
    crashes: list[str] = []
    start = time.monotonic()
    for seed in range(options.seed, options.seed + options.graphs):
        torch.manual_seed(seed)
        try:
            found += findings(seeded(seed), options.draws, f"seed {seed}")
        except Exception as error:  # all of them are to be counted, not the first
            crashes.append(f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
    outside = sorted((f for f in found if not f.within), key=lambda f: -abs(math.log(max(f.ratio, 1e-30))))
    share = 1 - len(outside) / max(1, len(found))
    lines = [
        f"unitvar {unitvar.__version__}, torch {torch.__version__}: {options.graphs} networks from seed "
        f"{options.seed}, {options.draws} draws each, {time.monotonic() - start:.0f} s",
        f"{len(found)} weights, {100 * share:.2f} % within {LIMIT} ×; {len(outside)} outside; {len(crashes)} crashes",
        "",
        "op before the weight: outside / all, and how often it is the first outside in its network",
    ]
    total, wrong = Counter(f.before for f in found), Counter(f.before for f in outside)
    first = Counter(f.before for f in {f.network: f for f in reversed(found) if not f.within}.values())
    lines += [f"  {op:24} {count:5} / {total[op]:5}   {first[op]:5}" for op, count in wrong.most_common()]
    lines += ["", "outside, worst first:", *map(str, outside[: options.listed])]
    lines += ["", "crashes:", *crashes] if crashes else []
    sys.stdout.write("\n".join(lines) + "\n")
    return int(bool(crashes) or share < SHARE)


if __name__ == "__main__":
    sys.exit(main())
