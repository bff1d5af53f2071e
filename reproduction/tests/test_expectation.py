"""The measures of the experiment on dropout at test time, and one network through all of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score

from fake import write_mnist
from unitvar_reproduction import record
from unitvar_reproduction.experiments import mlp
from unitvar_reproduction.experiments.expectation import paper, tasks, trial
from unitvar_reproduction.experiments.expectation.experiment import summarised
from unitvar_reproduction.experiments.expectation.tables import paper_table, tables

ROOT = Path(__file__).parents[2]


def test_auroc_is_scikit_learns_with_ties() -> None:
    torch.manual_seed(0)
    score, positive = torch.randint(0, 20, (300,)).float(), torch.rand(300) < 0.3
    assert trial.auroc(score, positive) == pytest.approx(roc_auc_score(positive.numpy(), score.numpy()))


def test_calibration_error_by_hand() -> None:
    """Two bins: 80 % confident and right half the time, 40 % confident and always right."""
    confidence = torch.tensor([0.8, 0.8, 0.4, 0.4])
    right = torch.tensor([True, False, True, True])
    assert trial.calibration_error(confidence, right) == pytest.approx(0.5 * 0.3 + 0.5 * 0.6)


def test_a_trial_asks_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tasks.TASKS["mlp-0.5"]
    short = replace(task, images=64, schedule=replace(task.schedule, epochs=1))
    monkeypatch.setitem(tasks.TASKS, "mlp-0.5", short)
    monkeypatch.setattr(trial, "DRAWS", (1, 5))
    with pytest.warns(UserWarning, match="is not the published file"):
        found = trial.run_trial(trial.Trial("mlp-0.5", 0, judged=50), write_mnist(tmp_path, 100))
    ways = found["ways"]
    assert set(ways) == {"off", "integrated", "integrated, softmax of the mean", "1 samples", "5 samples"}
    assert 0 <= ways["integrated"]["other_by_information"] <= 1
    rows = summarised([found, found])
    assert rows[0]["task"] == "mlp-0.5"
    assert rows[0]["error"]["mean"] == pytest.approx(ways["off"]["error"], rel=1e-4)


def test_the_page_has_the_tables_of_the_saved_trials() -> None:
    page = (ROOT / "docs/expectation.md").read_text(encoding="utf-8")
    shown = page.split("<!-- results -->\n")[1].split("\n<!-- end of results -->")[0]
    found = sorted((ROOT / "reproduction/results/expectation").glob("*.json"))
    assert shown == tables([record.load(path) for path in found])


def test_the_page_has_the_table_of_the_papers_networks() -> None:
    page = (ROOT / "docs/expectation.md").read_text(encoding="utf-8")
    shown = page.split("<!-- paper -->\n")[1].split("\n<!-- end of paper -->")[0]
    found = [record.load(path) for path in sorted((ROOT / "reproduction/results/integrated").glob("*.json"))]
    assert shown == paper_table(found)
    assert all(shown.count(f"keep {keep}") == 4 for keep in (0.3, 0.5))


def test_a_difference_has_a_star_only_beyond_its_interval() -> None:
    def made(seed: int, gap: float) -> dict[str, Any]:
        ways = {"off": 0.5, "100 samples": 0.5 + (-1) ** seed * 0.1, "integrated": 0.5 + gap}
        return {
            "config": {"network": "relu-0.3"},
            "ways": {way: {"error": value, "log_loss": value} for way, value in ways.items()},
        }

    error, loss = paper_table([made(seed, gap) for seed, gap in enumerate((-0.1, -0.11, -0.12))]).splitlines()[2:]
    # Student's t of two degrees of freedom: 4.303 · 0.01 / √3 = 0.0248, and 4.303 · 0.1159 / √3 = 0.2879.
    assert error.endswith(r"| −11.00 ± 2.48 \* | −14.33 ± 28.79 |")
    assert loss.startswith("|  | log loss |  | 0.500 | 0.533 | 0.390 |")


def test_a_network_of_the_paper_is_judged_at_its_best_validation_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout off must be what the MNIST experiment itself reports of the same trial."""
    short = replace(paper.NETWORKS["relu-0.3"], epochs=1, held_out=20, width=16)
    monkeypatch.setitem(paper.NETWORKS, "relu-0.3", short)
    monkeypatch.setattr(trial, "DRAWS", (1, 5))
    folder = write_mnist(tmp_path, 100)
    with pytest.warns(UserWarning, match="is not the published file"):
        found = paper.run_trial("relu-0.3", 0, folder)
    with pytest.warns(UserWarning, match="is not the published file"):
        whole = mlp.run_trial(short, data_dir=folder)
    assert found["ways"]["off"]["error"] == pytest.approx(whole["test"]["best"]["error"], abs=1e-4)
    assert found["ways"]["off"]["log_loss"] == pytest.approx(whole["test"]["best"]["log_loss"], rel=1e-3)
    rows = paper.summarised([found])
    assert {row["way"] for row in rows} == set(found["ways"])
    assert rows[0]["error"]["half_width"] is None
