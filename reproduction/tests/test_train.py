"""train: deterministic, and undisturbed by what is measured on the way."""

from collections.abc import Callable, Sequence

import pytest
import torch

from unitvar_reproduction import data, networks
from unitvar_reproduction.training.batchnorm import VARIANTS, Batches, variant
from unitvar_reproduction.training.loop import Schedule, evaluate, seeded, train


def trained(after_epoch: object = None, seed: int = 0) -> torch.nn.Module:
    training, _ = data.digits(0)
    with seeded(0):
        model = networks.mlp(64, 0.5, width=32, hidden=2)
    options = {} if after_epoch is None else {"after_epoch": lambda epoch: after_epoch(model, epoch)}  # type: ignore[operator]
    train(model, training[:200], Schedule(3), seed=seed, **options)  # type: ignore[arg-type]
    return model


def states_equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_training_is_a_function_of_the_seed() -> None:
    state = torch.get_rng_state()
    first = trained()
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(7)
    assert states_equal(first, trained())
    assert not states_equal(first, trained(seed=1))


def test_measuring_every_variant_leaves_training_as_it_would_have_been() -> None:
    training, test = data.digits(0)
    seen = []

    def measure(model: torch.nn.Module, epoch: int) -> None:
        for name in VARIANTS:
            with variant(name, model, Batches(training)):
                seen.append((epoch, name, evaluate(model, test)["error"]))

    assert states_equal(trained(measure), trained())
    assert len(seen) == 3 * len(VARIANTS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs=0 is not 1 or more"),
        ({"batch": 1}, "batch=1 is not 2 or more"),
        ({"rate": 0.0}, "rate=0.0 is not above 0"),
        ({"optimiser": "sgd"}, "optimiser=.sgd. is not one of .nesterov., .adam."),
    ],
)
def test_a_schedule_that_cannot_be_is_named(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**{"epochs": 3, **wrong})  # type: ignore[arg-type]


def test_the_rate_drops_at_a_half_and_three_quarters() -> None:
    rates = [Schedule(8).rate_at(epoch) for epoch in range(8)]
    assert rates == pytest.approx([0.1] * 4 + [0.01] * 2 + [0.001] * 2)


def test_evaluate_counts_errors_and_averages_the_loss() -> None:
    training, _ = data.digits(0)
    model = trained().train()
    found = evaluate(model, training, batch=77)
    assert model.training
    model.eval()
    with torch.no_grad():
        logits = model(training.images)
    assert found["error"] == pytest.approx((logits.argmax(1) != training.labels).double().mean().item())
    assert found["log_loss"] == pytest.approx(
        torch.nn.functional.cross_entropy(logits, training.labels).item(), rel=1e-5
    )


def test_evaluating_with_dropout_on_drops_and_leaves_batchnorm_in_evaluation() -> None:
    training, _ = data.digits(0)
    model = trained()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with seeded(3):
        found = evaluate(model, training, batch=len(training), dropout=True)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for module in model.modules():
        module.train(isinstance(module, torch.nn.Dropout))
    with seeded(3), torch.no_grad():
        logits = model(training.images)
    assert found["log_loss"] == pytest.approx(
        torch.nn.functional.cross_entropy(logits, training.labels).item(), rel=1e-5
    )
    assert found["log_loss"] > evaluate(model, training)["log_loss"]


def test_evaluating_with_dropout_integrated_out_is_the_mean_over_many_masks() -> None:
    """Against 2,000 masks: five times as near to their mean as the network with dropout off."""
    training, _ = data.digits(0)
    judged = training[:100]
    with seeded(0):
        model = torch.nn.Sequential(torch.nn.Flatten(), networks.Dropout(0.5), torch.nn.Linear(64, 10))
        torch.nn.init.normal_(model[2].weight, std=0.25)  # so large that switching dropout off is far off
    found = evaluate(model, judged, integrated=True)
    assert all(module.training for module in model.modules())
    with seeded(1), torch.no_grad():
        mixed = torch.stack([model(judged.images).softmax(1) for _ in range(2000)]).mean(0)
    loss = torch.nn.functional.nll_loss(mixed.log(), judged.labels).item()
    off = evaluate(model, judged)["log_loss"] - loss
    assert off > 0.1
    assert abs(found["log_loss"] - loss) < off / 5
    assert found["error"] == pytest.approx((mixed.argmax(1) != judged.labels).double().mean().item(), abs=0.03)


def test_weights_that_the_last_step_of_an_epoch_ruins_end_training_before_they_are_measured() -> None:
    training, _ = data.digits(0)
    model = networks.mlp(64, 0.0, batchnorm=False, width=8, hidden=1)
    measured: list[int] = []
    curve = train(model, training[:50], Schedule(3, 1e39, 50), seed=0, after_epoch=measured.append)
    assert (curve.diverged, len(curve.training), measured) == (1.0, 1, [])
    assert curve.training[0] < 10  # the loss was of the weights before


def test_training_stops_before_the_epoch_that_is_not_wanted_and_goes_the_same_way_until_there() -> None:
    def until(points: int) -> Callable[[Sequence[float]], bool]:
        return lambda losses: len(losses) >= points

    training, _ = data.digits(0)
    curves = []
    for wanted in (3, 2, 0):
        with seeded(0):
            model = networks.mlp(64, 0.5, width=8, hidden=1)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        curves.append(train(model, training[:100], Schedule(3), seed=0, points=2, enough=until(2 * wanted)).training)
    assert [len(curve) for curve in curves] == [6, 4, 0]
    assert curves[0][:4] == curves[1]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_training_learns() -> None:
    training, test = data.digits(0)
    with seeded(0):
        model = networks.mlp(64, 0.2)
    before = evaluate(model, test)["error"]
    train(model, training, Schedule(8), seed=0)
    assert evaluate(model, test)["error"] < 0.1 < before
