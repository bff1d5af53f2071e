"""Every kind of BatchNorm, and every kind of model around it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import unitvar
from tests.batchnorm.test_reestimate import actual, mlp, norms

# The run-time type checker draws random numbers itself, and refuses wrong types before the library can.
pytestmark = pytest.mark.usefixtures("untyped")

KINDS = {
    "1d": (nn.BatchNorm1d(3), (8, 3)),
    "1d with length": (nn.BatchNorm1d(3), (8, 3, 5)),
    "2d": (nn.BatchNorm2d(3), (8, 3, 5, 5)),
    "3d": (nn.BatchNorm3d(3), (4, 3, 2, 3, 4)),
    "sync": (nn.SyncBatchNorm(3), (8, 3, 5)),
    "lazy 1d": (nn.LazyBatchNorm1d(), (8, 3)),
    "lazy 2d": (nn.LazyBatchNorm2d(), (8, 3, 5, 5)),
    "no affine": (nn.BatchNorm2d(3, affine=False), (8, 3, 5, 5)),
    "no momentum": (nn.BatchNorm2d(3, momentum=None), (8, 3, 5, 5)),
    "double": (nn.BatchNorm2d(3).double(), (8, 3, 5, 5)),
}


@pytest.mark.parametrize(("norm", "shape"), KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("method", ["one-pass", "sequential"])
def test_every_kind_gets_its_pooled_statistics(norm: nn.Module, shape: tuple[int, ...], method: str) -> None:
    torch.manual_seed(0)
    dtype = torch.float64 if next(iter(norm.buffers())).dtype == torch.float64 else torch.float32
    data = [torch.randn(shape, dtype=dtype) * 2 + i for i in range(3)]
    model = nn.Sequential(norm)
    unitvar.reestimate_bn_(model, data, method=method)
    mean, var = actual(model, data)[norm]
    torch.testing.assert_close(norm.running_mean.double(), mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(norm.running_var.double(), var, rtol=1e-6, atol=0)
    assert int(norm.num_batches_tracked) == 0


class DropsFirst(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.5, self.training) * 3 + 1).relu()


class CallsFunctional(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        bn_training = self.training or self.running_mean is None
        y = F.batch_norm(
            x * 3 + 1, self.running_mean, self.running_var, self.weight, self.bias, bn_training, 0.1, self.eps
        )
        return y.relu()


class CallsTorch(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        args = (self.weight, self.bias, self.running_mean, self.running_var, self.training, 0.1, self.eps, False)
        return torch.batch_norm(x * 3 + 1, *args).relu()


class ByHand(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        mean, var = (x.mean(0), x.var(0)) if self.training else (self.running_mean, self.running_var)
        return ((x - mean) * (var + self.eps).rsqrt() * self.weight + self.bias).relu()


@pytest.mark.parametrize("method", ["one-pass", "sequential"])
@pytest.mark.parametrize("kind", [DropsFirst, CallsFunctional, CallsTorch, ByHand])
def test_an_overridden_forward_runs_and_what_it_normalises_is_counted(kind: type, method: str) -> None:
    torch.manual_seed(0)
    model, data = mlp(0.5, depth=2, width=8, norm=kind), torch.randn(256, 8)
    unitvar.reestimate_bn_(model, data.split(128), method=method)
    model.eval()
    first, second = norms(model)
    stretch = (lambda x: x) if kind is ByHand else (lambda x: x * 3 + 1)
    with torch.no_grad():
        inputs = stretch(model[0](data)), stretch(model[4](model[:4](data)))
    for norm, x, rtol in zip((first, second), inputs, (1e-6, 1e-5 if method == "sequential" else 0.05), strict=True):
        torch.testing.assert_close(norm.running_var, x.var(0), rtol=rtol, atol=0)
        torch.testing.assert_close(norm.running_mean, x.mean(0), rtol=rtol, atol=rtol)


def test_frozen_layers_keep_their_statistics_unless_asked() -> None:
    model, data = mlp(depth=3), [torch.randn(16, 64) + 5]
    frozen = norms(model)[0].eval().requires_grad_(False)
    norms(model)[1].requires_grad_(False)  # still training, so its statistics move
    norms(model)[2].eval()  # still learning
    report = unitvar.reestimate_bn_(model, data)
    assert dict(report.kept) == {"2": "frozen"}
    assert torch.equal(frozen.running_var, torch.ones(64))
    assert not torch.equal(norms(model)[1].running_var, torch.ones(64))
    assert not torch.equal(norms(model)[2].running_var, torch.ones(64))
    # The layer after a frozen one sees what that gives with its own statistics, as in training.
    torch.testing.assert_close(norms(model)[1].running_var.double(), actual(model, data)[norms(model)[1]][1])
    report = unitvar.reestimate_bn_(model, data, frozen=True)
    assert not report.kept
    assert not torch.equal(frozen.running_var, torch.ones(64))


def test_all_frozen_is_an_error_that_names_the_remedy() -> None:
    with pytest.raises(ValueError, match="frozen=True"):
        unitvar.reestimate_bn_(mlp().eval().requires_grad_(False), [torch.randn(4, 64)])
    no_parameters = nn.Sequential(nn.BatchNorm1d(3, affine=False)).eval()
    assert len(unitvar.reestimate_bn_(no_parameters, [torch.randn(4, 3)]).layers) == 1


class TwoUses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.unused = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) + self.norm(x[: len(x) // 2] * 4 + 2).mean()


def test_a_shared_layer_is_pooled_and_one_never_reached_is_kept() -> None:
    model, data = TwoUses(), list(torch.randn(3, 8, 3))
    model.unused.running_var.fill_(7)
    report = unitvar.reestimate_bn_(model, data)
    values = torch.cat([torch.cat((x, x[:4] * 4 + 2)) for x in data]).double()
    torch.testing.assert_close(model.norm.running_var.double(), values.var(0), rtol=1e-6, atol=0)
    assert dict(report.kept) == {"unused": "not reached by any batch"}
    assert (model.unused.running_var == 7).all()
    assert report["norm"].values == 36
    assert report["norm"].batches == 3


def test_norms_without_running_statistics_are_not_ours() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.BatchNorm1d(3))
    assert [layer.name for layer in unitvar.reestimate_bn_(model, [torch.randn(4, 3)])] == ["1"]
    with pytest.raises(ValueError, match="no BatchNorm with running statistics"):
        unitvar.reestimate_bn_(model[0], [torch.randn(4, 3)])


def test_lazy_layers_everywhere() -> None:
    model = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(4), nn.LazyBatchNorm1d())
    data = list(torch.randn(3, 16, 7))
    report = unitvar.reestimate_bn_(model, data, method="sequential")
    assert [type(m) for m in model[:2]] == [nn.Linear, nn.BatchNorm1d]
    for norm, (_, var) in actual(model, data).items():
        torch.testing.assert_close(norm.running_var.double(), var, rtol=1e-5, atol=0)
    assert (report["1"].old_var == 1).all()


def test_averaged_model_is_a_drop_in() -> None:
    model, data = mlp(depth=2), list(torch.randn(3, 16, 64))
    averaged = AveragedModel(model)
    averaged.update_parameters(model)
    unitvar.reestimate_bn_(averaged, data)
    unitvar.reestimate_bn_(model, data)
    for a, b in zip(norms(averaged), norms(model), strict=True):
        assert torch.equal(a.running_var, b.running_var)


def test_compiled_models_use_the_inner_module() -> None:
    torch.manual_seed(0)
    plain, data = mlp(depth=2, width=8), list(torch.randn(3, 16, 8))
    whole, part, in_place = mlp(depth=2, width=8), mlp(depth=2, width=8), mlp(depth=2, width=8)
    for model in (whole, part, in_place):
        model.load_state_dict(plain.state_dict())
    compiled = torch.compile(whole, backend="eager")
    compiled.eval()(data[0])  # compiled before, with the old statistics
    part[2] = torch.compile(part[2], backend="eager")
    in_place.compile(backend="eager")
    seen = []
    unitvar.reestimate_bn_(plain, data)
    unitvar.reestimate_bn_(compiled, data, forward=lambda m, x: seen.append(m) or m(x))
    unitvar.reestimate_bn_(part, data)
    unitvar.reestimate_bn_(in_place, data)
    assert all(m is whole for m in seen)
    for model in (whole, part, in_place):
        for a, b in zip(norms(model), norms(plain), strict=True):
            assert torch.equal(a.running_var, b.running_var)
    with torch.no_grad():
        torch.testing.assert_close(compiled.eval()(data[0]), plain.eval()(data[0]))


def test_user_hooks_run_and_count() -> None:
    norm, calls = nn.BatchNorm1d(3), []
    norm.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    norm.register_forward_hook(lambda m, args, out: calls.append(out.shape))
    x = torch.randn(8, 3)
    unitvar.reestimate_bn_(norm, [x])
    torch.testing.assert_close(norm.running_var, (2 * x).var(0))
    assert calls == [(8, 3)]


def test_autocast_is_honoured() -> None:
    model, data = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), [torch.randn(512, 8) for _ in range(2)]
    seen = []
    model[0].register_forward_hook(lambda m, args, out: seen.append(out))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        unitvar.reestimate_bn_(model, data)
    assert {x.dtype for x in seen} == {torch.bfloat16}
    torch.testing.assert_close(model[1].running_var.double(), torch.cat(seen).double().var(0), rtol=1e-6, atol=0)


def test_a_forward_that_needs_gradients_can_have_them() -> None:
    norm, x = nn.BatchNorm1d(3), torch.randn(8, 3, requires_grad=True)

    def slope(model: nn.Module, batch: Tensor) -> Tensor:
        with torch.enable_grad():
            return torch.autograd.grad(model(batch).square().sum(), batch)[0]

    report = unitvar.reestimate_bn_(norm, [x], forward=slope)
    torch.testing.assert_close(norm.running_var, x.var(0).detach())
    assert not report[""].new_var.requires_grad
