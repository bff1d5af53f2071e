"""The command line: every subcommand is a frozen dataclass with a run method."""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["main"]

_DESCRIPTION = (
    "Unit variance for PyTorch networks with dropout: the paper's tables and figures, and tools for your own."
)


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand; return the exit status."""
    missing = [
        name for name in ("matplotlib", "pooch", "rich", "sklearn", "tyro") if importlib.util.find_spec(name) is None
    ]
    if missing:
        sys.stderr.write(f"The unitvar command needs {', '.join(missing)}: pip install 'unitvar[paper]'\n")
        return 1
    import rich.console
    import tyro

    from unitvar.paper.commands import COMMANDS

    arguments = sys.argv[1:] if arguments is None else arguments
    # Without a subcommand there is nothing to run: show what there is.
    command = tyro.cli(COMMANDS, prog="unitvar", description=_DESCRIPTION, args=arguments or ["--help"])
    try:
        command.run(rich.console.Console())
    except (ValueError, TypeError) as error:
        sys.stderr.write(f"unitvar: {error}\n")
        return 2
    return 0
