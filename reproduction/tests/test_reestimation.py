"""The experiment on the digits: what each variant is."""

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from unitvar import activation_moments
from unitvar_reproduction import data
from unitvar_reproduction.experiments.reestimation import AVERAGED, Reestimation, Trial, build, summarise
from unitvar_reproduction.training.batchnorm import VARIANTS, Batches, variant


def test_arms_are_what_they_are_called() -> None:
    training, _ = data.digits(0)
    model = build(Trial("mlp", 0, 0.5, 1))
    last = [m for m in model if isinstance(m, nn.BatchNorm1d)][-1]
    with torch.no_grad():
        for m in model:
            if isinstance(m, nn.BatchNorm1d):
                m.running_mean.fill_(0.1)  # type: ignore[union-attr]
    found = {}
    for name in VARIANTS:
        with variant(name, model, Batches(training)):
            found[name] = last.running_mean.clone(), last.running_var.clone()  # type: ignore[union-attr]
    trained, on, variance, both = (found[name] for name in VARIANTS)
    assert torch.equal(variance[0], trained[0])
    assert torch.equal(variance[1], both[1])
    assert not torch.equal(both[0], trained[0])
    # Dropout divides the second moment of what the linear layer gets by the keep rate, and leaves its mean.
    relu = activation_moments("relu")
    expected = (relu.second / 0.5 - relu.mean**2) / relu.var
    assert (on[1] / both[1]).mean().item() == pytest.approx(expected, rel=0.1)


def test_a_small_run_prints_draws_saves_and_resumes(tmp_path: Path) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    experiment = Reestimation(out=tmp_path / "out", seeds=2, epochs=2, workers=2)
    experiment.run(console)
    trials = sorted((tmp_path / "out" / "reestimation").glob("*.json"))
    assert len(trials) == 4
    times = [path.stat().st_mtime_ns for path in trials]
    experiment.run(console)
    assert [path.stat().st_mtime_ns for path in trials] == times
    saved = json.loads((tmp_path / "out" / "reestimation.json").read_text(encoding="utf-8"))
    assert len(saved["rows"]) == 2 * (2 * len(VARIANTS) + len(AVERAGED))
    assert (tmp_path / "out" / "reestimation.png").stat().st_size > 10_000
    text = console.export_text()
    assert "variance only" in text
    assert "…" not in text


def test_a_single_epoch_has_no_halfway_point(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="epochs=1 has no half-way point; train for 2 or more"):
        Reestimation(out=tmp_path / "out", epochs=1).run(Console(quiet=True))
    assert not (tmp_path / "out").exists()


def test_differences_are_paired() -> None:
    def record(seed: int, base: float) -> dict[str, object]:
        variants = {name: {"error": base - 0.01 * i, "log_loss": 0.0} for i, name in enumerate(VARIANTS)}
        averaged = {name: {"error": base, "log_loss": 0.0} for name in AVERAGED}
        measured = {"halfway": variants, "end": variants, "averaged": averaged}
        return {"config": {"network": "mlp", "seed": seed}, "measured": measured}

    rows = summarise([record(0, 0.1), record(1, 0.5)])
    last = next(row for row in rows if row["arm"] == VARIANTS[-1])
    assert last["error"]["half_width"] > 1
    assert last["error minus as trained"]["mean"] == pytest.approx(-0.03)
    assert last["error minus as trained"]["half_width"] == pytest.approx(0, abs=1e-12)
