"""How many batches: fewer for a looser tolerance, and each saved with what it cost."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from fake import write_cifar10
from unitvar_reproduction.experiments.tolerance import Tolerance


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_a_looser_tolerance_uses_fewer_batches(tmp_path: Path) -> None:
    write_cifar10(tmp_path, images=60)
    console = Console(quiet=True)
    Tolerance(tmp_path, tmp_path / "out", (10.0, 1e-9), shuffles=2, images=60, epochs=1, batch=20).run(console)
    trials = json.loads((tmp_path / "out" / "tolerance.json").read_text(encoding="utf-8"))["trials"]
    assert [trial["batches"] for trial in trials] == [5, 5, 15, 15]
    # Another order of the same images: the first BatchNorm's variance is the same, deeper ones' nearly.
    assert all(trial["variance_deviation"] < 0.2 for trial in trials[2:])
