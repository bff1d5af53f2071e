"""sweep: every trial once, whatever happens on the way."""

import functools
import io
import json
import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from unitvar_reproduction.sweep.run import TrialError, checkpoint_path, forget_checkpoint, sweep, trial_path
from unitvar_reproduction.sweep.store import Files, Ledger
from unitvar_reproduction.sweep.view import SweepView

QUIET = Console(quiet=True)


def wait_until(happened: Callable[[], bool]) -> None:
    """Wait for what must happen, however slow the machine is; what never does is an error after five minutes."""
    end = time.monotonic() + 300
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError("nothing happened in five minutes")
        time.sleep(0.02)


def opened(folder: Path, *names: int) -> str:
    """Let some trials end."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / str(name)).touch()
    return str(folder)


@dataclass(frozen=True)
class Square:
    """A trial that leaves a trace of each time it runs."""

    x: int
    log: str
    gates: str = ""
    """A folder: the trial ends only when there is a file in it that is named after x."""


def square(config: Square) -> dict[str, object]:
    with open(config.log, "a", encoding="utf-8") as file:
        file.write(f"{config.x}\n")
    if config.x < 0:
        raise ValueError("negative")
    if config.gates:
        wait_until((Path(config.gates) / str(config.x)).exists)
    return {"y": config.x**2}


def test_results_come_in_order_and_are_not_computed_twice(tmp_path: Path) -> None:
    configs = [Square(x, str(tmp_path / "log")) for x in range(5)]
    first = sweep(square, configs[:3], tmp_path / "trials", QUIET, label="squares", workers=2)
    both = sweep(square, configs[::-1], tmp_path / "trials", QUIET, label="squares", workers=2, ran={"device": "toy"})
    assert [r["y"] for r in first] == [0, 1, 4]
    assert [r["y"] for r in both] == [16, 9, 4, 1, 0]
    assert sorted((tmp_path / "log").read_text().split()) == list("01234")
    assert {"config", "environment", "y"} <= both[0].keys()
    assert [r["environment"].get("device") for r in both] == ["toy", "toy", None, None, None]  # as each was run


def test_a_settled_trial_leaves_no_checkpoint_and_no_part_of_one(tmp_path: Path) -> None:
    done, other = (Square(x, str(tmp_path / "log")) for x in (1, 2))
    for config in (done, other):
        path = checkpoint_path(tmp_path, config)
        path.parent.mkdir(exist_ok=True)
        path.touch()
        path.with_name(path.name + "abc.partial").touch()  # as a kill in the middle of a save leaves it
    name = trial_path(tmp_path, other).stem
    kept = {path for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(name)}
    forget_checkpoint(tmp_path, done)
    assert set((tmp_path / "checkpoints").iterdir()) == kept
    assert len(kept) == 2


def test_a_trial_that_fails_is_named_and_all_others_run_and_are_kept(tmp_path: Path) -> None:
    configs = [Square(x, str(tmp_path / "log")) for x in (1, -1, 2, -3, 3)]
    console = Console(file=io.StringIO(), width=80)
    with pytest.raises(TrialError, match=r"2 of 5 trials failed(?s:.*)x=-1.*ValueError: negative") as caught:
        sweep(square, configs, tmp_path / "trials", console, label="squares", workers=1)
    assert "Square(x=-3" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    kept = [config.x for config in configs if trial_path(tmp_path / "trials", config).exists()]
    assert kept == [1, 2, 3]
    assert "squares: one failed (x -1)" in console.file.getvalue()  # type: ignore[attr-defined]


def die(config: Square) -> dict[str, object]:
    if config.x:
        os._exit(1)
    return {"y": 0}


def test_a_worker_that_is_killed_is_told_from_a_trial_that_fails(tmp_path: Path) -> None:
    configs = [Square(x, "") for x in (0, 1, 2)]
    with pytest.raises(TrialError, match=r"ended from outside(?s:.*)run the same again, with fewer workers"):
        sweep(die, configs, tmp_path, QUIET, label="squares", workers=1)
    assert trial_path(tmp_path, configs[0]).exists()


def test_a_pool_that_breaks_between_two_trials_is_told_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a worker is killed while the result of another is written."""
    submit, calls = ProcessPoolExecutor.submit, []

    def broken(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise BrokenProcessPool
        return submit(*arguments)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", broken)
    configs = [Square(x, str(tmp_path / "log")) for x in (1, 2)]
    with pytest.raises(TrialError, match="ended from outside"):
        sweep(square, configs, tmp_path, QUIET, label="squares", workers=1)
    assert trial_path(tmp_path, configs[0]).exists()


def test_a_trial_killed_between_its_result_and_its_settling_is_settled_the_next_time(tmp_path: Path) -> None:
    configs = [Square(x, str(tmp_path / "log")) for x in (1, 2)]
    sweep(square, configs[:1], tmp_path / "trials", QUIET, label="squares", workers=1)
    checkpoint = checkpoint_path(tmp_path, configs[0])
    checkpoint.parent.mkdir()
    checkpoint.touch()
    settled = functools.partial(forget_checkpoint, tmp_path)
    sweep(square, configs, tmp_path / "trials", QUIET, label="squares", workers=1, settled=settled)
    assert not checkpoint.exists()
    assert (tmp_path / "log").read_text().split() == ["1", "2"]


def test_a_result_that_is_cut_off_is_named_before_anything_runs(tmp_path: Path) -> None:
    configs = [Square(x, str(tmp_path / "log")) for x in range(2)]
    cut = trial_path(tmp_path / "trials", configs[1])
    for content in ('{"y": ', "[1, 2]"):
        cut.parent.mkdir(exist_ok=True)
        cut.write_text(content)
        with pytest.raises(ValueError, match=f"{re.escape(str(cut))} (is not a complete JSON file|has a JSON list)"):
            sweep(square, configs, tmp_path / "trials", QUIET, label="squares", workers=1)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("workers", [0, -1])
def test_there_is_at_least_one_worker(tmp_path: Path, workers: int) -> None:
    with pytest.raises(ValueError, match=f"workers={workers} is not 1 or more; omit it"):
        sweep(square, [Square(1, str(tmp_path / "log"))], tmp_path, QUIET, label="squares", workers=workers)
    assert list(tmp_path.iterdir()) == []


def _group(group: int) -> bool:
    """Whether a process of the group is alive."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_sweep_resumes_and_loses_only_unfinished_trials(tmp_path: Path) -> None:
    log, folder, gates = tmp_path / "log", tmp_path / "trials", tmp_path / "gates"
    opened(gates, 0, 1)
    script = (
        "from pathlib import Path; from rich.console import Console; from test_sweep import *\n"
        "if __name__ == '__main__':\n"
        f"    configs = [Square(x, {str(log)!r}, {str(gates)!r}) for x in range(6)]\n"
        f"    sweep(square, configs, Path({str(folder)!r}), QUIET, label='squares', workers=1)\n"
    )
    (tmp_path / "main.py").write_text(script)
    root = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
        start_new_session=True,
    )
    try:
        wait_until(lambda: process.poll() is not None or (log.exists() and "2" in log.read_text().split()))
    finally:
        process.kill()  # the parent alone: its workers must notice by themselves, in the middle of a trial
    process.wait()
    wait_until(lambda: not _group(process.pid))
    assert len(list(folder.glob("*.json"))) == 2
    for path in folder.glob("*.json"):
        assert "y" in json.loads(path.read_text())
    configs = [Square(x, str(log), opened(gates, *range(6))) for x in range(6)]
    assert [r["y"] for r in sweep(square, configs, folder, QUIET, label="squares", workers=2)] == [0, 1, 4, 9, 16, 25]
    assert sorted(log.read_text().split()) == list("0122345")  # only the one that was killed ran twice


@pytest.mark.parametrize(
    ("device", "workers", "expected"), [("cpu", None, 6), ("cpu", 3, 3), ("cuda", None, 1), ("cuda:1", 2, 2)]
)
def test_a_gpu_has_one_trial_at_a_time_unless_told_otherwise(
    device: str, workers: int | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def processes(size: int) -> object:
        sizes.append(size)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr("unitvar_reproduction.sweep.run.processes", processes)
    configs = [Square(x, str(tmp_path / "log")) for x in range(9)]
    with pytest.raises(KeyboardInterrupt):
        sweep(square, configs, tmp_path, QUIET, label="squares", device=device, workers=workers)
    assert sizes == [expected]


def test_a_log_has_a_line_for_each_trial_with_the_time_to_go(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=80)
    configs = [Square(x, str(tmp_path / "log")) for x in range(3)]
    sweep(square, configs, tmp_path / "trials", console, label="squares", workers=1)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [re.sub(r"(\d+ min )?\d+ s to go", "a time to go", line) for line in lines] == [
        "squares: 1 of 3 done, a time to go (x 0)",
        "squares: 2 of 3 done, a time to go (x 1)",
        "squares: 3 of 3 done (x 2)",
    ]


class Screen(io.StringIO):
    """A terminal that lets a trial end when it has shown some words."""

    def __init__(self, words: tuple[str, ...], gate: Path) -> None:
        super().__init__()
        self.words, self.gate = words, gate

    def write(self, text: str) -> int:
        written = super().write(text)
        if all(word in self.getvalue() for word in self.words):
            self.gate.touch()
        return written


def test_a_terminal_shows_what_runs_and_what_is_left(tmp_path: Path) -> None:
    """Trial 1 ends only when all of it has been shown, so that what is never shown fails it."""
    gates = opened(tmp_path / "gates", 0, 2)
    screen = Screen(("running", "x 1", "1 of 3 done, 1 pending", "s to go"), tmp_path / "gates" / "1")
    console = Console(file=screen, width=80, force_terminal=True)
    configs = [Square(x, str(tmp_path / "log"), gates) for x in range(3)]
    found = sweep(square, configs, tmp_path / "trials", console, label="squares", workers=1)
    assert [r["y"] for r in found] == [0, 1, 4]


def test_the_time_to_go_counts_what_runs_and_what_waits() -> None:
    progress = SweepView("a", [Square(x, "") for x in range(10)], done=4)
    progress._seconds = [3600.0, 7200.0]
    progress.size = 2
    now = time.monotonic()
    progress.running = {1: (None, now - 1800), 2: (None, now - 9999)}
    # Each takes 5400 s: one has 3600 to go, one is overdue, four wait; two at once.
    assert progress.to_go() == "3 h 30 min"


class Ray(types.ModuleType):
    """A stand-in for Ray, which runs what it is given when it is asked for it."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.log: list[str] = []
        self.asked: list[dict[str, object]] = []
        self.gpus = 0.0

    def init(self, address: str, **_: object) -> None:
        self.log.append(f"init {address}")

    def shutdown(self) -> None:
        self.log.append("shutdown")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0, "GPU": self.gpus}

    def remote(self, **needs: object) -> Any:
        self.asked.append(needs)

        def wrap(function: Any) -> Any:
            return types.SimpleNamespace(remote=lambda *arguments: lambda: function(*arguments))

        return wrap

    def wait(self, handles: list[Any], **_: object) -> tuple[list[Any], list[Any]]:
        self.log.append(f"wait for {len(handles)}")
        return handles[:1], handles[1:]

    def get(self, handle: Any) -> Any:
        return handle()


def test_ray_runs_as_many_as_the_cluster_has_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    configs = [Square(x, str(tmp_path / "log")) for x in range(3)]
    found = sweep(square, configs, tmp_path / "trials", QUIET, label="squares", ray="auto")
    assert [r["y"] for r in found] == [0, 1, 4]
    assert ray.log == ["init auto", "wait for 2", "wait for 2", "wait for 1", "shutdown"]


def test_trials_on_gpus_ask_ray_for_one_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    trials = {"label": "squares", "ray": "auto", "device": "cuda"}
    configs = [Square(x, str(tmp_path / "log")) for x in range(2)]
    with pytest.raises(ValueError, match=r"cluster at 'auto' has no GPU; .* --device cpu"):
        sweep(square, configs, tmp_path / "trials", QUIET, **trials)
    ray.gpus = 1.0
    assert [r["y"] for r in sweep(square, configs, tmp_path / "trials", QUIET, **trials)] == [0, 1]
    assert ray.asked[-1] == {"num_cpus": 1, "num_gpus": 1, "max_retries": 3}
    assert ray.log[-4:] == ["init auto", "wait for 1", "wait for 1", "shutdown"]


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install './reproduction\[ray\]'"):
        sweep(square, [Square(1, str(tmp_path / "log"))], tmp_path / "trials", QUIET, label="squares", ray="auto")


def test_a_trial_that_two_sweeps_ran_has_one_line_in_a_ledger(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Lined:
        index: int
        family: str = "lines"

    for ledger in (Ledger(tmp_path, "family"), Ledger(tmp_path, "family")):
        for index in range(2):
            ledger.save(Lined(index), {"config": {"index": index, "family": "lines"}, "value": index})
    assert [line["value"] for line in Ledger(tmp_path, "family").all("lines")] == [0, 1]


def test_what_a_killed_process_left_of_a_result_is_deleted_once_nobody_writes_to_it(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Lone:
        index: int

    path = trial_path(tmp_path, Lone(0))
    old, new = (path.with_name(f"{path.name}{name}.partial") for name in ("old", "new"))
    for leftover in (old, new):
        leftover.write_text("{", encoding="utf-8")
    os.utime(old, (1, 1))
    Files(tmp_path).save(Lone(0), {"value": 1, "environment": {"x": 1}})
    assert {p.name for p in tmp_path.iterdir()} == {path.name, new.name}
