"""plan() changes nothing, initialize_() all or nothing."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests import zoo
from tests.planning.models import mlp, same, state_of


def test_the_same_seed_gives_the_same_weights_whatever_the_global_state() -> None:
    first, second = mlp(), mlp()
    before = torch.get_rng_state()
    unitvar.initialize_(first, torch.zeros(2, 32), generator=torch.Generator().manual_seed(3))
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)
    unitvar.initialize_(second, torch.zeros(2, 32), generator=torch.Generator().manual_seed(3))
    assert same(first.state_dict(), second.state_dict())
    torch.manual_seed(5)
    unitvar.initialize_(first, torch.zeros(2, 32))
    torch.manual_seed(5)
    unitvar.initialize_(second, torch.zeros(2, 32))
    assert same(first.state_dict(), second.state_dict())


def test_plan_changes_nothing() -> None:
    model, example = zoo.PLAIN["ResNet"]()
    model.eval()
    before, random = state_of(model), torch.get_rng_state()
    unitvar.plan(model, example)
    assert same(before, model.state_dict())
    assert torch.equal(random, torch.get_rng_state())
    assert not any(m.training for m in model.modules())


@pytest.mark.parametrize("method", ["analytic", "measured"])
def test_a_failure_changes_nothing(method: str) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.a(x))
            if method == "analytic" or float(x.detach().sum()) == float(x.detach().sum()):
                raise RuntimeError("no luck")
            return self.b(x)

    model, example = Fails(), torch.randn(4, 8)
    before, random = state_of(model), torch.get_rng_state()
    with pytest.raises(RuntimeError, match="no luck"):
        unitvar.initialize_(model, example, method=method)
    assert same(before, model.state_dict())
    assert torch.equal(random, torch.get_rng_state())


def test_measured_that_cannot_scale_changes_nothing() -> None:
    model, generator = mlp(), torch.Generator().manual_seed(3)
    before, random = state_of(model), generator.get_state()
    with pytest.raises(ValueError, match=r"'0\.weight' has second moment 0"):
        unitvar.initialize_(model, torch.zeros(4, 32), method="measured", generator=generator)
    assert same(before, model.state_dict())
    assert torch.equal(random, generator.get_state())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_is_kept(dtype: torch.dtype) -> None:
    model = mlp().to(dtype)
    unitvar.initialize_(model, torch.zeros(2, 32, dtype=dtype))
    assert model[3].weight.dtype == dtype
    assert model[3].weight.double().norm(dim=1).mean().item() == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize("method", ["analytic", "measured"])
def test_a_plan_does_not_keep_the_model_alive(method: str) -> None:
    model = mlp()
    gc.collect()
    gc.disable()  # a weight on an accelerator must not wait for the garbage collector
    try:
        plan = unitvar.initialize_(model, torch.randn(2, 32), method=method)
        weights = [weakref.ref(p) for p in model.parameters()]
        del model
        assert [w for w in weights if w() is not None] == []
    finally:
        gc.enable()
    assert len(plan) == 3
