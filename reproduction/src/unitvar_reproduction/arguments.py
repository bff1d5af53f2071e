"""What holds for the arguments of every command: whole numbers count something, and results need a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

__all__ = ["AtLeast", "check"]


@dataclass(frozen=True)
class AtLeast:
    """The least that an option may be, where that is not 1: ``rounds: Annotated[int, AtLeast(2)]``."""

    least: int


def check(command: Any) -> None:
    """Refuse a command that would fail after some time of work: too small a number, or nowhere to write to."""
    hints = get_type_hints(type(command), include_extras=True)
    for field in fields(command):
        value, flag = getattr(command, field.name), "--" + field.name.replace("_", "-")
        marks = (mark.least for mark in getattr(hints[field.name], "__metadata__", ()) if isinstance(mark, AtLeast))
        least = next(marks, 1)
        for number in _whole(value):
            if number < least:
                raise ValueError(f"{flag} {number} is too small: pass {least} or more{_otherwise(field.default)}.")
        if field.name == "out":
            _check_folder(flag, value)


def _otherwise(default: Any) -> str:
    if default is MISSING:
        return ""
    return ", or omit it" + ("" if default is None else f" for {' '.join(map(str, _each(default)))}")


def _each(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _whole(value: Any) -> Iterator[int]:
    return (v for v in _each(value) if isinstance(v, int) and not isinstance(v, bool))


def _check_folder(flag: str, folder: Path) -> None:
    """Look at the nearest folder that is there, and make none: the command may yet fail for another reason."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"{flag} {folder} cannot be created: {there} is a file. Pass another folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{flag} {folder} cannot be written: {there} is not writable. Pass another folder.")
