"""Writing under attack: a full disk, one that is read-only, kill -9 at random moments, two writers at once."""

import ctypes
import itertools
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn

import unitvar
from tests.attack.case import Case

__all__ = ["WRITERS", "killed", "together", "unwritable"]

CLONE_NEWNS, MS_RDONLY, MS_REMOUNT, MS_REC, MS_PRIVATE = 0x20000, 1, 32, 0x4000, 0x40000


@dataclass(frozen=True)
class Trial:
    """A trial of an experiment."""

    index: int
    kind: str = "attack"


Write = Callable[[Path, int], object]
Read = Callable[[Path], int]


class _Norms:
    """Statistics of a BatchNorm whose mean says which version they are."""

    @staticmethod
    def write(folder: Path, version: int) -> None:
        x = torch.randn(32, 2000, generator=torch.Generator().manual_seed(0))
        norm = nn.BatchNorm1d(2000)
        unitvar.bn_statistics(norm, [x - x.mean(0) + version]).save(folder / "kept.safetensors")

    @staticmethod
    def read(folder: Path) -> int:
        loaded = unitvar.BatchNormStatistics.load(folder / "kept.safetensors")
        return round(float(loaded.layers[0].mean.mean()))


class _Plans:
    """Plans whose advice says which version they are."""

    @staticmethod
    def write(folder: Path, version: int) -> None:
        from dataclasses import replace

        plan = unitvar.plan(nn.Linear(2, 2), torch.zeros(1, 2))
        replace(plan, advice=(f"{version} " + "x" * 100_000,)).save(folder / "plan.json")

    @staticmethod
    def read(folder: Path) -> int:
        return int(unitvar.Plan.load(folder / "plan.json").advice[0].split()[0])


class _Results:
    @staticmethod
    def write(folder: Path, version: int) -> None:
        from unitvar_reproduction.sweep.store import Files

        Files(folder).save(Trial(0), {"version": version, "curve": [0.5] * 20_000, "environment": {"x": 1}})

    @staticmethod
    def read(folder: Path) -> int:
        from unitvar_reproduction.sweep.store import Files

        return int(Files(folder).load([Trial(0)])[0]["version"])


class _Ledgers:
    """One line a version: those before must stay."""

    @staticmethod
    def write(folder: Path, version: int) -> None:
        from unitvar_reproduction.sweep.store import Ledger

        trial = Trial(version)
        Ledger(folder, "kind").save(trial, {"config": asdict(trial), "curve": [0.5] * 2000})

    @staticmethod
    def read(folder: Path) -> int:
        from unitvar_reproduction.sweep.store import Ledger

        found = sorted(line["config"]["index"] for line in Ledger(folder, "kind").all("attack"))
        assert found == list(range(len(found))), found  # none is lost, none is doubled
        return len(found) - 1


class _Checkpoints:
    @staticmethod
    def write(folder: Path, version: int) -> None:
        from unitvar_reproduction.training.checkpoint import State

        model = nn.Linear(100, 100)
        State(model, torch.optim.SGD(model.parameters(), lr=1.0), torch.Generator(), {}, version).save(folder / "c.pt")

    @staticmethod
    def read(folder: Path) -> int:
        from unitvar_reproduction.training.checkpoint import check

        return int(check(folder / "c.pt")["epoch"])


WRITERS: dict[str, tuple[Write, Read]] = {
    "BatchNorm statistics": (_Norms.write, _Norms.read),
    "plan": (_Plans.write, _Plans.read),
    "result of a trial": (_Results.write, _Results.read),
    "ledger of trials": (_Ledgers.write, _Ledgers.read),
    "checkpoint": (_Checkpoints.write, _Checkpoints.read),
}


def _forked(work: Callable[[], object]) -> int:
    """Start a process that shares what is imported; it ends with 0 if the work succeeds."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _mounted(folder: Path, *, full: bool) -> Callable[[], None]:
    """Put a small disk of its own over a folder, or limit what a process may write; give what spoils it.

    To mount takes rights. Without them a limit on the size of files stands for the full disk.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    own = libc.unshare(CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
    own = own and libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=4m") == 0

    def fill() -> None:
        if not own:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            return
        with open(folder / "filler", "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                return

    def lock() -> None:
        if own:
            assert libc.mount(None, bytes(folder), None, MS_REMOUNT | MS_RDONLY, None) == 0
        else:
            folder.chmod(0o555)

    return fill if full else lock


def _cannot_write(name: str, *, full: bool) -> Case:
    """Write where nothing can be written: an error that names the file, and what was there stays."""
    write, read = WRITERS[name]
    label = f"{name}: {'the disk is full' if full else 'the disk is read-only'}"
    with tempfile.TemporaryDirectory() as outer:
        folder, told = Path(outer) / "disk", Path(outer) / "told.json"
        folder.mkdir()

        def work() -> None:
            told.write_text("{}", encoding="utf-8")
            spoil = _mounted(folder, full=full)
            write(folder, 0)
            spoil()
            before = sorted(path.name for path in folder.iterdir())
            error, notes = "none", ""
            try:
                write(folder, 1)
            except OSError as failure:
                error, notes = f"{type(failure).__name__}: {failure}", "; ".join(getattr(failure, "__notes__", ()))
            after = sorted(path.name for path in folder.iterdir())
            found = {"error": error, "notes": notes, "version": read(folder), "same": before == after}
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            told.write_text(json.dumps(found), encoding="utf-8")

        pid = _forked(work)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
        held = code == 0 and found["error"] != "none" and found["version"] == 0 and found["same"]
        named = str(folder) in found.get("error", "") + found.get("notes", "")
        return Case(label, held and named, f"{found.get('error')} {found.get('notes')}"[:200])


def unwritable() -> Iterator[Case]:
    """Write everything to a full disk and to one that is read-only."""
    for name in WRITERS:
        for full in (True, False):
            yield _cannot_write(name, full=full)


def _write_on(write: Write, folder: Path, last: int) -> None:
    for version in itertools.count(last + 1):
        write(folder, version)


def killed(kills: int = 20) -> Iterator[Case]:
    """Kill each writer with -9 at random moments: what can be read is the last version written or the next one."""
    for name, (write, read) in WRITERS.items():
        rng = Random(name)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "out"
            folder.mkdir()
            write(folder, 0)
            seen, lost = 0, []
            for _ in range(kills):
                pid = _forked(partial(_write_on, write, folder, seen))
                try:
                    end = time.monotonic() + 120
                    while read(folder) == seen and time.monotonic() < end:  # what is read meanwhile is whole, too
                        time.sleep(0.001)
                    time.sleep(rng.uniform(0.0, 0.1))
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    found = read(folder)
                except Exception as error:
                    lost.append(f"{type(error).__name__}: {error}")
                    break
                if found <= seen:
                    lost.append(f"version {found} after {seen}")
                seen = found
            halves = sum(".partial" in path.name or path.name.startswith(".") for path in folder.iterdir())
            yield Case(
                f"{name}: kill -9, {kills} times",
                not lost and seen > 0,
                f"{seen} versions written, {halves} files half written; {lost or 'nothing lost'}",
            )


def together(writers: int = 2, lines: int = 40) -> Iterator[Case]:
    """Let several processes write the same results to one ledger: each line whole, once."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)

        def work() -> None:
            for version in range(lines):
                _Ledgers.write(folder, version)

        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in [_forked(work) for _ in range(writers)]]
        try:
            found, note = _Ledgers.read(folder) + 1, ""
        except Exception as error:
            found, note = -1, f"{type(error).__name__}: {error}"[:150]
        yield Case(f"ledger: {writers} writers", found == lines and not any(codes), f"{found} of {lines} lines; {note}")


def main() -> None:
    """Print what comes of all cases."""
    for case in (*unwritable(), *killed(), *together()):
        print(case, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
