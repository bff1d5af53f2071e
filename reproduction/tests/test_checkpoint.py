"""Checkpoints: training that was killed goes on with the same bits, and a file is data only."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unitvar_reproduction import data, networks
from unitvar_reproduction.training.checkpoint import State
from unitvar_reproduction.training.loop import Curve, Schedule, evaluate, seeded, train

NESTEROV = Schedule(5, 0.05, 64, forget=2, shift=1)
ADAM = Schedule(5, 1e-3, 64, optimiser="adam", decay_vectors=False, drops=(0.6,))


class KilledError(Exception):
    pass


def network() -> nn.Sequential:
    with seeded(0):
        return networks.quicken_(networks.DenseNet(7, 4, 0.3, channels=1))


def run(
    schedule: Schedule, path: Path | None, kill: int | None = None, **options: bool
) -> tuple[nn.Module, Curve, dict[str, Any]]:
    """Train, noting something random and something measured, and be killed after an epoch has begun."""
    training, _ = data.digits(0)
    model, notes = network(), dict[str, Any](validation=[], draws={})

    def at_point() -> None:
        notes["validation"].append(evaluate(model, training[:100])["log_loss"])
        if kill is not None and len(notes["validation"]) == 2 * kill + 1:
            raise KilledError

    def after_epoch(epoch: int) -> None:
        notes["draws"][epoch] = torch.rand(3)

    called = {"after_epoch": after_epoch, "at_point": at_point, "points": 2, **options}
    curve = train(model, training[:300], schedule, seed=3, notes=notes, checkpoint=path, **called)  # type: ignore[arg-type]
    return model, curve, notes


@pytest.mark.parametrize("schedule", [NESTEROV, ADAM], ids=["nesterov", "adam"])
@pytest.mark.parametrize("kill", [0, 1, 3, 4])
def test_a_killed_training_ends_in_the_same_bits(schedule: Schedule, kill: int, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    whole = run(schedule, None)
    with pytest.raises(KilledError):
        run(schedule, path, kill)
    assert path.exists() == (kill > 0)
    resumed = run(schedule, path)
    for a, b in zip(whole[0].state_dict().values(), resumed[0].state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert whole[1] == resumed[1]
    assert whole[2]["validation"] == resumed[2]["validation"]
    assert all(torch.equal(whole[2]["draws"][epoch], resumed[2]["draws"][epoch]) for epoch in range(1, 6))


def test_compiled_training_goes_on_in_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as always, but run by torch itself: what a compiler makes of it is the compiler's."""
    traced = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", traced)
    path = tmp_path / "checkpoint.pt"
    whole = run(NESTEROV, None, compiled=True)
    with pytest.raises(KilledError):
        run(NESTEROV, path, 3, compiled=True)
    resumed = run(NESTEROV, path, compiled=True)
    for a, b in zip(whole[0].state_dict().values(), resumed[0].state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert whole[1] == resumed[1]


def test_training_that_was_finished_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    first, curve, _ = run(NESTEROV, path)
    written = path.stat().st_mtime_ns
    again, same, _ = run(NESTEROV, path)
    assert path.stat().st_mtime_ns == written
    assert curve == same
    assert all(map(torch.equal, first.state_dict().values(), again.state_dict().values()))


def test_training_that_was_stopped_for_good_does_not_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    """It may have been killed between its last epoch and its result."""
    path = tmp_path / "checkpoint.pt"
    first, curve, _ = run(NESTEROV, path, enough=lambda losses: len(losses) >= 2)
    written = path.stat().st_mtime_ns
    again, same, _ = run(NESTEROV, path, enough=lambda losses: len(losses) >= 2)
    assert len(curve.training) == 2
    assert path.stat().st_mtime_ns == written
    assert curve == same
    assert all(map(torch.equal, first.state_dict().values(), again.state_dict().values()))


def test_a_checkpoint_is_data_only_and_leaves_no_partial_files(tmp_path: Path) -> None:
    run(ADAM, tmp_path / "checkpoint.pt")
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["epoch"] == 5


@pytest.mark.parametrize("kind", [0, 1, 1000, 5000, 20_000, -1, "text", "foreign", "other network", "other optimiser"])
def test_a_file_that_is_no_checkpoint_is_named_and_nothing_is_trained(kind: int | str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    run(NESTEROV, path)
    if isinstance(kind, int):  # cut there
        path.write_bytes(path.read_bytes()[:kind])
    elif kind == "text":
        path.write_text("epoch 3\n")
    else:
        saved = torch.load(path)
        if kind == "foreign":
            saved = {"weights": saved["model"]}
        elif kind == "other network":
            saved["model"] = nn.Linear(2, 3).state_dict()
        else:
            saved["optimiser"]["param_groups"] = []
        torch.save(saved, path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint\.pt is no checkpoint of this training.*Delete it to start over"):
        run(NESTEROV, path)
    assert path.read_bytes() == before


WRONG: dict[str, Any] = {
    "epoch": ["3", 2.5, None, True, -1],
    "notes": [None, [1], "text"],
    "losses": [None, 0.5, ["0.5"], {"a": 1.0}],
    "random": [None, [], [None], 3],
    "order": [None, [1, 2]],
    "model": [None, []],
    "optimiser": [None, 7],
}


@pytest.mark.parametrize("part", WRONG)
def test_a_part_of_the_wrong_type_is_named_and_changes_nothing(part: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    state = State(nn.Linear(2, 2), torch.optim.SGD([torch.zeros(1)], lr=1.0), torch.Generator(), {"kept": 1}, 1, [0.5])
    state.save(path)
    saved, before = torch.load(path), {name: value.clone() for name, value in state.model.state_dict().items()}
    for value in WRONG[part]:
        torch.save({**saved, part: value}, path)
        with pytest.raises(ValueError, match=rf"is no checkpoint of this training that can be read .*{part}"):
            state.load(path)
        assert (state.notes, state.epoch, state.losses) == ({"kept": 1}, 1, [0.5])
        assert all(torch.equal(value, before[name]) for name, value in state.model.state_dict().items())


def test_a_failing_save_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    training, _ = data.digits(0)
    model, notes = network(), dict[str, Any]()

    def after_epoch(epoch: int) -> None:
        if epoch == 2:
            notes["bad"] = lambda: None  # which cannot be saved

    with pytest.raises(Exception, match=r"(?i)pickle"):
        train(model, training[:100], NESTEROV, seed=0, notes=notes, checkpoint=path, after_epoch=after_epoch)
    assert torch.load(path, weights_only=True)["epoch"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]
