"""Results on disk: JSON with the environment beside the numbers, written whole or not at all."""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import torch

import unitvar

__all__ = ["OUT", "combined", "commit", "environment", "finite", "load", "replacing", "rounded", "save", "write"]

OUT = Path("reproduced")
"""Where commands write unless they are told: below the current folder, and not over results that are tracked."""


def environment() -> dict[str, object]:
    """Describe what a number was computed with."""
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in ("unitvar", "torch", "numpy", "scipy")},
        "commit": commit(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
    }


def combined(records: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Describe what a summary of saved trials was computed with: each entry theirs, or a list where they differ.

    A trial's own entry may be a list, too, as of the commits before and after it was interrupted.
    """
    if not records:
        return environment()
    entries: dict[str, list[object]] = {}
    for key, value in (item for record in records for item in record["environment"].items()):
        seen = entries.setdefault(key, [])
        seen += [v for v in (value if isinstance(value, list) else [value]) if v not in seen]
    return {key: seen[0] if len(seen) == 1 else seen for key, seen in entries.items()}


def save(path: Path, payload: Mapping[str, object]) -> Path:
    """Write payload and the environment, unless it brings one, as JSON, atomically; return the path.

    NaN and infinities, which JSON does not have, are written as null.
    """
    whole = {**payload, "environment": payload.get("environment") or environment()}
    return write(path, _pretty(whole) + "\n")


def load(path: Path) -> dict[str, Any]:
    """Read what was saved; what is not whole, which no run of ours leaves behind, is named."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON and of UTF-8
        raise ValueError(
            f"{path} is not a complete JSON file ({error}); delete it and run the experiment again."
        ) from error
    if not isinstance(saved, dict):
        raise ValueError(f"{path} has a JSON {type(saved).__name__}, not a result; move it elsewhere and run again.")
    return saved


def rounded(values: Iterable[float]) -> list[float | None]:
    """Keep five significant digits, and no NaN or infinity, which JSON does not have."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def finite(measured: Mapping[str, float]) -> dict[str, float | None]:
    """Do the same to values that have names."""
    return dict(zip(measured, rounded(measured.values()), strict=True))


def _pretty(value: object, indent: str = "") -> str:
    """Write JSON with a line for each entry, but a curve on one line: it is read as a whole."""
    deeper = indent + "  "
    if isinstance(value, Mapping) and value:
        entries = (f"{json.dumps(str(key), ensure_ascii=False)}: {_pretty(v, deeper)}" for key, v in value.items())
        return "{\n" + deeper + f",\n{deeper}".join(entries) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)) and any(isinstance(v, (Mapping, list, tuple)) for v in value):
        return "[\n" + deeper + f",\n{deeper}".join(_pretty(v, deeper) for v in value) + f"\n{indent}]"
    finite = [_finite(v) for v in value] if isinstance(value, (list, tuple)) else _finite(value)
    return json.dumps(finite, ensure_ascii=False, allow_nan=False)


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path: Path, text: str) -> Path:
    """Write a file whole or not at all; return the path."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
    return path


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write to, which takes the place of path when the block is done, and never was if it fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
    except OSError as error:
        error.add_note(f"{path} could not be written.")
        raise
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(temporary, 0o644)  # mkstemp is for secrets; a result is not one
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):  # a full disk is not named by the system
            error.add_note(f"{path} could not be written; its previous content is unchanged.")
        raise


@functools.cache  # what runs is what was there at the start, whatever happens to the source meanwhile
def commit(*sources: Path) -> str | None:
    """Return the commit of a checkout, marked if any file of its sources has changed since; None outside of one.

    Args:
        sources: folders of one checkout; default: of this package and, if it is the same checkout, of the library.
    """
    here, *others = sources or (Path(__file__).parent, Path(unitvar.__file__).parent)
    git = ["git", "-C", str(here)]
    try:
        found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        top = subprocess.run([*git, "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=True).stdout
        same = [str(path.resolve()) for path in others if path.resolve().is_relative_to(Path(top.strip()).resolve())]
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", ".", *same], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found + ("+changes" if changed.stdout else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
