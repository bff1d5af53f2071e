"""Two threads at once, and their errors raised where they can be seen."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Run functions in threads of their own; return what they return, or raise what they raise."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(f) for f in functions]]
