"""The command line: every subcommand is a frozen dataclass with a run method."""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

__all__ = ["main"]

_DESCRIPTION = "Hendrycks & Gimpel on dropout variance: every table and figure of the paper, reproduced with unitvar."


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand; return the exit status."""
    import tyro

    from unitvar_reproduction.arguments import check
    from unitvar_reproduction.commands import COMMANDS
    from unitvar_reproduction.progress import LogConsole
    from unitvar_reproduction.sweep.run import TrialError
    from unitvar_reproduction.training.replicas import joined, launched, leave

    arguments = sys.argv[1:] if arguments is None else arguments
    # Without a subcommand there is nothing to run: show what there is.
    with _wrapped_help():
        command = tyro.cli(COMMANDS, prog="unitvar-paper", description=_DESCRIPTION, args=arguments or ["--help"])
    try:
        check(command)
        if not launched():
            console = LogConsole()
            with console.alive():
                command.run(console)
        elif not getattr(command, "parallel", False):
            raise ValueError(f"{type(command).__name__.lower()} does not train in parallel; run it without torchrun.")
        else:
            with joined() as place:
                console = LogConsole(quiet=not place.first)
                with console.alive():
                    command.run(console)
            leave(0)
    except (ValueError, TypeError, OSError, TrialError) as error:
        sys.stderr.write(_wrapped(f"unitvar-paper: {error}\n"))
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("unitvar-paper: interrupted; saved results are kept\n")
        return 130
    return 0


def _wrapped(text: str, indent: str = "  ") -> str:
    """Wrap lines to the width of the terminal, 80 columns where there is none; what has no spaces stays whole."""
    width = shutil.get_terminal_size().columns
    options = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
    lines = (textwrap.wrap(line, width, **options) or [""] for line in text.split("\n"))  # type: ignore[arg-type]
    return "\n".join(part for line in lines for part in line)


class _Page(io.StringIO):
    """Holds back what is on its way to the standard output, whose encoding says which characters it may have."""

    encoding = sys.__stdout__.encoding if sys.__stdout__ else "utf-8"


@contextmanager
def _wrapped_help() -> Iterator[None]:
    """Wrap the lines that tyro leaves long: usage and description. A terminal does so by itself."""
    if sys.stdout.isatty():
        yield
        return
    page = _Page()
    try:
        with redirect_stdout(page):
            yield
    finally:
        sys.stdout.write("".join(map(_narrow, page.getvalue().splitlines(keepends=True))))


def _narrow(line: str) -> str:
    if line.startswith("usage:"):
        return _wrapped(line.replace(",", ", "))  # so that it can be broken
    return _wrapped(line, indent="") if line[:1].isalpha() else line  # a box is narrow enough
