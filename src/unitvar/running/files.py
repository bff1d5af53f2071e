"""Writing a file whole, or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

__all__ = ["written_whole"]


@contextmanager
def written_whole(path: str | PathLike[str]) -> Iterator[Path]:
    """Write to a file beside the one that is meant, which then takes its place; if the block fails, nothing changes.

    Args:
        path: the file that is meant, whether or not it is there.

    Returns:
        A context manager that gives the path to write to.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{str(target.parent)!r} is not a folder; create it first.")
    if target.is_dir():
        raise IsADirectoryError(f"{str(target)!r} is a folder; pass the path of a file in it.")
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")  # beside it: a rename stays on one disk
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):  # a full disk is not named by the system
            error.add_note(f"{str(target)!r} could not be written; its previous content is unchanged.")
        raise
