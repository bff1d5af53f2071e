"""Attack the library, and write down what held: `make attack`."""

import argparse
import json
import platform
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from tests.attack import faults
from tests.attack.calls import CALLS
from tests.attack.case import Case
from tests.attack.files import files
from tests.attack.loaders import odd_loaders
from tests.attack.models import module_database, odd_models, shaped_models
from tests.attack.peers import peers
from tests.attack.ranks import ranks
from tests.attack.scale import scales
from tests.attack.threads import threads

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "attack.json"


def _faults(where: str, step: int) -> Iterator[Case]:
    for name in CALLS:
        for kind in faults.KINDS:
            if where == "ops":
                yield from faults.at_ops(name, kind, range(1, faults.ops_of(name) + 1, step))
            elif where == "lines":
                lines = sorted(faults.lines_of(name).items())
                yield from faults.at_lines(name, kind, [(place, v) for place, n in lines for v in {1, n}][::step])
            else:
                yield from (faults.at_hooks if where == "hooks" else faults.at_batches)(name, kind)


SAMPLED = ("an error or an interrupt at an op", "an error or an interrupt at a line of the library")
ATTACKS: dict[str, Callable[[int], Iterable[Case]]] = {
    "an error or an interrupt at an op": lambda step: _faults("ops", step),
    "an error or an interrupt at a line of the library": lambda step: _faults("lines", step),
    "an error or an interrupt in a hook": lambda step: _faults("hooks", step),
    "an error or an interrupt at a batch": lambda step: _faults("batches", step),
    "odd models": lambda step: odd_models(),
    "models of the shapes that torchinfo and fvcore test": lambda step: shaped_models(),
    "torch's database of modules": lambda step: module_database(),
    "peers' own cases for BatchNorm": lambda step: peers(),
    "odd loaders": lambda step: odd_loaders(),
    "two threads at once": lambda step: threads(),
    "processes": lambda step: ranks(),
    "files": lambda step: files(),
    "scale": lambda step: scales(),
}


def _anywhere(note: str) -> str:
    """Leave out of a message the temporary folder that a case ran in."""
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/[^/\s'\"]+/", "", note)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all attacks, or those that are named, and merge what came of them into the results.

    Args:
        arguments: of the command line.

    Returns:
        1 if there is a case that did not hold, else 0.
    """
    parser = argparse.ArgumentParser(description="Attack the library, and write down what held.")
    parser.add_argument("--only", action="append", choices=list(ATTACKS), help="run this attack alone")
    parser.add_argument("--every", type=int, default=1, help="try every so-manieth op and line")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = json.loads(chosen.out.read_text(encoding="utf-8")) if chosen.out.exists() else {"attacks": {}}
    failed = 0
    for name in chosen.only or ATTACKS:
        start, cases = time.process_time(), list(ATTACKS[name](chosen.every))
        broken = [case for case in cases if not case.held]
        failed += len(broken) + (not cases)
        found["attacks"][name] = {
            "cases": len(cases),
            "held": len(cases) - len(broken),
            "every": chosen.every if name in SAMPLED else 1,
            "cpu_seconds": round(time.process_time() - start),
            "broken": [case._replace(note=_anywhere(case.note))._asdict() for case in broken],
            "notes": {case.name: _anywhere(case.note) for case in cases} if len(cases) < 200 else {},
        }
        print(f"{name}: {len(cases) - len(broken)} of {len(cases)} held", flush=True)  # noqa: T201
        for case in broken[:20]:
            print(f"  {case.name}: {case.note}", flush=True)  # noqa: T201
        found["environment"] = {"torch": torch.__version__, "python": platform.python_version()}
        chosen.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
