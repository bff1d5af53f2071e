"""Whatever happens, the model is as it was, gradients included."""

import contextlib
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedParameter

import unitvar
from tests.batchnorm.test_safety import DATA, state, stateful
from unitvar.running.randomness import RandomState

# The run-time type checker draws random numbers itself.
pytestmark = pytest.mark.usefixtures("untyped")


def prepared() -> nn.Sequential:
    model = stateful()
    model(DATA[0]).sum().backward()
    model[0].bias.grad = None  # one has none yet
    model[0].weight.requires_grad_(False)
    return model


def compare(model: nn.Module, call: Any) -> None:
    before, random = state(model), RandomState.read()
    kept = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    call()
    after = state(model)
    assert all(before[key] == after[key] for key in before if key != "grads")
    for p, old, copy in zip(model.parameters(), before["grads"], kept, strict=True):
        assert p.grad is old
        assert copy is None or torch.equal(p.grad, copy)
    assert random.same_as(RandomState.read())


def test_measuring_leaves_no_mark() -> None:
    model = prepared()
    compare(model, lambda: unitvar.measure(model, DATA[0]))


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("half-way")


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise RuntimeError("on the way back")


class FailsBackward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Backward.apply(x)


@pytest.mark.parametrize(("broken", "message"), [(Fails, "half-way"), (FailsBackward, "on the way back")])
def test_a_failure_leaves_no_mark(broken: type[nn.Module], message: str) -> None:
    model = prepared()
    model.insert(4, broken())

    def call() -> None:
        with pytest.raises(RuntimeError, match=message):
            unitvar.measure(model, DATA[0])

    compare(model, call)
    model.insert(0, nn.Identity())  # and hooks that were global are gone, too
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_a_loss_that_fails_leaves_no_mark() -> None:
    model = prepared()

    def call() -> None:
        with pytest.raises(ValueError, match="scalar"):
            unitvar.measure(model, DATA[0], loss=lambda y: y)

    compare(model, call)


def test_what_waits_for_gradients_is_not_set_off() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fired = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(fired.append)
    unitvar.measure(model, DATA[0])
    assert not fired
    model(DATA[0]).sum().backward()
    assert len(fired) == 4


def test_lazy_layers_stay_lazy() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(4))
    report = unitvar.measure(model, DATA[0])
    assert len(report) == 2
    assert isinstance(model[0].weight, UninitializedParameter)


def test_measuring_twice_gives_the_same() -> None:
    model = stateful()
    assert unitvar.measure(model, DATA[0]).rows == unitvar.measure(model, DATA[0]).rows


def test_an_input_that_requires_gradients_gets_none() -> None:
    x = DATA[0].clone().requires_grad_()
    unitvar.measure(stateful(), x)
    assert x.grad is None


def test_it_works_where_gradients_are_off() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    for off in (torch.no_grad(), torch.inference_mode()):
        with off:
            assert unitvar.measure(model, torch.randn(16, 8))["0.weight"].gradient == pytest.approx(1.0)


@pytest.mark.parametrize("frozen", [True, False])
def test_nothing_is_kept_that_autograd_does_not_keep(frozen: bool) -> None:
    """Of a frozen network's activations at most three are alive at a time, whatever the depth."""
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    class Counted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal most
            z = super().forward(x)
            if not isinstance(z, FakeTensor):  # the prediction's have no data
                alive.append(weakref.ref(z))
            most = max(most, sum(ref() is not None for ref in alive))
            return torch.relu(z)  # keeps its result, not z

    model = nn.Sequential(*(Counted(8, 8) for _ in range(30))).requires_grad_(not frozen)
    gc.collect()
    unitvar.measure(model, torch.randn(4, 8), runs=2)
    assert most <= 3


def test_a_model_that_was_watched_has_no_hooks_left() -> None:
    model = prepared()
    before = state(model)
    with contextlib.suppress(KeyboardInterrupt), unitvar.watch(model, every=1):
        model.train()
        model(DATA[0]).sum().backward()
        raise KeyboardInterrupt
    assert state(model)["hooks"] == before["hooks"]
    assert not any(p._backward_hooks for p in model.parameters())


@pytest.mark.parametrize(
    "body", [nn.RReLU(), nn.TransformerEncoderLayer(8, 2, 16), nn.Dropout(0.3)], ids=lambda m: type(m).__name__
)
def test_no_random_number_is_used_up(body: nn.Module) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), body, nn.Linear(8, 8)), torch.randn(4, 3, 8)
    before = torch.get_rng_state()
    unitvar.measure(model, x)
    unitvar.plan(model, x)
    unitvar.initialize_(model, x, generator=torch.Generator().manual_seed(0))
    assert torch.equal(before, torch.get_rng_state())


def test_a_failed_initialisation_uses_up_no_random_number() -> None:
    model, before = nn.Linear(8, 8), torch.get_rng_state()
    with pytest.raises(ValueError, match="no scale can make 1"):
        unitvar.initialize_(model, torch.zeros(4, 8), method="measured")
    assert torch.equal(before, torch.get_rng_state())


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.mul_(3.0))


def test_a_model_that_writes_to_its_input_gets_a_copy() -> None:
    model, x = Writes(), torch.randn(64, 8)
    given = x.clone()
    with torch.no_grad():
        expected = model.layer(3 * x).square().mean().item()
    assert unitvar.measure(model, x)["layer.weight"].variance == pytest.approx(expected, rel=1e-5)
    unitvar.initialize_(model, x, method="measured")
    assert torch.equal(x, given)


def test_a_measurement_is_no_step_of_training() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    with unitvar.watch(model, every=1) as history:
        unitvar.measure(model, torch.randn(4, 8))
    assert (history.steps, history.rows) == (0, [])


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("call", [unitvar.plan, unitvar.initialize_, unitvar.measure])
def test_what_is_no_module_is_named(call: Any) -> None:
    with pytest.raises(TypeError, match="model is a function, not an nn"):
        call(lambda x: x, torch.randn(2, 8))


def test_a_cell_is_measured_and_not_predicted() -> None:
    report = unitvar.measure(nn.LSTMCell(8, 16), torch.randn(64, 8))
    assert {layer.name for layer in report} == {"weight_ih", "weight_hh"}
    assert all(layer.predicted_variance is None and layer.predicted_gradient is None for layer in report)
