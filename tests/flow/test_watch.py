"""watch: what flows during real training, without a trace in it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unitvar
from tests import zoo


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def train(model: nn.Module, steps: int, **options: Any) -> unitvar.History:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with unitvar.watch(model, **options) as history:
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(64, 16)), torch.randint(4, (64,))).backward()
            optimizer.step()
    return history


def test_every_so_many_steps_all_layers_are_recorded() -> None:
    history = train(network(), 11, every=5)
    assert history.steps == 11
    names = ["0.weight", "3.weight", "5.weight"]
    assert [(r["step"], r["name"]) for r in history.rows] == [(s, n) for s in (0, 5, 10) for n in names]
    assert all(r["gradient"] > 0 and 0 <= r["dead"] < 1 for r in history.rows)
    json.dumps(history.rows, allow_nan=False)


def test_numbers_are_those_of_hooks_by_hand() -> None:
    model = network()
    model[2].p = 0.0
    history = train(model, 1)
    by_hand = network()
    by_hand[2].p = 0.0
    torch.manual_seed(1)
    z = by_hand[0](torch.randn(64, 16))
    z.retain_grad()
    nn.functional.cross_entropy(by_hand[1:](z), torch.randint(4, (64,))).backward()
    row = history.rows[0]
    assert row["variance"] == pytest.approx(z.square().mean().item(), rel=1e-5)
    assert row["gradient"] == pytest.approx(z.grad.square().mean().item(), rel=1e-5)
    assert row["weight_gradient_norm"] == pytest.approx(by_hand[0].weight.grad.norm().item(), rel=1e-5)


def test_training_is_not_changed_by_a_bit() -> None:
    watched, alone = network(), network()
    train(watched, 7, every=2)
    train(alone, 7, every=1000)
    assert all(map(torch.equal, watched.parameters(), alone.parameters()))


def test_on_unobserved_steps_a_counter_is_raised_and_nothing_else_happens() -> None:
    model = network()
    with unitvar.watch(model, every=3) as history:
        model(torch.randn(4, 16)).sum().backward()
        model(torch.randn(4, 16))
        # One hook on the model itself, and none on anything below it.
        assert [len(m._forward_pre_hooks) for m in model.modules()] == [1, 0, 0, 0, 0, 0, 0]
        assert not any(m._forward_hooks for m in model.modules())
        assert not any(p._backward_hooks for p in model.parameters())
        assert history.steps == 2
    assert not model._forward_pre_hooks


def test_evaluation_is_no_step() -> None:
    model = network()
    with unitvar.watch(model, every=1) as history:
        model(torch.randn(4, 16)).sum().backward()
        model.eval()
        model(torch.randn(4, 16))
        model.train()
        with torch.no_grad():
            model(torch.randn(4, 16))
    assert history.steps == 1
    assert {row["step"] for row in history.rows} == {0}


def test_a_gradient_may_come_late() -> None:
    """A GAN's discriminator runs twice before its gradients come."""
    model = network()
    with unitvar.watch(model, every=2) as history:
        first, second = model(torch.randn(4, 16)), model(torch.randn(4, 16))
        (first.sum() - second.sum()).backward()
        assert all(row["gradient"] > 0 for row in history.rows)  # readable while it watches


def test_weights_without_a_pre_activation_have_the_norms_of_their_gradients() -> None:
    model, tokens = zoo.OTHER["LSTM classifier"]()
    with unitvar.watch(model) as history:
        model(tokens).sum().backward()
    rows = {row["name"]: row for row in history.rows}
    assert set(rows) == {name for name, p in model.named_parameters() if p.dim() > 1}
    for name, row in rows.items():
        assert row["weight_gradient_norm"] == pytest.approx(model.get_parameter(name).grad.norm().item(), rel=1e-5)
    assert rows["embed.weight"]["variance"] is None


def test_a_forward_pass_that_fails_can_be_repeated() -> None:
    model = network()
    with unitvar.watch(model, every=1) as history:
        with pytest.raises(RuntimeError):
            model(torch.randn(4, 15))
        model(torch.randn(4, 16)).sum().backward()
    assert [row["step"] for row in history.rows] == [1, 1, 1]
    assert torch.randn(2, 2).square().sum() > 0  # no mode was left behind
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_rows_go_to_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        history = train(network(), 4, every=3, writer=writer)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert "gradient/3.weight" in events.Tags()["scalars"]
    for what in ("mean", "variance", "gradient", "dead", "weight_gradient_norm"):
        found = [(e.step, e.value) for e in events.Scalars(f"{what}/3.weight")]
        assert found == [(r["step"], pytest.approx(r[what], rel=1e-6)) for r in history.rows if r["name"] == "3.weight"]


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"every": 0}, ValueError, "every=0 is not 1 or more"),
        ({"every": 2.5}, TypeError, "every=2.5 is not a whole number"),
        ({"writer": 3}, TypeError, "writer=3 has no add_scalar"),
    ],
)
def test_errors_name_the_value(options: dict, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        unitvar.watch(nn.Linear(1, 1), **options)


def test_a_history_watches_once() -> None:
    history = unitvar.watch(nn.Linear(1, 1))
    with history, pytest.raises(RuntimeError, match="already watching"):
        history.__enter__()


class Interrupted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt


def test_an_interrupt_in_an_observed_step_leaves_no_meter_behind() -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    model = nn.Sequential(nn.Linear(4, 4), Interrupted())
    with pytest.raises(KeyboardInterrupt), unitvar.watch(model):
        model(torch.randn(2, 4))
    assert not _get_current_dispatch_mode_stack()


def test_sparse_and_complex_gradients_are_counted() -> None:
    model = nn.Sequential(nn.Embedding(50, 4, sparse=True), nn.Flatten(), nn.Linear(8, 1))
    model.register_parameter("phase", nn.Parameter(torch.randn(2, 2, dtype=torch.complex64)))
    with unitvar.watch(model) as history:
        (model(torch.tensor([[1, 2], [1, 3]])).sum() + model.phase.abs().square().sum()).backward()
    norms = {row["name"]: row["weight_gradient_norm"] for row in history.rows}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            assert norms[name] == pytest.approx(float(parameter.grad.to_dense().abs().square().sum().sqrt()))


@pytest.mark.usefixtures("untyped")
def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match="model is a str"):
        unitvar.watch("model")  # type: ignore[arg-type]
