"""What an import path on the command line leads to."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any

__all__ = ["named"]


def named(path: str, form: str) -> Any:
    """Import what a path names, from the current folder too.

    Args:
        path: ``package.module.name`` or ``package.module:name``.
        form: how it should have been written, for the error.

    Returns:
        What it names.
    """
    if "" not in sys.path:  # a console script does not look into the current folder by itself
        sys.path.insert(0, "")
    importlib.invalidate_caches()
    try:
        return pkgutil.resolve_name(path)
    except Exception as error:  # whatever a module of the user's does while it is imported
        raise ValueError(f"{path!r} cannot be imported ({type(error).__name__}: {error}); write {form}.") from error
