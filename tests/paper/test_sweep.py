"""sweep: every trial once, whatever happens on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from unitvar.paper.sweep import sweep, trial_path

QUIET = Console(quiet=True)


@dataclass(frozen=True)
class Square:
    """A trial that leaves a trace of each time it runs."""

    x: int
    log: str
    nap: float = 0.0


def square(config: Square) -> dict[str, object]:
    with open(config.log, "a", encoding="utf-8") as file:
        file.write(f"{config.x}\n")
    if config.x < 0:
        raise ValueError("negative")
    time.sleep(config.nap)
    return {"y": config.x**2}


def test_results_come_in_order_and_are_not_computed_twice(tmp_path: Path) -> None:
    configs = [Square(x, str(tmp_path / "log")) for x in range(5)]
    first = sweep(square, configs[:3], tmp_path / "trials", QUIET, label="squares", workers=2)
    both = sweep(square, configs[::-1], tmp_path / "trials", QUIET, label="squares", workers=2)
    assert [r["y"] for r in first] == [0, 1, 4]
    assert [r["y"] for r in both] == [16, 9, 4, 1, 0]
    assert sorted((tmp_path / "log").read_text().split()) == list("01234")
    assert {"config", "environment", "y"} <= both[0].keys()


def test_a_trial_that_fails_is_raised_and_the_others_are_kept(tmp_path: Path) -> None:
    configs = [Square(x, str(tmp_path / "log")) for x in (1, -1)]
    with pytest.raises(ValueError, match="negative"):
        sweep(square, configs, tmp_path / "trials", QUIET, label="squares", workers=1)
    assert trial_path(tmp_path / "trials", configs[0]).exists()
    assert not trial_path(tmp_path / "trials", configs[1]).exists()


def test_a_killed_sweep_resumes_and_loses_only_unfinished_trials(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "trials"
    script = (
        "from pathlib import Path; from rich.console import Console; from tests.paper.test_sweep import *\n"
        "if __name__ == '__main__':\n"
        f"    configs = [Square(x, {str(log)!r}, nap=0.3) for x in range(6)]\n"
        f"    sweep(square, configs, Path({str(folder)!r}), QUIET, label='squares', workers=1)\n"
    )
    (tmp_path / "main.py").write_text(script)
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py")], env={**os.environ, "PYTHONPATH": str(root)}, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(list(folder.glob("*.json")) if folder.exists() else []) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = len(list(folder.glob("*.json")))
    assert 2 <= finished < 6
    for path in folder.glob("*.json"):
        assert "y" in json.loads(path.read_text())
    configs = [Square(x, str(log), nap=0.3) for x in range(6)]
    assert [r["y"] for r in sweep(square, configs, folder, QUIET, label="squares", workers=2)] == [0, 1, 4, 9, 16, 25]
    assert len(log.read_text().split()) <= 6 + 1  # at most the one that was killed ran twice
