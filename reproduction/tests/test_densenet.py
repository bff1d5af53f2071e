"""The DenseNet experiment: the paper's networks, variants that do not disturb training, and honest comparisons."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes
from rich.console import Console
from scipy.stats import binomtest

from fake import write_cifar10, write_cifar100
from unitvar_reproduction.data.images import Images
from unitvar_reproduction.experiments.densenet import experiment
from unitvar_reproduction.experiments.densenet import trial as densenet
from unitvar_reproduction.experiments.densenet.experiment import Densenet, plan
from unitvar_reproduction.experiments.densenet.figures import draw_variants
from unitvar_reproduction.experiments.densenet.summary import sensitivity_rows, summarise, tables
from unitvar_reproduction.experiments.densenet.trial import Trial, compare, run_trial, schedule
from unitvar_reproduction.training.batchnorm import VARIANTS, Batches, variant
from unitvar_reproduction.training.loop import train

SMALL = Trial("cifar10", 7, 4, 0.8, 0, epochs=4, images=60, batch=16)
pytestmark = pytest.mark.filterwarnings("ignore:.*is not the published file")


def test_paper_scale_is_table_2() -> None:
    trials = plan("paper", 1, 1)
    found = {(t.dataset, t.depth, t.growth, t.keep, t.epochs, t.images) for t in trials}
    assert found == {
        ("cifar10", 100, 12, 0.8, 300, None),
        ("cifar100", 100, 12, 0.7, 300, None),
        ("cifar100", 100, 12, 0.8, 300, None),
        ("svhn", 40, 12, 0.8, 40, None),
    }


def test_small_scale_has_more_networks_on_cifar10_and_they_come_first() -> None:
    trials = plan("small", 3, 1)
    assert [(t.dataset, t.keep, t.seed) for t in trials] == [
        *(("cifar10", 0.8, 0), ("cifar10", 0.7, 0), ("cifar100", 0.8, 0), ("cifar100", 0.7, 0), ("svhn", 0.8, 0)),
        *(("cifar10", 0.8, 1), ("cifar10", 0.7, 1), ("cifar10", 0.8, 2), ("cifar10", 0.7, 2)),
    ]
    assert {t.sensitivity for t in trials if t.dataset == "cifar10" and t.keep == 0.8} == {True}
    assert len(set(plan("small", 3, 2, epochs=2))) == 12


def test_medium_scale_is_the_papers_svhn_network_on_cifar10_and_the_small_one_for_longer_on_svhn() -> None:
    trials = plan("medium", 2, 1)
    found = [(t.dataset, t.depth, t.growth, t.keep, t.epochs, t.images, t.seed) for t in trials]
    assert found == [
        ("cifar10", 40, 12, 0.8, 6, None, 0),
        ("svhn", 22, 8, 0.8, 40, None, 0),
        ("cifar10", 40, 12, 0.8, 6, None, 1),
    ]
    assert {(t.reestimated, t.sensitivity) for t in trials} == {(10_000, False)}


def test_momentum_is_forgotten_every_five_epochs_and_the_rate_drops_twice() -> None:
    schedule = densenet.schedule(Trial("cifar10", 100, 12, 0.8, 0))
    assert [e for e in range(21) if schedule.forgets_at(e)] == [5, 10, 15, 20]
    assert [schedule.rate_at(e) for e in (149, 150, 224, 225)] == pytest.approx([0.1, 0.01, 0.01, 0.001])
    assert (schedule.weight_decay, schedule.decay_vectors, schedule.shift) == (2e-4, True, 0)


@pytest.mark.parametrize(("epochs", "expected"), [(300, 150), (40, 20), (20, 10), (15, 8), (2, 1)])
def test_halfway_is_just_before_the_first_drop_of_the_rate(epochs: int, expected: int) -> None:
    trial = replace(SMALL, epochs=epochs)
    assert densenet.halfway(trial) == expected
    rates = [densenet.schedule(trial).rate_at(epoch) for epoch in (expected - 1, expected)]
    assert rates == pytest.approx([0.1, 0.01])


def test_forgotten_momentum_is_a_fresh_optimiser(tmp_path: Path) -> None:
    """Two epochs, forget, two epochs: the same weights as a new optimiser after the first two, in the same order."""
    data = Images(torch.randn(64, 3, 8, 8), torch.randint(10, (64,)))
    whole, parts = (densenet.network(replace(SMALL, keep=1.0)) for _ in range(2))
    schedule = replace(densenet.schedule(SMALL), forget=2, drops=(), epochs=4)
    train(whole, data, schedule, seed=0)
    path = tmp_path / "a.pt"
    train(parts, data, replace(schedule, epochs=2), seed=0, checkpoint=path)
    saved = torch.load(path)
    saved["optimiser"]["state"] = {}
    torch.save(saved, path)
    train(parts, data, replace(schedule, forget=None), seed=0, checkpoint=path)
    assert all(map(torch.equal, whole.state_dict().values(), parts.state_dict().values()))


def test_measuring_half_way_leaves_the_final_weights_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_cifar10(tmp_path, 20)
    weights = []

    def kept(model: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        curve = train(model, *arguments, **options)
        weights.append([value.clone() for value in model.state_dict().values()])
        return curve

    monkeypatch.setattr(densenet, "train", kept)
    measured = run_trial(SMALL, data_dir=folder)
    monkeypatch.setattr(densenet, "compare", lambda *arguments, **options: {})
    assert run_trial(SMALL, data_dir=folder)["measured"] == {"halfway": {}, "end": {}}
    assert measured["measured"].keys() == {"halfway", "end"}
    assert all(map(torch.equal, *weights))


def test_arms_are_compared_image_by_image() -> None:
    generator = torch.Generator().manual_seed(0)
    training = Images(torch.randn(80, 3, 16, 16, generator=generator), torch.randint(10, (80,), generator=generator))
    test = Images(torch.randn(70, 3, 16, 16, generator=generator), torch.randint(10, (70,), generator=generator))
    model = densenet.network(replace(SMALL, keep=0.5)).train()
    for _ in range(3):
        model(training.images)
    batches = Batches(training, 20)
    found = compare(model, batches, test, seed=1)
    wrong = {}
    for name in VARIANTS:
        torch.manual_seed(1)
        if name == "dropout on":
            continue  # which draws
        with variant(name, model, batches), torch.no_grad():
            wrong[name] = model.eval()(test.images).argmax(1) != test.labels
        assert found[name]["error"] == pytest.approx(wrong[name].double().mean().item())
    changed = found["mean and variance"]["changed"]["as trained"]
    new, old = wrong["mean and variance"], wrong["as trained"]
    assert changed == {"worse": int((new & ~old).sum()), "better": int((~new & old).sum())}
    assert changed["worse"] + changed["better"] > 0
    difference = found["mean and variance"]["error"] - found["as trained"]["error"]
    assert difference == pytest.approx((changed["worse"] - changed["better"]) / len(test))


def test_a_trial_that_is_killed_goes_on_and_ends_in_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_cifar10(tmp_path, 20)
    trial = replace(SMALL, sensitivity=True)
    whole = run_trial(trial, data_dir=folder)

    def dying(*arguments: Any, **options: Any) -> Any:
        if options["seed"] == trial.epochs:  # at the end, after the half-way measurement
            raise KeyboardInterrupt
        return compare(*arguments, **options)

    monkeypatch.setattr(densenet, "compare", dying)
    with pytest.raises(KeyboardInterrupt):
        run_trial(trial, data_dir=folder, checkpoint=tmp_path / "a.pt")
    monkeypatch.undo()
    resumed = run_trial(trial, data_dir=folder, checkpoint=tmp_path / "a.pt")
    assert {**whole, "seconds": 0} == {**resumed, "seconds": 0}
    assert whole["images"] == {"training": 60, "of": 100, "test": 20}
    assert [row["batches"] for row in whole["sensitivity"]["batches"]] == [1, 2, 4]
    assert [row["size"] for row in whole["sensitivity"]["sizes"]] == [4, 8, 16, 32]
    # All batches of the trial's size, found in two ways.
    assert whole["sensitivity"]["batches"][-1]["error"] == whole["sensitivity"]["sizes"][2]["error"]


def record(seed: int, errors: dict[str, float], worse: int, better: int) -> dict[str, Any]:
    variants: dict[str, Any] = {}
    for name, error in errors.items():
        changed = {other: {"worse": worse, "better": better} for other in variants}
        variants[name] = {"error": error, "log_loss": error, "changed": changed}
    sensitivity = {
        "batches": [{"batches": 1, "error": 0.5, "log_loss": 1.0}],
        "sizes": [{"size": 4, "error": 0.6, "log_loss": None}],
    }
    return {
        "config": vars(replace(SMALL, seed=seed)),
        "measured": {"halfway": variants, "end": variants},
        "sensitivity": sensitivity,
        "images": {"training": 60, "test": 100},
        "diverged": None,
    }


def test_differences_are_paired_by_network_and_by_image() -> None:
    first = dict(zip(VARIANTS, (0.30, 0.29, 0.28, 0.27), strict=True))
    second = dict(zip(VARIANTS, (0.40, 0.39, 0.38, 0.37), strict=True))
    records = [record(0, first, 3, 10), record(1, second, 2, 8)]
    rows = summarise(records)
    assert len(rows) == 2 * len(VARIANTS)
    last = rows[-1]
    assert last["error"]["mean"] == pytest.approx(0.32)
    against = last["against"]["as trained"]
    assert against["error"]["mean"] == pytest.approx(-0.03)
    assert against["error"]["half_width"] == pytest.approx(0, abs=1e-12)  # the networks differ, the gain does not
    assert (against["worse"], against["better"]) == (5, 18)
    # Of each network by itself: both see the same images.
    assert against["p"] == pytest.approx(max(binomtest(3, 13).pvalue, binomtest(2, 10).pvalue))
    (row,) = sensitivity_rows(records)["batches"]  # type: ignore[index]
    assert row["error minus all"]["mean"] == 0
    (row,) = sensitivity_rows(records)["sizes"]  # type: ignore[index]
    assert row["error minus all"]["mean"] == pytest.approx(0.1)
    assert row["log_loss"] is row["log_loss minus all"] is None  # one was not finite


def test_a_network_that_diverges_is_left_out_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(densenet, "schedule", lambda trial: replace(schedule(trial), rate=1e30))
    lost = {"config": vars(SMALL), **run_trial(SMALL, data_dir=write_cifar10(tmp_path, 20))}
    assert 0 < lost["diverged"] <= 1
    assert (lost["measured"], lost["sensitivity"]) == ({}, None)
    assert summarise([lost]) == []
    variants = record(1, dict(zip(VARIANTS, (0.30, 0.29, 0.28, 0.27), strict=True)), 3, 10)
    assert {row["seeds"] for row in summarise([lost, variants])} == {1}
    variants["measured"]["end"]["as trained"]["log_loss"] = None  # not finite, though the network ended
    found = summarise([variants])[-1]
    assert found["against"]["as trained"]["log_loss"] is None
    assert found["log_loss"]["mean"] == 0.27


def test_the_tables_fit_a_terminal() -> None:
    variants = [dict(zip(VARIANTS, (0.46 + x, 0.38, 0.47 - x, 0.35), strict=True)) for x in (0.0, 0.12, 0.13)]
    rows = summarise([record(seed, errors, 10, 800) for seed, errors in enumerate(variants)])
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*tables(rows))
    text = console.export_text()
    assert re.search(r"0.8 halfway   mean and variance   3 +35.00 ± 0.00   -19.33 ± 17.97 +\de-\d+ *\n", text)
    assert "…" not in text


def test_the_command_trains_tidies_and_summarises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "ROWS", (("cifar10", 0.8), ("cifar100", 0.7)))
    folder = write_cifar10(tmp_path / "data", 20)
    write_cifar100(folder, 60)
    sizes = {"depth": 7, "growth": 2, "epochs": 2, "images": 40}
    command = Densenet(out=tmp_path, data_dir=folder, seeds=2, workers=1, **sizes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"No trial of this plan .* Run it without --no-train"):
        replace(command, train=False).run(Console(quiet=True))
    command.run(Console(quiet=True))
    found = json.loads((tmp_path / "densenet_small.json").read_text())
    assert found["done"] == {"trials": 3, "planned": 3, "diverged": 0}
    assert [(row["dataset"], row["seeds"]) for row in found["rows"]] == [("cifar10", 2)] * 8 + [("cifar100", 1)] * 8
    assert not (tmp_path / "checkpoints").exists()
    for name in ("batches", "ways"):
        assert (tmp_path / f"densenet_small_{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_depth_that_cannot_be_is_named_before_data_are_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"depth=20 is not 3 n \+ 4"):
        Densenet(out=tmp_path, data_dir=tmp_path, depth=20).run(Console(quiet=True))
    assert not list(tmp_path.iterdir())


def test_an_unknown_data_set_is_named() -> None:
    with pytest.raises(ValueError, match=r"dataset='imagenet' is not one of 'cifar10', 'cifar100', 'svhn'"):
        densenet.load(replace(SMALL, dataset="imagenet"), None)


def test_the_picture_of_the_ways_draws_each_paired_difference_and_no_interval_of_one_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(Axes, "errorbar", lambda ax, x, y, xerr, **style: drawn.append((x, xerr)))
    root = Path(__file__).parents[1] / "results" / "densenet_small.json"
    rows = json.loads(root.read_text(encoding="utf-8"))["rows"]
    draw_variants(rows, tmp_path / "ways.png")
    others = [row["against"]["as trained"]["error"] for row in rows if row["arm"] != "as trained"]
    expected = [(100 * d["mean"], None if d["half_width"] is None else 100 * d["half_width"]) for d in others]
    assert sorted(drawn, key=str) == sorted(expected, key=str)
    assert {width is None for _, width in drawn} == {True, False}
