"""Whatever happens, the model is as it was but for the statistics asked for."""

import copy
import random
from collections.abc import Iterator

import numpy as np
import numpy.random
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

import unitvar
from tests.batchnorm.test_reestimate import mlp
from unitvar.running.randomness import RandomState

# The run-time type checker draws random numbers itself, and refuses wrong types before the library can.
pytestmark = pytest.mark.usefixtures("untyped")

DATA = list(torch.randn(4, 16, 8, generator=torch.Generator().manual_seed(0)))


class Ema(nn.Module):
    """State of every kind that changes in forward, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ema", torch.zeros(8))
        self.register_buffer("through_data", torch.zeros(8))
        self.register_buffer("replaced", torch.zeros(()))
        self.register_buffer("absent", None)
        self.register_buffer("overlapping", torch.zeros(1).expand(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.ema.lerp_(x.detach().mean(0), 0.1)
        self.through_data.data.add_(1)
        self.replaced = self.replaced + 1
        return x + 0.01 * self.ema


class Instance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(1, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x[:, None])[:, 0]


def stateful() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*mlp(0.5, depth=2, width=8), Ema(), Instance(), *mlp(0.5, depth=1, width=8), nn.Dropout(0.1))
    for batch in DATA:
        model(batch)
    model[1].eval()  # flags are mixed
    model[5].eval()
    model[2].register_forward_hook(lambda *args: None)
    return model


def state(model: nn.Module) -> dict[str, object]:
    """Everything that must come back, as comparable values."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "bits": {k: v.detach().contiguous().numpy().tobytes() for k, v in tensors.items()},
        "identity": {k: id(v) for k, v in tensors.items()},
        "flags": [m.training for m in model.modules()],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "hooks": [[list(h) for k, h in sorted(vars(m).items()) if k.endswith("_hooks")] for m in model.modules()],
        "grads": [p.grad for p in model.parameters()],
        "requires": [p.requires_grad for p in model.parameters()],
        "classes": [type(m) for m in model.modules()],
    }


def broken_loader():
    yield from DATA[:2]
    raise OSError("disk")


def interrupted_loader():
    yield DATA[0]
    raise KeyboardInterrupt("by hand")


def with_bad_value(value: float) -> list[Tensor]:
    bad = DATA[2].clone()
    bad[3, 5] = value
    return [*DATA[:2], bad, DATA[3]]


def failing_forward(model: nn.Module, batch: Tensor) -> Tensor:
    model(batch)
    raise RuntimeError("after the forward")


FAILURES = {
    "loader": (broken_loader, {}, OSError, "disk"),
    "interrupt": (interrupted_loader, {}, KeyboardInterrupt, "by hand"),
    "nan": (lambda: with_bad_value(torch.nan), {}, ValueError, r"Batch 2 gives BatchNorm '2' NaN or infinite inputs"),
    "infinity": (lambda: with_bad_value(torch.inf), {}, ValueError, r"Batch 2 .* BatchNorm '2'"),
    "nan, later sweep": (
        lambda: with_bad_value(torch.nan),
        {"method": "sequential"},
        ValueError,
        r"Batch 2 .* BatchNorm '2'",
    ),
    "empty": (list, {}, ValueError, "batches is empty"),
    "wrong shape": (lambda: [DATA[0], torch.ones(4, 7)], {}, RuntimeError, "shapes cannot be multiplied"),
    "a single value": (lambda: [DATA[0][:1]], {}, ValueError, "single value per channel"),
    "forward": (lambda: DATA, {"forward": failing_forward}, RuntimeError, "after the forward"),
    "one-shot": (lambda: iter(DATA), {"method": "sequential"}, ValueError, "read only once"),
}


def in_context(model: nn.Module, batches, **options) -> None:
    with unitvar.reestimated_bn(model, batches, **options):
        pass


@pytest.mark.parametrize("case", FAILURES)
@pytest.mark.parametrize("context", [False, True])
def test_after_a_failure_everything_is_bit_for_bit_as_it_was(case: str, context: bool) -> None:
    make, options, kind, match = FAILURES[case]
    model = stateful()
    before, random_before = state(model), RandomState.read()
    with pytest.raises(kind, match=match):
        (in_context if context else unitvar.reestimate_bn_)(model, make(), **options)
    assert state(model) == before
    assert RandomState.read().same_as(random_before)


def test_an_interrupt_in_the_middle_of_a_layer_restores_too() -> None:
    model = stateful()
    calls = []

    def interrupt(*_: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    model[4].register_forward_hook(interrupt)
    before = state(model)
    with pytest.raises(KeyboardInterrupt):
        unitvar.reestimate_bn_(model, DATA)
    assert state(model) == before


def test_an_interrupt_while_writing_leaves_no_layer_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from unitvar.batchnorm import statistics

    model, done, store = stateful(), [], statistics.store

    def interrupted(name: str, *rest: object) -> None:
        if done:
            raise KeyboardInterrupt
        done.append(name)
        store(name, *rest)

    monkeypatch.setattr(statistics, "store", interrupted)
    before = state(model)
    with pytest.raises(KeyboardInterrupt):
        unitvar.reestimate_bn_(model, DATA)
    assert done
    assert state(model) == before


@pytest.mark.parametrize("method", ["one-pass", "sequential"])
def test_success_changes_the_statistics_and_nothing_else(method: str) -> None:
    model = stateful()
    before, random_before = state(model), RandomState.read()
    unitvar.reestimate_bn_(model, DATA, method=method)
    after = state(model)
    changed = {k for k in before["bits"] if before["bits"][k] != after["bits"][k]}
    assert changed == {f"{i}.running_{what}" for i in (2, 6, 12) for what in ("mean", "var")}
    for part in before.keys() - {"bits"}:
        assert after[part] == before[part]
    assert RandomState.read().same_as(random_before)


def test_random_numbers_drawn_by_the_loader_do_not_move_the_global_state() -> None:
    def loader():
        for _ in range(3):
            random.random()
            np.random.rand()
            yield torch.randn(16, 8)

    model = mlp(width=8)
    before = RandomState.read()
    unitvar.reestimate_bn_(model, loader())
    assert RandomState.read().same_as(before)


def test_lazy_layers_are_uninitialised_again_after_a_failure() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Dropout(), nn.LazyLinear(3), nn.LazyBatchNorm1d())
    model[0].eval()

    def parts() -> list[object]:
        return [
            (
                type(m),
                m.training,
                sorted(vars(m)),
                [list(h) for k, h in sorted(vars(m).items()) if k.endswith("_hooks")],
            )
            for m in model.modules()
        ] + [(id(t), type(t)) for t in (*model.parameters(), *model.buffers())]

    before = parts()
    for batches in ([DATA[0], torch.full((4, 8), torch.nan)], [DATA[0][:1]]):
        with pytest.raises(ValueError, match=r"NaN|single value"):
            unitvar.reestimate_bn_(model, batches)
        assert parts() == before
        assert isinstance(model[0].weight, UninitializedParameter)
    unitvar.reestimate_bn_(model, DATA)
    assert model[4].running_var.shape == (3,)
    assert not model[0].training
    assert model(DATA[0]).shape == (16, 3)


def test_training_goes_on_afterwards() -> None:
    model = mlp(width=8)
    unitvar.reestimate_bn_(model, DATA)
    model(DATA[0]).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert int(model[2].num_batches_tracked) == 1


def test_an_instance_forward_of_the_users_own_is_put_back() -> None:
    norm = nn.BatchNorm1d(8)
    original = norm.forward
    norm.forward = lambda x: original(x * 2)
    own = norm.forward
    unitvar.reestimate_bn_(norm, DATA)
    assert norm.forward is own
    torch.testing.assert_close(norm.running_var, (2 * torch.cat(DATA)).var(0))


def test_inference_mode_and_another_default_device_change_nothing() -> None:
    fresh = mlp(0.5, depth=2, width=8)
    outside = copy.deepcopy(fresh)
    unitvar.reestimate_bn_(outside, DATA)
    for mode in (torch.inference_mode(), torch.device("meta")):
        model = copy.deepcopy(fresh)
        with mode:
            unitvar.reestimate_bn_(model, DATA)
        for name, value in outside.state_dict().items():
            assert torch.equal(model.state_dict()[name], value)
    with torch.inference_mode():  # a model that was made there, too
        inside = nn.BatchNorm1d(8)
        unitvar.reestimate_bn_(inside, DATA)
    torch.testing.assert_close(inside.running_mean.clone(), torch.cat(DATA).mean(0))


class MaxNorm(nn.Linear):
    """As EEGNet has it: the weight's data are exchanged in every forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.1)
        return super().forward(x)


def test_a_weight_whose_data_a_forward_exchanges_is_as_it_was() -> None:
    model = nn.Sequential(MaxNorm(8, 8), nn.BatchNorm1d(8))
    before, pointer = model[0].weight.detach().clone(), model[0].weight.data_ptr()
    unitvar.reestimate_bn_(model, DATA)
    assert model[0].weight.data_ptr() == pointer
    assert torch.equal(model[0].weight, before)
    seen = torch.cat(DATA) @ torch.renorm(before, 2, 0, 0.1).T + model[0].bias
    torch.testing.assert_close(model[1].running_var, seen.detach().var(0))


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.eye(8).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        self.counts.mul_(2)
        return x @ self.counts


def test_sparse_buffers_come_back() -> None:
    model = nn.Sequential(Sparse(), nn.BatchNorm1d(8))
    unitvar.reestimate_bn_(model, DATA)
    assert torch.equal(model[0].counts.to_dense(), torch.eye(8))


def test_statistics_that_a_buffer_cannot_hold_are_an_error_that_changes_nothing() -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.BatchNorm1d(8)).half()
    model[0].running_mean.fill_(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"BatchNorm '0' stores its statistics as torch\.float16, which cannot hold"):
        unitvar.reestimate_bn_(model, [1000 * batch.half() for batch in DATA])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_random_numbers_that_are_first_drawn_in_a_later_pass_do_no_harm() -> None:
    """As when another thread draws: a pass of method="sequential" that ends at its layer has no output to compare."""
    torch.manual_seed(0)
    model, alone = (nn.Sequential(nn.BatchNorm1d(3), nn.Tanh(), nn.BatchNorm1d(3)) for _ in range(2))
    data, passes = list(torch.randn(4, 8, 3)), [0]

    class Drawing:
        def __iter__(self) -> Iterator[torch.Tensor]:
            passes[0] += 1
            return iter(data)

    def draw(*_: object) -> None:
        if passes[0] > 1:
            torch.rand(1)

    model[0].register_forward_hook(draw)
    unitvar.reestimate_bn_(model, Drawing(), method="sequential")
    unitvar.reestimate_bn_(alone, data, method="sequential")
    assert passes == [2]
    assert torch.equal(model[2].running_var, alone[2].running_var)
