"""The forward pass of method="measured" runs on real data, and leaves nothing behind but the weights it scaled."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import unitvar
from tests.batchnorm.test_safety import state
from unitvar.moments import RULES


class Breaks(nn.Module):
    """Fails in the middle of a real run, but not under a recorder without data."""

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, FakeTensor):
            raise RuntimeError("in the middle")
        return x


def normed(*more: nn.Module) -> nn.Sequential:
    """Build a model with running statistics, gradients, a hook and mixed flags, all of which a run could change."""
    model = nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), *more, nn.BatchNorm1d(8), nn.Linear(8, 4)
    )
    model[2].register_forward_hook(lambda *_: None)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    model[3].eval()
    return model


def test_running_statistics_stay_as_they_were() -> None:
    model = normed()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    unitvar.initialize_(model, torch.randn(64, 8) + 3, method="measured")
    assert len(before) == 6
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_a_failure_in_the_middle_of_the_pass_leaves_everything_as_it_was() -> None:
    model, x = normed(Breaks()), torch.randn(64, 8)
    unitvar.plan(model, x)  # the recorder passes where the real run fails
    before, grads = state(model), [p.grad.clone() for p in model.parameters()]
    random = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="in the middle"):
        unitvar.initialize_(model, x, method="measured")
    assert torch.equal(torch.get_rng_state(), random)
    assert state(model) == before
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))


def test_a_weight_of_an_op_of_the_users_own_is_scaled_by_what_is_measured() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, 16))

        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.unitvar_tests.product(x, self.weight)

    model, x = Own(), 3 * torch.randn(64, 16)
    with torch.library._scoped_library("unitvar_tests", "FRAGMENT") as library:
        library.define("product(Tensor x, Tensor weight) -> Tensor")
        library.impl("product", lambda x, weight: x @ weight.T, "CompositeExplicitAutograd")
        try:
            unitvar.rule("unitvar_tests.product", weights=[1])(
                lambda x, w: unitvar.Moments(0.0, 16 * x.second * w.second, (x.shape[0], w.shape[0]))
            )
            unitvar.initialize_(model, x, method="measured")
            assert model(x).square().mean().item() == pytest.approx(1, rel=1e-4)
        finally:
            RULES.pop("unitvar_tests.product", None)
