"""The VGG experiment: the paper's network, its weights, its schedule, and trials that stop and go on."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from scipy.stats import norm
from torch import nn

from fake import write_cifar10
from unitvar_reproduction import networks
from unitvar_reproduction.experiments.vgg import experiment
from unitvar_reproduction.experiments.vgg import trial as vgg
from unitvar_reproduction.experiments.vgg.experiment import (
    Vgg,
    learnt,
    planned_trials,
    rates,
    stages,
    summarise,
    tuned,
    waited,
)
from unitvar_reproduction.experiments.vgg.trial import INITS, Trial, initialise_, run_trial
from unitvar_reproduction.sweep import staged
from unitvar_reproduction.sweep.pools import together
from unitvar_reproduction.sweep.run import TrialError, checkpoint_path

KEEPS = (None, 0.7, 1, 0.6, 1, 0.6, 0.6, 1, 0.6, 0.6, 1, 0.6, 0.6, 0.5, 0.5)
"""The keep rate before each weight but the first, read off the paper's §2.3.2."""

SMALL = Trial("nesterov", 1e-2, "paper", 0, width=4, epochs=3, batch=32, held_out=20)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [m.weight for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]


def initialised(name: str, width: int = 16) -> nn.Sequential:
    example = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return initialise_(networks.vgg(width), name, example=example, generator=torch.Generator().manual_seed(0))


def test_the_network_is_the_papers() -> None:
    with torch.device("meta"):
        model = networks.vgg()
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(15.0, abs=0.05)
    assert [w.shape[0] for w in weights(model)] == [64] * 2 + [128] * 2 + [256] * 3 + [512] * 7 + [10]
    assert sum(isinstance(m, nn.MaxPool2d) for m in model) == 5
    assert sum(isinstance(m, nn.ReLU) for m in model) == 14


def test_the_papers_weights_are_orthonormal_times_the_correction() -> None:
    for weight, keep in zip(weights(initialised("paper")), KEEPS, strict=True):
        flat = weight.detach().flatten(1).double()
        assert flat.shape[0] <= flat.shape[1]
        square = 1.0 if keep is None else keep / 0.5
        assert torch.allclose(flat @ flat.T, square * torch.eye(len(flat), dtype=torch.float64), atol=1e-5)


def test_the_papers_first_convolution_is_not_rescaled_at_full_width() -> None:
    """64 filters of 27 inputs each: orthonormal columns, so that its output starts with 27 / 64 of the variance."""
    first = weights(initialised("paper", 64))[0].detach().flatten(1).double()
    assert torch.allclose(first.T @ first, torch.eye(27, dtype=torch.float64), atol=1e-5)
    assert first.square().sum(1).mean().item() == pytest.approx(27 / 64)


def test_hes_weights_have_his_variance_and_no_correction() -> None:
    for weight in weights(initialised("he", 32)):
        n = weight[0].numel()
        deviation = weight.square().mean().item() * n / 2 - 1
        assert abs(deviation) < 5 * math.sqrt(2 / weight.numel())


@pytest.mark.parametrize("name", INITS)
def test_biases_are_zero_and_the_weights_are_drawn_from_the_generator(name: str) -> None:
    model, example = networks.vgg(16), torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    state = torch.get_rng_state()
    initialise_(model, name, example=example, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), state)
    biases = [m.bias for m in model if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert not any(bias.any() for bias in biases)
    assert all(map(torch.equal, weights(model), weights(initialised(name))))


def test_an_unknown_initialisation_is_named() -> None:
    with pytest.raises(ValueError, match=r"init='lsuv' is not one of 'paper', 'he', 'plan', 'measured'"):
        initialised("lsuv")


def test_measured_weights_give_unit_second_moments_where_hes_do_not() -> None:
    """In training mode, on images that the weights have not seen: E z² of the first dense layer."""
    other = torch.randn(128, 3, 32, 32, generator=torch.Generator().manual_seed(2))

    def deep(name: str) -> float:
        model = initialised(name).train()
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            return model[:-3](other).square().mean().item()

    assert deep("measured") == pytest.approx(1, rel=0.5)
    assert deep("he") > 4


@pytest.mark.parametrize(("name", "first"), [("paper", 1.0), ("he", 2.0)])
def test_the_papers_correction_keeps_the_signal_with_dropout_on_and_hes_with_it_off(name: str, first: float) -> None:
    """Dense layers, without pools and borders: a ReLU halves E z², dropout divides by the keep rate, weights scale."""
    layers: list[nn.Module] = [nn.Linear(1024, 1024)]
    for keep in KEEPS[1:6]:
        layers += [nn.ReLU(), nn.Dropout(1 - keep), nn.Linear(1024, 1024)]  # type: ignore[operator]
    generator = torch.Generator().manual_seed(0)
    model = initialise_(nn.Sequential(*layers), name, example=torch.empty(0), generator=generator)
    flags = [module.train(i % 2 == 0).training for i, module in enumerate(model)]
    state = torch.get_rng_state()
    found = vgg.signals(model, torch.randn(256, 1024, generator=generator), seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model] == flags
    expected = {"on": [first], "off": [first]}
    for keep in KEEPS[1:6]:
        weights = keep if name == "paper" else 1.0
        expected["on"].append(expected["on"][-1] * weights / keep)  # type: ignore[operator]
        expected["off"].append(expected["off"][-1] * weights)  # type: ignore[operator]
    for mode, seconds in expected.items():
        assert found[mode] == pytest.approx(seconds, rel=0.15)


def test_the_schedule_is_the_papers_at_any_length() -> None:
    plan = vgg.schedule(Trial("adam", 1e-3, "he", 0))
    found = [plan.rate_at(epoch) for epoch in (0, 99, 100, 124, 125, 149)]
    assert found == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    short = vgg.schedule(Trial("adam", 1e-3, "he", 0, epochs=15))
    assert [short.rate_at(epoch) for epoch in (9, 10, 12, 13)] == pytest.approx([1e-3, 1e-4, 1e-4, 1e-5])
    groups = plan.over(networks.vgg(4).parameters()).param_groups
    assert [(group["weight_decay"], {p.ndim > 1 for p in group["params"]}) for group in groups] == [
        (1e-3, {True}),
        (0.0, {False}),
    ]


def test_ten_rates_three_fixed_and_seven_drawn() -> None:
    for optimiser, fixed in (("nesterov", (1e-2, 1e-3, 1e-4)), ("adam", (1e-3, 1e-4, 1e-5))):
        found = rates(optimiser, 7)
        assert found[:3] == fixed
        assert len(set(found)) == 10
        assert all(1e-5 <= rate <= 1e-1 for rate in found)
        assert found == rates(optimiser, 7) != rates(optimiser, 7, seed=1)
    logs = [math.log10(rate) for rate in rates("adam", 2000)[3:]]
    assert abs(sum(logs) / 2000 + 3) < 5 * (4 / math.sqrt(12)) / math.sqrt(2000)  # uniform on [-5, -1]


def record(optimiser: str, rate: float, init: str, error: float, *, seed: int = 0, diverged: bool = False) -> Any:
    trial = Trial(optimiser, rate, init, seed)
    curve = {"training": [2.0, 1.0], "gradient": [0.1, 0.2]}
    measured = [] if diverged else [{"error": error, "log_loss": error}]
    tested = [] if diverged else [{"error": error + 0.01, "log_loss": error}]
    where = 0.5 if diverged else None
    return {
        "config": vars(trial),
        "curve": curve,
        "validation": measured,
        "test": tested,
        "diverged": where,
        "images": {"training": 45_000, "validation": 5000, "test": 10_000},
    }


@pytest.mark.parametrize(("error", "expected"), [(0.9, False), (0.89, False), (0.886, True), (0.8, True)])
def test_a_network_has_learnt_if_guessing_does_not_explain_its_error(error: float, expected: bool) -> None:
    found = record("adam", 1e-3, "he", error)
    assert learnt(found) == expected
    assert (norm.cdf((error - 0.9) / math.sqrt(0.9 * 0.1 / 5000)) < 1e-3) == expected
    assert not learnt(record("adam", 1e-3, "he", error, diverged=True))


def test_the_first_layer_waits_while_its_gradient_is_below_a_tenth_of_what_it_becomes() -> None:
    found = record("adam", 1e-3, "he", 0.5)
    for levels, expected in (((1.0, 5.0, 0.2), 0), ((0.06, 1e-4, 0.04, 0.5), 2), ((1e-9, 1.0, float("nan")), 1)):
        found["curve"]["gradient"] = [level for level in levels for _ in range(9)]
        assert waited(found) == expected
    found["curve"]["gradient"] = [None] * 9
    assert waited(found) == 0


def test_the_rate_is_chosen_on_validation_and_the_test_error_is_of_that_rate() -> None:
    records = [
        record("adam", 1e-3, "he", 0.9),
        record("adam", 1e-4, "he", 0.3),
        record("adam", 1e-5, "he", 0.0, diverged=True),
        record("adam", 1e-4, "he", 0.5, seed=1),
        record("adam", 1e-3, "paper", 0.2),
    ]
    assert [r["config"]["rate"] for r in tuned(records[:3])] == [1e-4]
    paper, he = summarise(records)
    assert (he["rate"], he["learnt"], he["seeds"]) == (1e-4, [1e-4], 2)
    assert he["error"]["mean"] == pytest.approx((0.31 + 0.51) / 2)
    assert paper["error"]["mean"] == pytest.approx(0.21)


def test_small_stages_add_ours_at_the_best_rate_and_then_seeds() -> None:
    done = {(o, r, i): record(o, r, i, r) for o in ("nesterov", "adam") for r in rates(o, 0) for i in INITS}
    base = replace(SMALL, epochs=1)

    def finished(trials: list[Trial]) -> list[Any]:
        return [done[t.optimiser, t.rate, t.init] for t in trials]

    first, added, again = (trials for _, trials in stages(base, "small", 3, finished))
    assert len(first) == 12
    assert {(t.optimiser, t.rate, t.init) for t in added} == {
        (o, r, i) for o, r in (("nesterov", 1e-4), ("adam", 1e-5)) for i in ("plan", "measured")
    }
    assert len(again) == 2 * 8
    assert {t.seed for t in again} == {1, 2}
    everything = [t for _, trials in stages(base, "paper", 1, lambda trials: []) for t in trials]
    assert len(everything) == len(set(everything)) == planned_trials("paper", 1) == 80
    assert len(first) + len(added) + len(again) == planned_trials("small", 3)


def test_medium_stages_have_nesterov_at_the_rates_of_the_map_a_seed_at_a_time() -> None:
    base = Vgg(scale="medium").base
    assert (base.width, base.epochs, base.held_out) == (32, 20, 5000)
    ((_, trials),) = stages(base, "medium", 2, lambda trials: [])
    assert len(trials) == planned_trials("medium", 2) == 6
    assert [t.seed for t in trials] == [0, 0, 0, 1, 1, 1]
    assert {(t.optimiser, t.init, t.rate) for t in trials} == {("nesterov", i, r) for i, r in experiment.MAPPED.items()}


def test_width_is_a_share_of_the_papers() -> None:
    assert (Vgg(width=0.25).base.width, Vgg().base.width, Vgg(scale="paper").base.width) == (16, 16, 64)
    for width in (0.0, -1.0, 16.0):
        with pytest.raises(ValueError, match=rf"width={width:g} is not a share of the paper's width, from 1/64 to 4"):
            _ = Vgg(width=width).base


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_a_trial_that_is_killed_goes_on_and_ends_in_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_cifar10(tmp_path, 20)
    whole = run_trial(SMALL, data_dir=folder)
    calls = 0

    def dying(*arguments: Any, **options: Any) -> dict[str, float]:
        nonlocal calls
        calls += 1
        if calls == 4:  # at the end of the second epoch
            raise KeyboardInterrupt
        return evaluate(*arguments, **options)

    evaluate = vgg.evaluate
    monkeypatch.setattr(vgg, "evaluate", dying)
    monkeypatch.setattr(staged.record, "commit", lambda: "earlier")
    with pytest.raises(KeyboardInterrupt):
        run_trial(SMALL, data_dir=folder, checkpoint=tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt")["epoch"] == 1
    monkeypatch.undo()
    resumed = run_trial(SMALL, data_dir=folder, checkpoint=tmp_path / "a.pt")
    now = whole.pop("environment")["commit"]
    assert resumed.pop("environment")["commit"] == ["earlier", now]
    assert {**whole, "seconds": 0} == {**resumed, "seconds": 0}
    assert len(whole["curve"]["gradient"]) == len(whole["curve"]["training"]) > 0
    assert len(whole["validation"]) == len(whole["test"]) == 3
    assert [len(seconds) for seconds in whole["start"].values()] == [15, 15]
    assert 0 <= whole["dropout_on"]["error"] <= 1
    assert whole["dropout_on"]["log_loss"] != whole["validation"][-1]["log_loss"]
    assert whole["integrated"]["log_loss"] != whole["test"][-1]["log_loss"]


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_a_rate_at_which_training_diverges_is_a_result_without_an_error(tmp_path: Path) -> None:
    trial = replace(SMALL, rate=1e20)
    found = {"config": vars(trial), **run_trial(trial, data_dir=write_cifar10(tmp_path, 20))}
    assert 0 < found["diverged"] <= 1
    assert (found["validation"], found["test"], found["dropout_on"], found["integrated"]) == ([], [], None, None)
    (row,) = summarise([found])
    assert (row["learnt"], row["errors"], row["error"], row["diverged"]) == ([], [None], None, 1)


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_half_the_bits_train_almost_alike(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path, 20)
    trial = replace(SMALL, rate=1e-3, epochs=1)
    whole, half = (run_trial(replace(trial, precision=p), data_dir=folder) for p in ("float32", "bfloat16"))
    assert half["curve"]["training"] != whole["curve"]["training"]
    assert half["curve"]["training"] == pytest.approx(whole["curve"]["training"], rel=0.02)
    assert half["test"][0]["log_loss"] == pytest.approx(whole["test"][0]["log_loss"], rel=0.02)


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_the_command_trains_tidies_and_summarises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unitvar_reproduction.sweep.run.processes", lambda size: together())  # no new processes
    monkeypatch.setattr(experiment, "SIZES", {"small": {"width": 2, "epochs": 1, "batch": 32, "held_out": 20}})
    monkeypatch.setattr(experiment, "FIXED", {"nesterov": (1e-2,), "adam": (1e-3,)})
    command = Vgg(out=tmp_path, data_dir=write_cifar10(tmp_path / "data", 20), workers=1)
    with pytest.raises(ValueError, match=r"No trial of this plan .* Run it without --no-train"):
        replace(command, train=False).run(Console(quiet=True))
    broken = checkpoint_path(tmp_path, replace(command.base, init="he"))
    broken.parent.mkdir()
    broken.write_text("no checkpoint")
    with pytest.raises(TrialError, match=r"(?s)1 of 4 trials failed.*Delete it to start over"):
        command.run(Console(quiet=True))
    # What is done is summarised all the same, and what builds on it waits.
    assert json.loads((tmp_path / "vgg_small.json").read_text())["done"] == {"trials": 3, "planned": 8}
    broken.unlink()
    command.run(Console(quiet=True))
    assert len(list((tmp_path / "vgg_small").iterdir())) == 8
    assert not (tmp_path / "checkpoints").exists()
    found = json.loads((tmp_path / "vgg_small.json").read_text())
    assert found["done"] == {"trials": 8, "planned": 8}
    assert {(row["optimiser"], row["init"]) for row in found["rows"]} == {
        (optimiser, init) for optimiser in ("nesterov", "adam") for init in INITS
    }
    for name in ("vgg_small.png", "vgg_small_gradients.png", "vgg_small_start.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
