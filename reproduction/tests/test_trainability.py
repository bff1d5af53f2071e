"""The trainability map: images of one size, weights by name, what trains and moves, plans, claims, and the command."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from fake import write_cifar10, write_mnist, write_svhn
from unitvar_reproduction.experiments.sections import SECTIONS
from unitvar_reproduction.experiments.trainability import experiment, trial
from unitvar_reproduction.experiments.trainability.claims import claims, compared
from unitvar_reproduction.experiments.trainability.experiment import (
    LIKELY,
    RATES,
    Trainability,
    near,
    outwards,
    planned_trials,
    possible,
    stages,
)
from unitvar_reproduction.experiments.trainability.summary import best_rate, moved, summarise, trained
from unitvar_reproduction.experiments.trainability.trial import (
    ADVISED,
    INITS,
    Trial,
    chance,
    load,
    network,
    run_trial,
    update_signals,
)
from unitvar_reproduction.sweep.pools import together

SMALL = Trial("mnist", "nesterov", 1e-2, "paper", 0, width=4, epochs=2, batch=16, images=40, judged=20, points=2)

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the published file")


def record(
    init: str,
    rate: float,
    error: float | None,
    *,
    seed: int = 0,
    gradient: float = 1.0,
    optimiser: str = "nesterov",
    losses: tuple[float, ...] = (2.3, 2.3),
) -> dict[str, Any]:
    """Return what a trial of two epochs and two points would have saved; no error for one that diverged."""
    judged = {} if error is None else {name: {"error": error} for name in ("validation", "test", "dropout_on")}
    guessing = {"error": 0.9, "log_loss": math.log(10)}
    return {
        "config": vars(replace(SMALL, init=init, rate=rate, seed=seed, optimiser=optimiser)),
        "start": {"on": [1.0], "off": [1.0], "gradient": [gradient, 1.0]},
        "curve": {"training": list(losses), "gradient": [1.0] * len(losses)},
        "judged": judged,
        "diverged": 0.5 if error is None else None,
        "steps": 1000,
        "chance": {"training": guessing, "validation": guessing},
        "images": {"training": 8000, "validation": 2000, "test": 2000},
    }


def test_every_data_set_becomes_32x32_in_three_standardised_channels(tmp_path: Path) -> None:
    for write in (write_mnist, write_svhn, write_cifar10):
        write(tmp_path, 80)
    for name in ("mnist", "svhn", "cifar10"):
        training, validation, test = load(replace(SMALL, dataset=name), tmp_path)
        assert training.images.shape == (40, 3, 32, 32)
        assert (len(validation), len(test)) == (20, 20)
        std, mean = torch.std_mean(training.images, dim=(0, 2, 3))
        assert torch.allclose(mean, torch.zeros(3), atol=1e-4)
        assert torch.allclose(std, torch.ones(3), atol=1e-4)
    border = load(SMALL, tmp_path)[0].images[:, :, :2]  # what was padded with black is one value
    assert border.min() == border.max()
    again = load(replace(SMALL, seed=1), tmp_path)[0]
    assert not torch.equal(again.labels, load(SMALL, tmp_path)[0].labels)
    with pytest.raises(ValueError, match="80 images cannot have 90 held out"):
        load(replace(SMALL, judged=90), tmp_path)


@pytest.mark.parametrize("init", INITS)
def test_weights_depend_on_name_and_seed_alone(init: str) -> None:
    example = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    state = torch.get_rng_state()
    first, second = (network(replace(SMALL, init=init), example) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    other = network(replace(SMALL, init=init, seed=1), example)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not torch.equal(first[0].weight, other[0].weight)


def test_the_advised_gain_is_what_the_plan_of_the_network_says() -> None:
    """At any width; and it is a scale alone: the weights before the output are those of the plan, smaller."""
    import unitvar
    from unitvar_reproduction import networks
    from unitvar_reproduction.experiments.training.gains import ADVICE

    example = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    for width in (SMALL.width, 16):
        advice = " ".join(unitvar.plan(networks.vgg(width), example).advice)
        found = {name: re.search(pattern, advice)[1] for name, pattern in ADVICE.items()}  # type: ignore[index]
        assert {"nesterov": f"gain-{found['nesterov']}", "adam": f"gain-{found['adamw']}"} == ADVISED
    for optimiser, gain in (("nesterov", 0.8), ("adam", 0.5)):
        plain, scaled = (
            network(replace(SMALL, init=init, optimiser=optimiser), example) for init in ("scaled", "advised")
        )
        assert torch.allclose(gain * plain[0].weight, scaled[0].weight)
        assert torch.allclose(plain[-1].weight, scaled[-1].weight)


def test_an_unknown_initialisation_is_named() -> None:
    with pytest.raises(ValueError, match=r"init='xavier' is not one of 'paper', 'he', 'default', 'lsuv', 'scaled'"):
        network(replace(SMALL, init="xavier"), torch.empty(0))


def test_guessing_is_the_most_frequent_class_and_its_loss_the_entropy() -> None:
    found = chance(torch.tensor([0, 0, 1, 2]))
    assert found["error"] == pytest.approx(0.5)
    assert found["log_loss"] == pytest.approx(0.5 * math.log(2) + 2 * 0.25 * math.log(4))


def test_update_signals_are_those_of_the_loss() -> None:
    """By finite differences, along the gradient's own direction, without dropout."""
    from unitvar_reproduction.data import Images

    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 5)).double()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 3, 8, 8, generator=generator, dtype=torch.float64)
    batch = Images(images, torch.arange(4))
    found = update_signals(model, batch, seed=0)
    weight, step = model[0].weight, 1e-5
    moved_by = torch.zeros_like(weight)
    with torch.no_grad():
        for i in range(weight.numel()):
            around = []
            for sign in (1, -1):
                weight.view(-1)[i] += sign * step
                around.append(nn.functional.cross_entropy(model(images), batch.labels).item())
                weight.view(-1)[i] -= sign * step
            moved_by.view(-1)[i] = (around[0] - around[1]) / (2 * step)
    assert found[0] == pytest.approx(moved_by.square().mean().sqrt().item(), rel=1e-4)
    assert len(found) == 2


def test_a_network_trains_if_guessing_does_not_explain_its_error_with_dropout_off_or_on() -> None:
    found = record("he", 1e-2, 0.9)
    assert not trained(found)
    assert not trained(record("he", 1e-2, 0.885))  # 2.2 standard errors
    assert trained(record("he", 1e-2, 0.87))  # 4.5
    found["judged"]["dropout_on"]["error"] = 0.7
    assert trained(found)
    assert not trained(record("he", 1e-2, None))


def test_a_loss_moves_where_it_is_a_tenth_below_guessing() -> None:
    """Two epochs of two points in 1,000 steps: 250 steps a point; a loss above guessing has not moved."""
    assert moved(record("he", 1e-2, 0.5, losses=(40.0, 2.25, 2.19, 1.0))) == 750
    assert moved(record("he", 1e-2, 0.5, losses=(2.3, 2.3, 2.3, 2.21))) is None


def test_a_network_whose_loss_does_not_move_is_stopped_when_patience_ends(tmp_path: Path) -> None:
    write_mnist(tmp_path, 80)
    still = replace(SMALL, rate=1e-9, epochs=3)
    whole, stopped = (run_trial(replace(still, patience=wait), data_dir=tmp_path) for wait in (None, 2))
    assert (whole["stopped"], len(whole["curve"]["training"])) == (None, 6)
    assert (stopped["stopped"], len(stopped["curve"]["training"])) == (2, 4)
    assert stopped["curve"]["training"] == whole["curve"]["training"][:4]
    assert stopped["steps"] == whole["steps"]  # what a point of the curve is does not change
    assert set(stopped["judged"]) == {"validation", "test", "dropout_on"}


def test_a_network_that_moves_in_time_is_trained_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path, 80)
    monkeypatch.setattr(trial, "chance", lambda labels: {"error": 0.9, "log_loss": 1e9})  # any loss has moved
    found = run_trial(replace(SMALL, rate=1e-9, patience=1), data_dir=tmp_path)
    assert (found["stopped"], len(found["curve"]["training"])) == (None, 4)


def test_rates_are_tried_outwards_and_repeated_near_the_best() -> None:
    for optimiser, likely in LIKELY.items():
        assert outwards(optimiser)[0] == likely
        assert sorted(outwards(optimiser)) == list(RATES)
    assert sorted(near(1e-2)) == [3e-3, 1e-2, 3e-2]
    assert near(1e-1) == [1e-1, 3e-2, 1e-2]
    assert near(1e-5) == [1e-5, 3e-5, 1e-4]


def test_the_plan_has_two_seeds_everywhere_and_a_third_near_the_best() -> None:
    def done(trials: list[Trial]) -> list[dict[str, Any]]:
        best = {"nesterov": 1e-1, "adam": 1e-3}
        return [
            record(t.init, t.rate, 0.1 if t.rate == best[t.optimiser] else 0.9, optimiser=t.optimiser) for t in trials
        ]

    everything = [trial for _, trials in stages(SMALL, done) for trial in trials]
    assert len(everything) == len(set(everything)) == planned_trials()
    third = {(t.optimiser, t.rate) for t in everything if t.seed == 2}
    assert third == {("nesterov", rate) for rate in (1e-2, 3e-2, 1e-1)} | {
        ("adam", rate) for rate in (3e-4, 1e-3, 3e-3)
    }
    assert len([t for t in everything if t.width == 64]) == 2 * len(INITS)
    unknown = [trial for _, trials in stages(SMALL, lambda trials: []) for trial in trials]
    assert {t.seed for t in unknown} == {0, 1}
    # Whatever rate turns out best, the summary looks for what was asked for then.
    assert set(everything) | set(unknown) <= set(possible(SMALL))


def test_the_best_rate_is_by_the_mean_over_seeds_and_diverged_is_worse_than_guessing() -> None:
    records = [record("he", 1e-2, 0.2), record("he", 1e-2, None, seed=1), record("he", 1e-3, 0.5)]
    assert best_rate(records) == 1e-3
    assert best_rate([record("he", 1e-2, None), record("he", 1e-3, 0.91)]) == 1e-3  # worse than guessing by chance
    assert best_rate([]) is None


def test_claims_are_judged_on_pairs() -> None:
    """The paper's weights better by 10 points but for noise, at one rate more, with a larger gradient."""
    records = []
    for seed in range(3):
        records += [
            record("paper", 1e-2, 0.30 + 0.01 * seed, seed=seed, gradient=10.0 + seed),
            record("he", 1e-2, 0.90, seed=seed, gradient=1.0),
            record("paper", 1e-3, 0.60, seed=seed, gradient=10.0 + seed),
            record("he", 1e-3, 0.40 + 0.012 * seed, seed=seed, gradient=1.0),
        ]
    rows = summarise(records)
    found = {judgement.claim: judgement for judgement in claims(rows)}
    assert {claim: judgement.verdict for claim, judgement in found.items()} == {
        "lower error at the best rate": "held",
        "more rates that train": "open",  # three discordant pairs: p = 0.25
        "He untrainable at Nesterov 0.01": "held",
        "vanishing update signals under He": "held",
    }
    difference, pairs = compared(*rows)
    assert pairs == 3
    assert difference is not None
    assert difference.mean == pytest.approx(-0.10 - 0.002)
    assert "3 against 0 of 3 seeds" in found["He untrainable at Nesterov 0.01"].evidence


def test_claims_can_turn_out_the_other_way_round_and_two_seeds_decide_nothing() -> None:
    worse = [
        record(init, rate, error + 0.001 * seed * (init == "he"), seed=seed, gradient=gradient)
        for seed in range(3)
        for rate in (1e-2, 1e-3)
        for init, error, gradient in (("paper", 0.9, 1.0), ("he", 0.3, 5.0))
    ]
    assert {j.claim: j.verdict for j in claims(summarise(worse))} == {
        "lower error at the best rate": "contrary",
        "more rates that train": "contrary",  # six of six: p = 0.03
        "He untrainable at Nesterov 0.01": "contrary",
        "vanishing update signals under He": "contrary",
    }
    two = [r for r in worse if r["config"]["seed"] < 2]
    verdicts = {j.claim: j.verdict for j in claims(summarise(two))}
    assert verdicts.pop("He untrainable at Nesterov 0.01") == "contrary"  # one network that trains is enough
    assert set(verdicts.values()) == {"open"}


def test_the_command_trains_what_is_asked_for_and_summarises_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"width": 2, "epochs": 1, "batch": 16, "images": 40, "judged": 20, "points": 2}
    monkeypatch.setattr("unitvar_reproduction.sweep.run.processes", lambda size: together())  # no new processes
    monkeypatch.setattr(experiment, "SIZES", {"small": sizes})
    monkeypatch.setattr(experiment, "FULL", replace(SMALL, dataset="cifar10", width=4, epochs=1))
    for write in (write_mnist, write_cifar10):
        write(tmp_path / "data", 80)
    command = Trainability(
        out=tmp_path, data_dir=tmp_path / "data", workers=1, tasks=("mnist",), inits=("paper",), rates=(1e-2,)
    )
    with pytest.raises(ValueError, match=r"rate 0\.02 is not one of 1e-05, 3e-05"):
        replace(command, rates=(0.02,)).run(Console(quiet=True))
    command.run(Console(quiet=True))
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- map -->\nold\n<!-- end -->\n\nAfter.\n", encoding="utf-8")
    steps = replace(command, page=page, tasks=("cifar10",), optimisers=("nesterov",), inits=("he",))
    steps.run(Console(quiet=True))
    found = json.loads((tmp_path / "trainability_small.json").read_text())
    # MNIST: two optimisers, two seeds, and near the only rate known a third; CIFAR-10: three, and two at full width.
    assert found["done"] == {"trials": 11, "planned": planned_trials()}
    assert {(row["dataset"], row["optimiser"], row["init"]) for row in found["rows"]} == {
        ("mnist", "nesterov", "paper"),
        ("mnist", "adam", "paper"),
        ("cifar10", "nesterov", "he"),
    }
    assert len(found["starts"]) == 2
    assert not (tmp_path / "checkpoints").exists()
    for name in ("trainability_small.png", "trainability_small_full.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    section = SECTIONS["trainability_small"](found)
    assert f"11 of {planned_trials()} trials done" in section.ran
    assert len(section.tables) == 3
    written = page.read_text(encoding="utf-8")
    assert written.startswith("Before.\n\n<!-- map -->\n\n" + section.ran)
    assert written.endswith("|\n\n<!-- end -->\n\nAfter.\n")
    assert "old" not in written
    page.write_text("No marks.", encoding="utf-8")
    with pytest.raises(ValueError, match="The page has the parts none; it needs map, each once"):
        replace(steps, train=False).run(Console(quiet=True))
