"""One trial: against a loop written by hand, and what becomes of divergence."""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unitvar_reproduction import data
from unitvar_reproduction.experiments import mlp
from unitvar_reproduction.training.loop import seeded

SMALL = mlp.Trial("digits", "relu", 0.5, "he", 1e-3, seed=3, epochs=2, held_out=200, width=32, hidden=2)


def test_a_trial_is_what_a_plain_loop_gives() -> None:
    found = mlp.run_trial(SMALL)
    everything, test = data.digits(3)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(3))
    validation, training = everything[order[:200]], everything[order[200:]]
    with seeded(3):
        model = mlp.network(SMALL, training.images[:1000])
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses: list[float] = []
    means, validated = [], []
    shuffle = torch.Generator().manual_seed(3)
    with seeded(3):
        for _ in range(2):
            permutation = torch.randperm(800, generator=shuffle)
            for step in range(13):  # 800 images in batches of 64
                index = permutation[64 * step : 64 * (step + 1)]
                loss = F.cross_entropy(model(training.images[index]), training.labels[index])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
                if step + 1 in (5, 9, 13):  # thirds of 13, rounded up
                    means.append(sum(losses) / len(losses))
                    losses.clear()
                    model.eval()
                    with torch.no_grad():
                        validated.append(F.cross_entropy(model(validation.images), validation.labels).item())
                    model.train()
    assert found["curve"]["training"] == pytest.approx(means, rel=1e-3)
    assert found["curve"]["validation"] == pytest.approx(validated, rel=1e-3)
    model.eval()
    wrong = (model(test.images).argmax(1) != test.labels).double().mean().item()
    assert found["test"]["end"]["error"] == pytest.approx(wrong, abs=0.003)
    assert found["images"] == {"training": 800, "validation": 200, "test": 797}


def test_a_trial_is_a_function_of_its_config() -> None:
    def without_time(trial: mlp.Trial) -> dict[str, object]:
        return {key: value for key, value in mlp.run_trial(trial).items() if key != "seconds"}

    torch.manual_seed(1)
    first = without_time(SMALL)
    torch.manual_seed(2)
    assert without_time(SMALL) == first
    assert without_time(replace(SMALL, seed=4)) != first


def test_the_best_point_is_kept_for_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    training, _, test = mlp.load(SMALL, None)
    monkeypatch.setattr(mlp, "load", lambda trial, data_dir: (training, test, test))
    # A rate so high that the network is best early and worse at the end.
    found = mlp.run_trial(replace(SMALL, keep=1.0, rate=0.05, epochs=6))
    validation = found["curve"]["validation"]
    assert found["test"]["best"]["log_loss"] == min(validation) < validation[-1]
    assert found["test"]["end"]["log_loss"] == validation[-1]


def test_half_the_bits_train_nearly_alike() -> None:
    whole, half = (mlp.run_trial(replace(SMALL, precision=precision)) for precision in ("float32", "bfloat16"))
    assert half["curve"]["training"] != whole["curve"]["training"]
    assert half["curve"]["training"] == pytest.approx(whole["curve"]["training"], rel=0.05)


def test_divergence_is_a_result() -> None:
    found = mlp.run_trial(replace(SMALL, rate=1e30))
    assert found["diverged"] == pytest.approx(5 / 13)
    assert found["curve"]["training"] == [None]
    assert found["curve"]["validation"] == []
    json.dumps(found, allow_nan=False)


def test_dropout_drops_and_scales_like_torchs() -> None:
    ours = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.7))
    ours = mlp.networks.quicken_(ours)
    drop = ours[1]
    assert isinstance(drop, nn.Dropout)
    assert type(drop) is not nn.Dropout
    x = torch.ones(400, 500, requires_grad=True)
    y = drop(x)
    kept = y.detach() != 0
    # A share of n Bernoulli variables has standard error sqrt(p (1 - p) / n).
    assert kept.double().mean().item() == pytest.approx(0.3, abs=5 * (0.21 / kept.numel()) ** 0.5)
    assert torch.allclose(y.detach()[kept], torch.tensor(1 / 0.3))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # type: ignore[arg-type]
    drop.eval()
    assert drop(x) is x


def test_settings_that_do_not_exist_are_named() -> None:
    with pytest.raises(ValueError, match=r"dataset='emnist' is not one of"):
        mlp.run_trial(replace(SMALL, dataset="emnist"))
    with pytest.raises(ValueError, match=r"inputs='white' is not one of"):
        mlp.run_trial(replace(SMALL, inputs="white"))
    with pytest.raises(ValueError, match=r"1000 of 1000 images cannot be held out"):
        mlp.run_trial(replace(SMALL, held_out=1000))
    with pytest.raises(ValueError, match=r"precision='fp8' is not one of"):
        mlp.run_trial(replace(SMALL, precision="fp8"))
