"""Where results of trials are kept: a file for each, or for thousands of short trials a line for each."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from unitvar_reproduction import record

if sys.platform != "win32":
    import fcntl

__all__ = ["Files", "Ledger", "Store", "trial_path"]

STALE = 60.0  # seconds after which nobody writes to a file any more: a result is written in one go


def trial_path(folder: Path, config: Any) -> Path:
    """Return where the result of a trial belongs: a name made of its experiment and the hash of its config."""
    text = json.dumps({"kind": type(config).__name__, **asdict(config)}, sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


@runtime_checkable
class Store(Protocol):
    """Results by the config of their trial."""

    def missing(self, configs: Sequence[Any]) -> list[bool]:
        """Return for each config whether it has no result."""

    def load(self, configs: Iterable[Any]) -> list[dict[str, Any]]:
        """Return the results of those configs that have one, in order."""

    def save(self, config: Any, result: Mapping[str, object]) -> None:
        """Keep a result; a process that is killed meanwhile leaves the old state or the new one."""


@dataclass(frozen=True)
class Files:
    """One JSON file a trial, for trials that take minutes and have long records."""

    folder: Path

    def missing(self, configs: Sequence[Any]) -> list[bool]:
        """Return for each config whether it has no file."""
        return [not trial_path(self.folder, config).exists() for config in configs]

    def load(self, configs: Iterable[Any]) -> list[dict[str, Any]]:
        """Read the files that are there."""
        paths = [trial_path(self.folder, config) for config in configs]
        return [record.load(path) for path in paths if path.exists()]

    def save(self, config: Any, result: Mapping[str, object]) -> None:
        """Write a file, whole or not at all, and delete what a process killed while it wrote the same has left."""
        path = record.save(trial_path(self.folder, config), result)
        for leftover in path.parent.glob(f"{path.name}*.partial"):
            with suppress(OSError):  # another sweep may have been faster
                if time.time() - leftover.stat().st_mtime > STALE:
                    leftover.unlink()


@dataclass(frozen=True)
class Ledger:
    """One line of JSON a trial, appended to a file for each value of one field of its config.

    A study of thousands of trials that take seconds would fill a repository with as many files. Lines are only ever
    appended, so that versions of a file differ by what is new. A line that a killed process left unfinished does not
    count, and goes when the next one is written.
    """

    folder: Path
    by: str
    """The field whose values have a file each."""

    def missing(self, configs: Sequence[Any]) -> list[bool]:
        """Return for each config whether it has no line."""
        known = self._known(configs)
        return [_key(asdict(config)) not in known for config in configs]

    def load(self, configs: Iterable[Any]) -> list[dict[str, Any]]:
        """Return the lines of those configs that have one, in order."""
        wanted = list(configs)
        known = self._known(wanted)
        keys = (_key(asdict(config)) for config in wanted)
        return [known[key] for key in keys if key in known]

    def all(self, value: str) -> list[dict[str, Any]]:
        """Return every line of one file."""
        return [line for _, line in self._lines(self._path(value))]

    def save(self, config: Any, result: Mapping[str, object]) -> None:
        """Append a line, unless another sweep has done so since; one at a time, whatever runs beside."""
        path = self._path(getattr(config, self.by))
        path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(result, ensure_ascii=False, allow_nan=False) + "\n"
        with open(path, "ab+") as file:
            _lock(file)  # until it is closed: another's line must not be taken for an unfinished one
            if not self.missing([config])[0]:
                return
            try:
                file.truncate(len(_whole(path.read_bytes())))
                file.write(line.encode("utf-8"))
                file.flush()
            except OSError as error:  # a full disk is not named by the system
                error.add_note(f"A line of {path} could not be written; the lines before it are unchanged.")
                raise

    def _path(self, value: str) -> Path:
        return self.folder / f"{value}.jsonl"

    def _known(self, configs: Iterable[Any]) -> dict[str, dict[str, Any]]:
        values = dict.fromkeys(getattr(config, self.by) for config in configs)
        return {key: line for value in values for key, line in self._lines(self._path(value))}

    def _lines(self, path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
        if not path.exists():
            return
        for i, line in enumerate(_whole(path.read_bytes()).splitlines(), 1):
            try:
                found = json.loads(line)
                key = _key(found["config"])
            except (ValueError, LookupError, TypeError) as error:
                raise ValueError(
                    f"Line {i} of {path} is not a result ({error}); delete that line and run the experiment again."
                ) from error
            yield key, found


def _lock(file: BinaryIO) -> None:
    """Wait until no other process has the file; where there is no such lock, sweeps need folders of their own."""
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX)


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def _whole(content: bytes) -> bytes:
    """Return all up to the last end of a line."""
    return content[: content.rfind(b"\n") + 1]
