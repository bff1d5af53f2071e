"""What came of one attempt."""

from typing import NamedTuple


class Case(NamedTuple):
    """One attempt: what was tried, whether the library held, and what was seen."""

    name: str
    held: bool
    note: str = ""
