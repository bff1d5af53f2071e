"""verdicts: a small run saves what it found, rates are counted right, and the recorded limits are the library's."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import unitvar
from unitvar.flow.verdict import FALLS, GROWS, LARGE
from unitvar_reproduction.experiments.verdicts.experiment import Verdicts, rates, summary
from unitvar_reproduction.experiments.verdicts.networks import BUILT_TO_FAIL, FAMILIES
from unitvar_reproduction.experiments.verdicts.trial import Task

RESULTS = Path(__file__).parent.parent / "results"


def test_a_small_run_saves_and_draws(tmp_path: Path) -> None:
    console = Console(record=True, width=80)
    Verdicts(out=tmp_path, only="8 dense layers", steps=2).run(console)
    saved = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))
    assert {row["name"]: (row["fails"], row["healthy"]) for row in saved["rows"]} == {
        "8 dense layers, N(0, 1) weights": (True, False),
        "8 dense layers, zero weights": (True, False),
    }
    assert {p.name for p in tmp_path.iterdir()} == {"verdicts.json", "verdicts.png"}
    assert "0 misses of 2 that fail" in console.export_text()
    with pytest.raises(ValueError, match="only='nothing' is part of no network's name"):
        Verdicts(out=tmp_path, only="nothing").run(console)


def test_rates_count_what_is_wrong() -> None:
    cases = [(False, True), (False, False), (True, True), (True, False), (True, False)]
    rows = [
        {"group": "graded", "name": f"{i}", "fill": "its own", "stage": "initialised", "verdict": "so", "fails": f,
         "healthy": h}
        for i, (f, h) in enumerate(cases)
    ]  # fmt: skip
    assert rates(rows)["steps between"] == {"train": 2, "false alarms": 1, "fail": 3, "misses": 1}
    assert [line for line in summary(rows) if line.startswith("wrong")] == [
        "wrong: 1, its own, initialised: so",
        "wrong: 2, its own, initialised: so",
    ]


def test_what_was_recorded_was_judged_by_the_limits_of_today_and_stands_in_the_docs() -> None:
    saved = json.loads((RESULTS / "verdicts.json").read_text(encoding="utf-8"))
    assert saved["limits"] == {"grows": GROWS, "falls": FALLS, "level": LARGE}
    assert saved["rates"] == rates(saved["rows"])
    page = (RESULTS.parent.parent / "docs" / "healthy.md").read_text(encoding="utf-8")
    for name, title in (
        ("families, initialised", "families at initialisation"),
        ("families, trained", "families after training"),
        ("built to fail", "built to fail"),
        ("steps between", "between the two"),
    ):
        counts = saved["rates"][name]
        assert (
            f"| {title} | {' | '.join(str(counts[k]) for k in ('train', 'false alarms', 'fail', 'misses'))} |" in page
        )


@pytest.mark.parametrize("name", ["ResNet, BatchNorm", "LSTM tagger"])
def test_what_was_called_exploding_is_healthy(name: str) -> None:
    for fill in (False, True):
        torch.manual_seed(0)
        model, task = FAMILIES[name].build(), Task(FAMILIES[name].task)
        if fill:
            unitvar.initialize_(model, task.x[:64])
        assert unitvar.measure(model, task.x[:64]).healthy


def test_logits_that_are_sure_and_wrong_are_too_large() -> None:
    torch.manual_seed(0)
    spec = BUILT_TO_FAIL["GPT, tied N(0, 1)"]
    model, task = spec.build(), Task(spec.task)
    assert model(task.x[:8]).square().mean() > 60
    assert unitvar.measure(model, task.x[:8]).verdict.endswith(": too large")
    quiet = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    assert unitvar.measure(quiet, task.x[:8, :1].float().expand(-1, 64)).healthy
