"""Grids, tuning and summaries of trials, on curves made up for it; then a small run of each experiment."""

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fake import write_mnist
from unitvar_reproduction.experiments import comparison, digits, mnist
from unitvar_reproduction.experiments.mlp import Trial
from unitvar_reproduction.sweep.run import trial_path

QUIET = Console(quiet=True)
BASE = Trial("digits", "relu", 0.5, "paper", 1e-3, 0)


def made_up(
    trial: Trial, validation: list[float | None], error: float = 0.1, diverged: float | None = None
) -> dict[str, Any]:
    test = {"end": {"error": 2 * error, "log_loss": 1.0}, "best": {"error": error, "log_loss": 0.5}}
    curve = {"training": validation, "validation": validation}
    return {"config": asdict(trial), "curve": curve, "diverged": diverged, "test": test}


def test_a_grid_has_every_combination_once() -> None:
    settings = {"activations": ("relu", "tanh"), "keeps": (1.0, 0.5), "inits": ("he", "xavier"), "rates": (1e-3, 1e-4)}
    found = comparison.grid(BASE, **settings)  # type: ignore[arg-type]
    assert len(found) == len(set(found)) == 16
    assert {(t.activation, t.keep) for t in found[:4]} == {("relu", 1.0)}


def test_the_rate_is_tuned_on_the_best_point_of_the_validation_curve_of_the_first_seed() -> None:
    fast, slow = replace(BASE, rate=1e-3), replace(BASE, rate=1e-4)
    other = replace(fast, seed=1)
    records = [
        made_up(slow, [0.9, 0.5, 0.4], 0.2),
        made_up(fast, [0.8, 0.3, 0.9], 0.1),
        made_up(other, [0.8, 0.1, 0.1], 0.3),
    ]
    (row,) = comparison.summarise(records, target=0.35)
    assert (row["rate"], row["rates"], row["seeds"]) == (1e-3, 2, 2)
    assert row["error"]["mean"] == pytest.approx(0.2)
    assert row["epochs_to_target"]["mean"] == pytest.approx(2 / 3)
    assert comparison.repeats(records[:2], range(1, 3)) == [replace(fast, seed=1), replace(fast, seed=2)]


def test_divergence_and_a_target_never_reached_are_said() -> None:
    records = [made_up(BASE, [], 0.9, diverged=0.3), made_up(replace(BASE, init="he"), [2.0, None, 1.0])]
    gone, slow = comparison.summarise(records, target=0.5)
    assert (gone["diverged"], gone["epochs_to_target"]) == (1, None)
    assert slow["epochs_to_target"] is None
    assert slow["validation"]["mean"] == 1.0
    again = [made_up(replace(BASE, seed=seed), [], 0.9, diverged=0.3) for seed in range(2)]
    assert comparison.summarise(again, target=0.5)[0]["validation"] is None
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(comparison.table([gone, slow], "made up"))
    assert "–" in console.export_text()


def test_paired_differences_are_taken_seed_by_seed() -> None:
    records = [
        made_up(replace(BASE, init=init, seed=seed), [0.5], error=base + shift)
        for seed, base in ((0, 0.1), (1, 0.5))
        for init, shift in (("paper", 0.0), ("he", 0.03))
    ]
    rows = {row["init"]: row for row in digits.paired(records)}
    assert rows["he"]["error minus paper"]["mean"] == pytest.approx(0.03)
    assert rows["he"]["error minus paper"]["half_width"] == pytest.approx(0, abs=1e-9)
    assert rows["he"]["error"]["half_width"] > 1


def test_the_papers_mnist_grid_has_108_trials_and_the_release_comes_first() -> None:
    plan = list(mnist.stages(mnist.BASE, "paper", 3, lambda trials: [made_up(trial, [1.0]) for trial in trials]))
    sizes = [len(trials) for _, trials in plan]
    assert sizes == [108, 36, 3, 36, 18, 36, 108, 72]
    trials = [trial for _, part in plan for trial in part]
    assert len({trial_path(Path(), trial) for trial in trials}) == sum(sizes)
    kinds = {(t.activation, t.keep, t.init) for t in trials if t.inputs == "raw" and t.init != "paper-half"}
    for kind in kinds:  # whether a rule is better has an answer: three rates, three seeds at one of them
        own = [t for t in trials if (t.activation, t.keep, t.init) == kind and t.inputs == "raw"]
        assert {t.rate for t in own if t.seed == 0} == set(mnist.RATES)
        assert len({(t.rate, t.seed) for t in own if t.seed}) == 2
    assert len(kinds) == 4 * 3 * 6
    first = plan[0][1]
    assert {t.init for t in first} == {"paper", "xavier", "he"}
    assert {(t.epochs, t.batch, t.held_out, t.width, t.hidden, t.inputs) for t in first} == {
        (25, 64, 5000, 256, 7, "raw")
    }


def test_a_trials_file_does_not_move() -> None:
    # Hours of results are found again by this name: a new field of Trial needs a default that leaves it as it is.
    trial = Trial("mnist", "relu", 0.5, "paper", 1e-3, seed=0)
    assert trial_path(Path(), trial).name == "0b0678e19fe7b0fd.json"


def test_digits_prints_draws_saves_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(digits.SIZES, "small", {**digits.SIZES["small"], "keeps": (0.5,), "inits": ("paper", "he")})
    monkeypatch.setattr(digits, "BASE", replace(digits.BASE, width=16, hidden=2))
    console = Console(width=80, record=True, file=io.StringIO())
    experiment = digits.Digits(out=tmp_path, seeds=2, epochs=1, workers=1)
    experiment.run(console)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "digits").iterdir()}
    experiment.run(console)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "digits").iterdir()} == times
    saved = json.loads((tmp_path / "digits.json").read_text())
    assert [(row["init"], row["seeds"]) for row in saved["rows"]] == [("paper", 2), ("he", 2)]
    assert len(saved["claims"]) == 7
    assert (tmp_path / "digits.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_mnist_finds_a_missing_file_or_device_before_the_first_trial(tmp_path: Path) -> None:
    write_mnist(tmp_path / "data", images=300)
    options = {"out": tmp_path / "out", "data_dir": tmp_path / "data", "workers": 1}
    with pytest.raises(ValueError, match=r"device='gpu' cannot be used here \(.*\); this machine has cpu"):
        mnist.Mnist(device="gpu", **options).run(QUIET)  # type: ignore[arg-type]
    (tmp_path / "data" / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz is missing; get it from"):
        mnist.Mnist(**options).run(QUIET)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_mnist_runs_and_summarises_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "data", images=300)
    tiny = replace(mnist.BASE, held_out=50, width=8, hidden=1)
    monkeypatch.setattr(mnist, "BASE", tiny)
    console = Console(width=80, record=True, file=io.StringIO())
    mnist.Mnist(out=tmp_path, data_dir=tmp_path / "data", workers=1).run(console)
    saved = json.loads((tmp_path / "mnist_small.json").read_text())
    assert saved["done"] == {"trials": 12, "planned": 12}
    # The summary names what its trials were: three epochs, and the machine and the commit of each.
    trials = [json.loads(path.read_text()) for path in (tmp_path / "mnist_small").iterdir()]
    assert {trial["config"]["epochs"] for trial in trials} == {saved["config"]["base"]["epochs"]} == {3}
    assert all(trial["environment"] == saved["environment"] for trial in trials)
    next((tmp_path / "mnist_small").iterdir()).unlink()
    mnist.Mnist(out=tmp_path, train=False).run(console)
    assert json.loads((tmp_path / "mnist_small.json").read_text())["done"] == {"trials": 11, "planned": 12}
    with pytest.raises(ValueError, match=r"No trial of this plan .* Run it without --no-train"):
        mnist.Mnist(scale="paper", out=tmp_path / "none", train=False).run(console)
