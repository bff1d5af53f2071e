"""Processes of a torchrun: together they train as one would, write once, and go on where they stopped."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import parallel
from fake import write_cifar10, write_cifar100, write_svhn
from unitvar_reproduction.cli import main
from unitvar_reproduction.sweep.pools import together
from unitvar_reproduction.training.loop import train
from unitvar_reproduction.training.replicas import Replica, launched, replica

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parallel")
    command = [*TORCHRUN, str(Path(parallel.__file__)), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_each_process_knows_its_place(found: list[dict[str, Any]]) -> None:
    assert [f["place"] for f in found] == [(0, 2, True), (1, 2, True)]
    assert replica() == Replica(0, 1)
    assert not launched()


def test_what_is_done_in_turn_is_done_by_one_after_the_other(found: list[dict[str, Any]]) -> None:
    assert [f["before"] for f in found] == [[], ["0.turn"]]


def test_two_processes_train_as_one_does(found: list[dict[str, Any]]) -> None:
    """Batches of 24 and a last one of 5, which two processes cannot share evenly: the gradient is still the mean."""
    assert len(parallel.DATA) % parallel.SCHEDULE.batch == 5
    for seed in (0, 1):
        alone, together = parallel.run_trial(parallel.Trial(seed, 0.0)), found[0]["records"][seed]
        assert together["weights"] == pytest.approx(alone["weights"], rel=1e-9, abs=1e-12)
        assert together["curve"] == pytest.approx(alone["curve"], rel=1e-6)  # summed in single precision
        assert together["test"] == pytest.approx(alone["test"], rel=1e-9)


def test_the_command_trains_one_network_in_all_processes_and_writes_once(tmp_path: Path) -> None:
    write_svhn(write_cifar100(write_cifar10(tmp_path / "data", 12), 60), 60)
    sizes = ["--depth", "7", "--growth", "2", "--epochs", "2", "--images", "50", "--seeds", "1"]
    places = ["--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*TORCHRUN, "-m", "unitvar_reproduction", "densenet", *sizes, *places],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Saved") == 3  # the summary and two pictures, once
    assert "5 of 5 done" in done.stdout
    assert not (tmp_path / "out" / "checkpoints").exists()
    trials = [json.loads(path.read_text()) for path in (tmp_path / "out" / "densenet_small").iterdir()]
    assert [trial["environment"]["processes"] for trial in trials] == [2] * 5
    for trial in trials:
        for variants in trial["measured"].values():
            old, new = variants["as trained"], variants["mean and variance"]
            changed = new["changed"]["as trained"]
            net = changed["worse"] - changed["better"]  # over the images of both processes
            assert new["error"] - old["error"] == pytest.approx(net / trial["images"]["test"])
    assert json.loads((tmp_path / "out" / "densenet_small.json").read_text())["environment"]["processes"] == 2


def test_images_too_few_to_share_are_left_out_or_refused() -> None:
    norm = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))  # which cannot normalise a single image
    train(norm, parallel.DATA[:25], parallel.SCHEDULE, seed=0)
    assert norm[1].num_batches_tracked == parallel.SCHEDULE.epochs  # one batch of 24 an epoch
    with pytest.raises(ValueError, match=r"1 images in batches of 24 over 1 processes .* Take more images"):
        train(nn.Linear(64, 10), parallel.DATA[:1], parallel.SCHEDULE, seed=0)


def test_all_processes_end_with_the_same_results(found: list[dict[str, Any]]) -> None:
    assert found[0]["records"] == found[1]["records"]
    assert found[0]["files"] == found[0]["expected"] == found[1]["files"]


def test_training_resumes_in_the_same_bits_and_ends_with_one_model(found: list[dict[str, Any]]) -> None:
    """Dropout and BatchNorm see other units and images in each process; weights and statistics are shared."""
    for f in found:
        assert len(f["whole"]) == 9
        assert all(map(torch.equal, f["whole"], f["resumed"]))
    assert all(map(torch.equal, found[0]["whole"], found[1]["whole"]))


def test_a_number_of_batches_is_the_number_that_one_process_takes(found: list[dict[str, Any]]) -> None:
    """101 images in batches of 48: three, of which two processes would have two each of their own halves."""
    alone = parallel.by_batches()
    assert [row["batches"] for row in alone["batches"]] == [1, 2, 3]
    for f in found:
        for what in ("batches", "sizes"):
            for mine, its in zip(alone[what], f["by batches"][what], strict=True):
                assert its == pytest.approx(mine, rel=1e-6)


def test_another_number_of_processes_cannot_go_on(folder: Path) -> None:
    with pytest.raises(
        ValueError, match=r"saved by 2 processes and this is one of 1: .* delete the file to start over"
    ):
        parallel.resumed(folder / "whole.pt", None)


def test_a_trial_runs_on_the_gpu_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's current device belongs to a thread, and a trial has one of its own."""
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: seen.append((device, threading.get_ident())))
    with together() as pool:
        handle = pool.submit(threading.get_ident)
        pool.wait([handle], 10.0)
        assert seen == [(3, pool.result(handle))]


def test_a_command_that_does_not_train_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert main(["table1"]) == 2
    assert "run it without torchrun" in capsys.readouterr().err
