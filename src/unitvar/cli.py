"""The command line: what is planned for a model of your own, and what flows through it.

torch takes seconds to import, so it is imported when a command runs, not for its help.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import pkgutil
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unitvar import __version__

if TYPE_CHECKING:
    from torch import Tensor, nn

    from unitvar.flow import VarianceReport

__all__ = ["main"]

DESCRIPTION = "Unit variance for PyTorch networks with dropout: plan and measure your model."
MODEL = "package.module:name of a function that returns the model, of its class, or of the model"
SHAPES = "8x3x32x32 for standard normal numbers, or 8x16:int:1000 for integers from 0 to 999"
MOVED = {
    *("reproduce", "table1", "stability", "depth", "zoo", "healthy", "reestimation", "forward", "backward", "digits"),
    *("factors", "cost", "mnist", "vgg", "densenet", "tolerance", "report"),
}
"""Commands of version 0.1 that moved to the reproduction."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in MOVED:
        sys.stderr.write(
            f"unitvar {words[0]} is now unitvar-paper {words[0]}; install it from a checkout: "
            "pip install ./reproduction\n"
        )
        return 2
    options = _parser().parse_args(words or ["--help"])
    try:
        options.run(options)
    except (ValueError, TypeError, OSError, ImportError) as error:
        sys.stderr.write(_wrapped(f"unitvar: {error}") + "\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("unitvar: interrupted\n")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("unitvar", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"unitvar {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=text, description=text)
        found.set_defaults(run=run)
        return found

    explain = command("explain", _explain, "Print the plan of a model, and measure it before and after.")
    plan = command("plan", _plan, "Print the plan of a model: the scale of every weight, and the reason.")
    measure = command("measure", _measure, "Measure the variance of signals and gradients in every layer.")
    for each in (explain, plan, measure):
        _add_model(each)
    plan.add_argument("--mode", help="forward, backward, mean or paper")
    plan.add_argument("--distribution", help="sphere, orthonormal, normal or uniform")
    plan.add_argument("--residual", help="auto, scaled, damped, unit or zero: the size of residual branches")
    plan.add_argument("--gain", type=_gain, help="auto, or a factor for all weights but the output's; default: 1")
    plan.add_argument("--embeddings", help="keep or unit: whether embeddings are scaled")
    plan.add_argument(
        "--only", action="append", metavar="PATTERN", help="change only these parameters, such as 'head.*'"
    )
    plan.add_argument("--strict", action="store_true", default=None, help="fail on ops without a rule")
    for each in (explain, measure):
        each.add_argument("--runs", type=_count, default=4, help="number of runs; default: 4")
        each.add_argument(
            "--plot", type=Path, metavar="FILE", help="save a picture of the measurement: file.png, file.pdf, …"
        )
    activations = command("activations", _activations, "Print moments, chi and gain of activations.")
    activations.add_argument(
        "names", nargs="+", metavar="NAME", help="relu, torch.nn.functional.silu, my_package:act, …"
    )
    activations.add_argument("--mean", type=float, default=0.0, help="mean of the input; default: 0")
    activations.add_argument("--std", type=float, default=1.0, help="standard deviation of the input; default: 1")
    activations.add_argument("--dropout", type=float, default=0.0, help="drop probability, for the gain; default: 0")
    for each in (plan, measure, activations):
        each.add_argument("--json", action="store_true", help="print rows as JSON")
    return parser


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", help=MODEL)
    command.add_argument(
        "--input", action="append", default=[], metavar="SHAPE", help=f"{SHAPES}; repeat it for several arguments"
    )
    command.add_argument(
        "--kwargs", default="{}", metavar="JSON", help="arguments of the function or class: '{\"num_classes\": 10}'"
    )
    command.add_argument("--seed", type=int, default=0, help="random seed of weights, inputs and masks; default: 0")


def _gain(text: str) -> float | str:
    return text if text == "auto" else float(text)


def _count(text: str) -> int:
    """Read a whole number of at least one."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not an integer of 1 or more")
    return int(text)


def _explain(options: argparse.Namespace) -> None:
    import torch

    import unitvar

    model, inputs = _ready(options)
    figure = _figure(2) if options.plot else None

    def measured(row: int, title: str) -> None:
        report = _measured(model, inputs, options)
        _section(title, report)
        if figure:
            _draw(figure, row, title.lower(), report, model, inputs)

    # Print each part as soon as it is ready: a large model takes a while.
    _section("Plan", _run(options, unitvar.plan, model, inputs))
    measured(0, "Before")
    unitvar.initialize_(model, inputs, generator=torch.Generator().manual_seed(options.seed + 2))
    measured(1, "After")
    if figure:
        _save(figure, options.plot)


def _plan(options: argparse.Namespace) -> None:
    import unitvar

    model, inputs = _ready(options)
    names = ("mode", "distribution", "residual", "gain", "embeddings", "only", "strict")
    chosen = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    planned = _run(options, unitvar.plan, model, inputs, **chosen)
    _print(json.dumps(planned.rows, indent=2) if options.json else str(planned))


def _measure(options: argparse.Namespace) -> None:
    model, inputs = _ready(options)
    report = _measured(model, inputs, options)
    _print(json.dumps(report.rows, indent=2) if options.json else str(report))
    if options.plot:
        figure = _figure(1)
        _draw(figure, 0, "", report, model, inputs)
        _save(figure, options.plot)


def _activations(options: argparse.Namespace) -> None:
    import unitvar
    from unitvar.init import drop_rate

    keep = 1 - drop_rate("dropout", options.dropout)
    rows: list[dict[str, Any]] = []
    for name in options.names:
        m = unitvar.activation_moments(_activation(name), options.mean, options.std)
        gain = (keep * (options.mean**2 + options.std**2) / m.second) ** 0.5 if m.second else None
        rows.append({"name": name, "mean": m.mean, "second": m.second, "slope": m.slope, "chi": m.chi, "gain": gain})
    if options.json:
        _print(json.dumps(rows, indent=2))
        return
    width = min(max(len("activation"), *(len(row["name"]) for row in rows)), 30)
    _print(f"z ~ N({options.mean:g}, {options.std:g}²), dropout {options.dropout:g}\n")
    _print(f"{'activation':{width}}" + "".join(f"{head:>9}" for head in ("E f", "E f²", "E f'²", "chi", "gain")))
    for row in rows:
        numbers = "".join(f"{row[key]:9.4f}" for key in ("mean", "second", "slope")) + f"{row['chi']:9.3f}"
        numbers += f"{'–':>9}" if row["gain"] is None else f"{row['gain']:9.4f}"
        # A name that is too long has a line of its own, so that no number is cut off.
        _print(f"{row['name']:{width}}" + ("\n" + " " * width if len(row["name"]) > width else "") + numbers)
    _print("\ngain: the row norm that keeps E z². chi > 1: deviations from it grow with depth.")


def _ready(options: argparse.Namespace) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Build the model and draw its inputs."""
    if not options.input:
        raise ValueError(f"--input is missing: pass the shape of each argument, {SHAPES}.")
    _check_plot(getattr(options, "plot", None))
    shapes = [_shape(text) for text in options.input]
    keywords = _keywords(options.kwargs)

    import torch

    found = _imported(options.model, "package.module:name, from the folder that holds the package")
    torch.manual_seed(options.seed)  # after an import, which may draw numbers
    inputs = tuple(torch.randn(size) if below is None else torch.randint(below, size) for size, below in shapes)
    return _built(options.model, found, keywords), inputs


def _shape(text: str) -> tuple[list[int], int | None]:
    """Read ``8x3x32x32`` or ``8x16:int:1000``: the shape, and below what whole numbers are."""
    match = re.fullmatch(r"(\d+(?:x\d+)*)(?::int:(\d+))?", text)
    if match is None:
        raise ValueError(f"--input {text!r} is not a shape: write {SHAPES}.")
    shape = [int(n) for n in match[1].split("x")]
    if 0 in shape or match[2] == "0":
        raise ValueError(f"--input {text!r} has a size of 0: write {SHAPES}.")
    return shape, None if match[2] is None else int(match[2])


def _keywords(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--kwargs {text!r} is not JSON ({error}); write '{{\"num_classes\": 10}}'.") from error
    if not isinstance(found, dict):
        raise ValueError(f"--kwargs {text!r} is not a JSON object; write '{{\"num_classes\": 10}}'.")
    return found


def _built(path: str, found: Any, keywords: dict[str, Any]) -> nn.Module:
    from torch import nn

    if isinstance(found, nn.Module):
        if keywords:
            raise ValueError(f"{path} is a model, not a function or a class: it takes no --kwargs.")
        return found
    if not callable(found):
        raise ValueError(f"{path} is a {type(found).__name__}, not a model, its class or a function that returns it.")
    try:
        model = found(**keywords)
    except Exception as error:  # the user's own code
        raise ValueError(f"{path}(**{keywords}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{path}(**{keywords}) returned a {type(model).__name__}, not an nn.Module.")
    return model


def _activation(name: str) -> Any:
    """Return a name as it is, and what an import path leads to."""
    if "." not in name and ":" not in name:
        return name
    found = _imported(name, "package.module.function")
    return found() if isinstance(found, type) else found


def _imported(path: str, form: str) -> Any:
    """Import what a path names, from the current folder too; ``form`` is how it should have been written."""
    if "" not in sys.path:  # a console script does not look into the current folder by itself
        sys.path.insert(0, "")
    importlib.invalidate_caches()
    try:
        return pkgutil.resolve_name(path)
    except Exception as error:  # whatever a module of the user's does while it is imported
        raise ValueError(f"{path!r} cannot be imported ({type(error).__name__}: {error}); write {form}.") from error


def _measured(model: nn.Module, inputs: tuple[Tensor, ...], options: argparse.Namespace) -> VarianceReport:
    import torch

    import unitvar

    torch.manual_seed(options.seed + 1)  # the same masks before and after, and no number that the inputs have
    found: VarianceReport = _run(options, unitvar.measure, model, inputs, runs=options.runs)
    return found


def _run(options: argparse.Namespace, function: Any, *subjects: Any, **chosen: Any) -> Any:
    """Call a function of the library on a model of the user's, and say on what it failed if it did."""
    try:
        return function(*subjects, **chosen)
    except (ValueError, TypeError) as error:
        if getattr(error, "__notes__", None):  # of the user's forward
            raise _cannot_run(options, error) from error
        raise  # of what was chosen, in our own words
    except Exception as error:  # of the user's forward
        raise _cannot_run(options, error) from error


def _cannot_run(options: argparse.Namespace, error: Exception) -> ValueError:
    shapes = ", ".join(options.input)
    return ValueError(f"{options.model} cannot be run on --input {shapes}: {type(error).__name__}: {error}")


def _check_plot(path: Path | None) -> None:
    """Refuse a picture that could not be saved, before anything runs."""
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'unitvar[plot]'.")
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = sorted(FigureCanvasBase.filetypes)
    if path.suffix[1:].lower() not in kinds:
        raise ValueError(f"--plot {path} is not a picture format: use .{', .'.join(kinds)}.")
    if path.is_dir():
        raise ValueError(f"--plot {path} is a folder; pass a file in it.")
    there = next(each for each in path.absolute().parents if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"--plot {path} cannot be written: {there} is not a writable folder.")


def _figure(rows: int) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4 * rows), layout="constrained", dpi=150)
    figure.subplots(rows, 2)
    return figure


def _draw(
    figure: Any, row: int, title: str, report: VarianceReport, model: nn.Module, inputs: tuple[Tensor, ...]
) -> None:
    from unitvar import plot

    left, right = figure.axes[2 * row : 2 * row + 2]
    plot.flow(report.rows, ax=left, title=f"{title}: {report.verdict}" if title else report.verdict)
    plot.distributions(model, inputs, ax=right)


def _section(title: str, result: object) -> None:
    _print(f"{title}\n{'─' * len(title)}\n{result}\n")
    sys.stdout.flush()  # also into a pipe


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    _print(f"Saved {path}")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def _wrapped(text: str) -> str:
    """Wrap lines to the width of the terminal, 80 columns where there is none; what has no spaces stays whole."""
    width = shutil.get_terminal_size().columns
    lines = (
        textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    )
    return "\n".join(part for line in lines for part in line)
