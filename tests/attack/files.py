"""Hostile files: what the reproduction reads, downloads and leaves behind, and what the library saves and loads."""

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np

from tests.attack.artefacts import artefacts
from tests.attack.case import Case
from tests.attack.writing import killed, together, unwritable

__all__ = ["files"]

TESTS = Path(__file__).parents[2] / "reproduction" / "tests"


def _header(*sizes: int) -> bytes:
    return b"\0\0\x08" + bytes([len(sizes)]) + b"".join(int(s).to_bytes(4, "big") for s in sizes)


def _bomb() -> bytes:
    """A file of a few kilobytes that expands to 64 MB where 5 labels belong."""
    return gzip.compress(_header(5) + bytes(1 << 26))


IDX: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "empty": lambda whole: b"",
    "a page of a proxy": lambda whole: b"<html>Not found</html>" * 20,
    "one byte short": lambda whole: gzip.compress(gzip.decompress(whole)[:-1]),
    "one byte long": lambda whole: gzip.compress(gzip.decompress(whole) + b"!"),
    "an oversized header": lambda whole: gzip.compress(_header(1 << 31, 1 << 31, 1 << 31)),
    "a negative size": lambda whole: gzip.compress(_header(-1 & 0xFFFFFFFF, 28, 28) + bytes(28 * 28)),
    "255 dimensions": lambda whole: gzip.compress(b"\0\0\x08\xff" + bytes(2000)),
    "another type": lambda whole: gzip.compress(b"\0\0\x0d" + gzip.decompress(whole)[3:]),
    "a pickle": lambda whole: b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00.",
    "expands without end": lambda whole: _bomb(),
}


def _refused(name: str, call: Callable[[], object], path: Path) -> Case:
    try:
        call()
    except ValueError as error:
        return Case(name, path.name in str(error), str(error)[:120])
    except Exception as error:
        return Case(name, False, f"{type(error).__name__}: {error}"[:120])
    return Case(name, False, "accepted")


def _readers(folder: Path) -> Iterator[Case]:
    from fake import write_cifar10, write_mnist, write_svhn
    from unitvar_reproduction import data

    path = write_mnist(folder, 5) or folder
    path = folder / "mnist" / "train-labels-idx1-ubyte.gz"
    whole = path.read_bytes()
    for name, spoil in IDX.items():
        path.write_bytes(spoil(whole))
        yield _refused(f"IDX: {name}", lambda: data.mnist(folder), path)
    for write, read, file in (
        (write_cifar10, data.cifar10, "cifar-10-batches-bin/data_batch_2.bin"),
        (write_svhn, data.svhn, "svhn/train_32x32.mat"),
    ):
        write(folder, 5)
        path = folder / file
        whole = path.read_bytes()
        for name in ("truncated", "empty", "a page of a proxy", "a pickle"):
            path.write_bytes(IDX[name](whole))
            yield _refused(f"{path.suffix}: {name}", lambda read=read: read(folder), path)


def _archive(**members: bytes | str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _archives(folder: Path) -> Iterator[Case]:
    import hashlib

    from rich.console import Console

    from fake import serving
    from unitvar_reproduction.data import fetch
    from unitvar_reproduction.data.sources import Dataset, Part

    def checksum(body: bytes) -> str:
        return f"sha256:{hashlib.sha256(body).hexdigest()}"

    secret = folder / "secret"
    secret.write_bytes(b"secret")
    wanted = b"what is wanted"
    bodies = {
        "climbs out of its folder": _archive(**{"../climbed": b"x", "bin/a": wanted}),
        "an absolute path": _archive(**{str(folder / "absolute"): b"x", "bin/a": wanted}),
        "a link in place of the file": _archive(**{"bin/a": str(secret)}),
        "another file under the name": _archive(**{"bin/a": b"not it"}),
        "without the file": _archive(**{"bin/b": wanted}),
        "expands without end": _archive(**{"bin/a": bytes(1 << 26)}),
        "no archive": b"<html>Not found</html>",
    }
    for name, body in bodies.items():
        cache = folder / "cache" / name
        with serving({"x.tar.gz": body}) as server:
            dataset = Dataset((server.url,), {"bin/a": Part(checksum(wanted), 1)}, "x.tar.gz", checksum(body))
            try:
                fetch.fetch("set", dataset, cache, Console(quiet=True))
                done = (cache / "bin" / "a").read_bytes() == wanted
                note = "the wanted file alone" if done else "a wrong file"
            except Exception as error:
                done, note = isinstance(error, ValueError), f"{type(error).__name__}: {error}"[:120]
        strays = [p.name for p in folder.rglob("*") if p.name in ("climbed", "absolute")]
        left = [p.name for p in cache.rglob("a") if p.is_symlink() or p.read_bytes() != wanted]
        yield Case(f"archive: {name}", done and not strays and not left, f"{note}; left: {strays + left}")


def _mirrors(folder: Path) -> Iterator[Case]:
    import hashlib

    from rich.console import Console

    from fake import serving
    from unitvar_reproduction.data import fetch
    from unitvar_reproduction.data.sources import Dataset, Part

    body = bytes(range(256)) * 400
    part = Part(f"sha256:{hashlib.sha256(body).hexdigest()}", 1)
    for name, served, breaks in (
        ("serves another file", b"not it" * 1000, None), ("breaks off", body, 4096), ("serves nothing", b"", None)
    ):  # fmt: skip
        with serving({"a": served}) as bad, serving({"a": body}) as good:
            if breaks:
                bad.break_after = breaks
            where = folder / name
            fetch.fetch("set", Dataset((bad.url, good.url), {"s/a": part}), where, Console(quiet=True))
            yield Case(f"mirror: {name}", (where / "s" / "a").read_bytes() == body, "the other mirror's file is kept")


TRIALS = 150
SWEEP = f"""
import sys, time
from dataclasses import dataclass
from pathlib import Path
from rich.console import Console
from unitvar_reproduction.sweep.run import sweep
@dataclass(frozen=True)
class Trial:
    index: int
def trial(config):
    time.sleep(0.02)
    with open(sys.argv[2], "a") as ran:
        ran.write(f"{{config.index}}\\n")
    return {{"value": config.index ** 2}}
if __name__ == "__main__":
    trials = [Trial(i) for i in range({TRIALS})]
    sweep(trial, trials, Path(sys.argv[1]), Console(quiet=True), label="attack", workers=1)
"""


def _sweeps(folder: Path, kills: int) -> Iterator[Case]:
    """Kill a sweep at random moments, then let it end: nothing lost, nothing doubled in its results.

    A moment is counted from the first trial, since most of the time of a new process goes into imports.
    """
    script, out, ran = folder / "sweep_script.py", folder / "out", folder / "ran"
    script.write_text(SWEEP, encoding="utf-8")
    ran.touch()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, str(script), str(out), str(ran)], env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def values() -> list[int]:
        return sorted(json.loads(p.read_text(encoding="utf-8"))["value"] for p in out.glob("*.json"))

    rng = Random(0)
    for kill in range(kills):
        before, trials = values(), ran.read_text(encoding="utf-8")
        process = start()
        while process.poll() is None and ran.read_text(encoding="utf-8") == trials:
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        after, again = values(), ran.read_text(encoding="utf-8")[len(trials) :].split()
        doubled = {int(index) ** 2 for index in again} & set(before)
        held = set(before) <= set(after) and len(set(after)) == len(after) and not doubled and bool(again)
        yield Case(f"sweep: kill -9 number {kill + 1}", held, f"{len(before)} results before, {len(after)} after")
    pair = [start(), start()]  # two in one folder
    codes = [process.wait() for process in pair]
    done = values() == [i * i for i in range(TRIALS)]
    yield Case("sweep: two in one folder, after all kills", done and codes == [0, 0], f"exit {codes}")
    strays = [p.name for p in out.iterdir() if not re.search(r"\.json(.*\.partial)?$", p.name)]
    yield Case("sweep: nothing is left but results", not strays, ", ".join(strays))


def _outputs(folder: Path) -> Iterator[Case]:
    """Write what cannot be written as JSON: what was there stays."""
    from unitvar_reproduction import record

    kept = folder / "kept.json"
    record.save(kept, {"value": 1})
    before = kept.read_bytes()
    try:
        record.save(kept, {"value": np.arange(3)})
        note = "accepted"
    except TypeError as error:
        note = f"{type(error).__name__}: {error}"[:100]
    held = kept.read_bytes() == before and [p.name for p in folder.iterdir()] == ["kept.json"]
    yield Case("output: cannot be written as JSON", held and note != "accepted", note)


def files(kills: int = 20) -> Iterator[Case]:
    """Attack readers, archives, mirrors, outputs, what the library saves, and sweeps."""
    sys.path.insert(0, str(TESTS))
    os.environ["NO_PROXY"] = "127.0.0.1"
    try:
        for attack in (_readers, _archives, _mirrors, _outputs):
            with tempfile.TemporaryDirectory() as folder:
                yield from attack(Path(folder))
        yield from artefacts()
        yield from unwritable()
        yield from killed(kills)
        yield from together(writers=4, lines=100)
        with tempfile.TemporaryDirectory() as folder:
            yield from _sweeps(Path(folder), kills)
    finally:
        sys.path.remove(str(TESTS))
