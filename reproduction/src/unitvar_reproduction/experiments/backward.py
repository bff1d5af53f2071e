"""Appendix A: what twenty layers do to the error that flows back, under four initialisations.

Paper: with rows on a sphere over sqrt(p E f'²), errors of standard deviation 0.01 keep their distribution through 20
ReLU layers, at keep rates 1 and 0.6.
Ours: only because its figure multiplies errors by the bare dropout mask. The derivative of inverted dropout is
mask / p, so under real autograd the same weights make the variance grow by p⁻² a layer, to about 1e8 from layer 20 to
layer 0 at 0.6; with E f'² / p in place of p E f'² it stays. Both conventions, and every other activation; 5 seeds,
seconds on two CPU cores.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from unitvar import activation_moments
from unitvar.activations.names import canonical
from unitvar_reproduction import figures, record
from unitvar_reproduction.experiments.forward import KEEPS, OTHERS
from unitvar_reproduction.experiments.synthetic import SHOWN, Histogram, bare_mask, errors, feed, growth
from unitvar_reproduction.progress import steps

__all__ = ["Backward", "draw"]

INITS = {"paper-backward": "paper", "backward": "unitvar, backward", "xavier": "Xavier", "he": "He"}
CONVENTIONS = ("autograd", "bare mask")
LAYERS = (0, *SHOWN)


@dataclass(frozen=True)
class Backward:
    """Appendix A: densities of the error through twenty layers, under the paper's convention and under autograd."""

    out: Path = record.OUT
    """Folder for backward.json and its picture."""

    seeds: int = 5
    """Networks of each kind; the densities are those of the first."""

    activations: tuple[str, ...] = OTHERS
    """Other activations than ReLU to try."""

    def run(self, console: Console) -> None:
        """Measure, print, draw and save."""
        names = [*map(canonical, self.activations)]
        settings = [*itertools.product(KEEPS, INITS)]
        shown = steps(settings, "backward", console)
        rows = [row for keep, init in shown for row in self._measure(keep, init)]
        rows.sort(key=lambda row: (-row["keep"], -CONVENTIONS.index(row["convention"])))
        others = [self._other(name) for name in steps(names, "others", console)]
        console.print(_table(rows, self.seeds))
        console.print(_others_table(others))
        payload = {
            "experiment": "backward",
            "config": {"seeds": self.seeds, "activations": names},
            "relu": rows,
            "others": others,
        }
        path = record.save(self.out / "backward.json", payload)
        console.print(f"Saved {path} and {draw(payload, self.out)}")

    def _measure(self, keep: float, init: str) -> Iterator[dict[str, Any]]:
        """Measure a panel of the figure under each convention; without dropout they are the same."""
        runs = [feed(init, "relu", keep, seed) for seed in range(self.seeds)]
        flown = {"autograd": [errors(layers, seed) for seed, layers in enumerate(runs)]}
        if keep < 1:
            flown["bare mask"] = [bare_mask(run, keep) for run in flown["autograd"]]
        for convention, found in flown.items():
            kept = {i: found[0][i][runs[0][i].kept] for i in SHOWN}
            yield {
                "keep": keep,
                "convention": convention,
                "init": init,
                "second": [growth(run) for run in found],
                "errors": {i: asdict(Histogram.of(values)) for i, values in kept.items()},
            }

    def _other(self, name: str) -> dict[str, Any]:
        """Measure another activation with dropout, once with weights for the signal and once for the error."""
        keep, second = min(KEEPS), {}
        for init in ("forward", "backward"):
            flown = (errors(feed(init, name, keep, seed), seed) for seed in range(self.seeds))
            second[init] = [growth(run) for run in flown]
        return {"activation": name, "keep": keep, "chi": activation_moments(name).chi, "second": second}


def _ratio(runs: Sequence[Sequence[float]], layer: int) -> float:
    """Return E δ² of a layer over that of the last, where it is fed in."""
    return sum(run[layer] / run[-1] for run in runs) / len(runs)


def _table(rows: Sequence[Mapping[str, Any]], seeds: int) -> Table:
    table = Table(title=f"Appendix A: E δ² over its value at layer 20, ReLU, mean of {seeds}", title_justify="left")
    table.add_column("keep", justify="right")
    for head in ("dropout mask", "init"):
        table.add_column(head)
    for i in LAYERS[:-1]:
        table.add_column(f"layer {i}", justify="right")
    for row in rows:
        values = (f"{_ratio(row['second'], i):.2g}" for i in LAYERS[:-1])
        last = row["init"] == list(INITS)[-1]
        table.add_row(f"{row['keep']:g}", row["convention"], INITS[row["init"]], *values, end_section=last)
    return table


def _others_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    title = f"Others, keep {min(KEEPS):g}, autograd: E δ² at layer 0 over layer 20"
    table = Table(title=title, title_justify="left")
    for head in ("activation", "chi", "weights for the signal", "weights for the error"):
        table.add_column(head, justify="left" if head == "activation" else "right")
    for row in rows:
        cells = (f"{_ratio(row['second'][init], 0):.2g}" for init in ("forward", "backward"))
        table.add_row(row["activation"], f"{row['chi']:.3f}", *cells)
    return table


def draw(payload: Mapping[str, Any], folder: Path) -> Path:
    """Draw the picture of a saved result: every panel over the same range, that of errors that keep their size."""
    rows = payload["relu"]
    figure = figures.figure(11, 8)
    lines = list(dict.fromkeys((row["keep"], row["convention"]) for row in rows))
    axes = figure.subplots(len(lines), len(INITS), sharex=True, sharey="row")
    for (i, (keep, convention)), (j, init) in itertools.product(enumerate(lines), enumerate(INITS)):
        setting = keep, convention, init
        row = next(row for row in rows if (row["keep"], row["convention"], row["init"]) == setting)
        shown = {f"layer {layer}": Histogram(**h) for layer, h in row["errors"].items()}
        held = init == "backward" and convention == "autograd" and keep == 1
        figures.densities(axes[i, j], shown, range_from=shown.values() if held else ())
        axes[i, j].set_xlabel(f"error, keep rate {keep:g}" + (f", {convention}" if keep < 1 else ""), fontsize="small")
        axes[i, j].xaxis.set_tick_params(labelbottom=True)
        figures.corner(axes[i, j], f"E δ², layer 0 / layer 20: {_ratio(row['second'], 0):.2g}")
    for ax, name in zip(axes[0], INITS.values(), strict=True):
        ax.set_title(name)
    for ax in axes[:, 0]:
        ax.set_ylabel("density", fontsize="small")
    figures.legend(figure, axes[0, 0])
    return figures.save(figure, folder / "backward.png")
