"""Which weights a plan is for: nothing is skipped in silence."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from tests import zoo
from tests.planning.models import mlp, squares, state_of


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.never = nn.Linear(8, 8)
        self.first = nn.Linear(8, 8, bias=False)
        self.again = self.first
        self.position = nn.Parameter(torch.randn(5, 8))
        self.norm = nn.LayerNorm(8)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.first.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position
        x = self.spectral(self.normed(self.frozen(x)))
        return self.tied(F.relu(self.norm(self.first(x))))


def test_every_weight_left_alone_has_its_reason() -> None:
    model = Everything()
    before = state_of(model)
    plan = unitvar.initialize_(model, torch.randint(10, (2, 5)))
    after = model.state_dict()
    reasons = {
        "embed.weight": "embedding", "frozen.weight": "frozen", "never.weight": "unreached",
        "normed.parametrizations.weight.original0": "parametrised",
        "normed.parametrizations.weight.original1": "standardised",
        "spectral.parametrizations.weight.original": "standardised", "position": "not a weight",
        "again.weight": "tied to first.weight", "tied.weight": "tied to first.weight",
    }  # fmt: skip
    assert {name: reason.partition(":")[0] for name, reason in plan.skipped.items()} == reasons
    assert [layer.name for layer in plan] == ["first.weight"]
    changed = {"first.weight", "again.weight", "tied.weight"}
    assert {k for k in before if not torch.equal(before[k], after[k])} == changed
    weights = {n for n, p in model.named_parameters(remove_duplicate=False) if p.dim() > 1}
    assert weights == set(plan.skipped) | {layer.name for layer in plan}


def test_only_touches_what_it_names() -> None:
    model = mlp()
    before = state_of(model)
    plan = unitvar.initialize_(model, torch.zeros(2, 32), only="3.*")
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {"3.weight", "3.bias"}
    assert plan.skipped.keys() == {"0.weight", "6.weight"}
    actual = before["0.weight"].square().sum(1).mean().item() + before["0.bias"].square().mean().item()
    assert plan.layers[0].second == pytest.approx(actual, rel=0.05)  # relu halves it, dropout doubles it
    bare = mlp()
    before = state_of(bare)
    unitvar.initialize_(bare, torch.zeros(2, 32), only=["0.weight"])
    assert torch.equal(before["0.bias"], bare[0].bias)
    with pytest.raises(ValueError, match="matches no parameter"):
        unitvar.plan(model, torch.zeros(2, 32), only="haed.*")


@pytest.mark.parametrize("only", ["0.*", "2.*", ["0.weight", "2.bias"]])
def test_a_tied_parameter_is_selected_by_any_of_its_names(only: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight, model[2].bias = model[0].weight, model[0].bias
    free, chosen = unitvar.plan(model, torch.zeros(2, 8)), unitvar.plan(model, torch.zeros(2, 8), only=only)
    assert chosen.rows == free.rows
    assert chosen.layers[0].biases == ("0.bias",)


def test_a_weight_that_no_signal_reaches_is_left_alone() -> None:
    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x * 0)

    assert "no signal" in unitvar.plan(Dead(), torch.zeros(2, 8)).skipped["a.weight"]


def test_a_layer_that_training_skips_at_random_is_found() -> None:
    class LayerDrop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.a(x))
            return x if self.training else self.b(x)

    plan = unitvar.plan(LayerDrop(), torch.zeros(2, 8))
    assert [layer.name for layer in plan] == ["a.weight", "b.weight"]
    assert plan["b.weight"].second == pytest.approx(0.5)


def test_lazy_layers_stay_lazy_in_a_plan_and_are_filled_by_initialize() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(4))
    plan = unitvar.plan(model, torch.zeros(2, 16))
    assert squares(plan) == pytest.approx([1, 2])
    assert isinstance(model[0], nn.LazyLinear)
    unitvar.initialize_(model, torch.zeros(2, 16))
    assert type(model[0]) is nn.Linear
    assert model[2].weight.norm(dim=1).tolist() == pytest.approx([math.sqrt(2)] * 4)


def test_meta_models_are_planned_without_memory() -> None:
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(4096, 32, 16384, batch_first=True)
        model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    assert sum(p.numel() for p in model.parameters()) > 1e9
    plan = unitvar.plan(model, torch.zeros(1, 16, 4096))
    assert len(plan) == 24
    assert not plan.skipped


def test_compiled_models_are_the_models_inside() -> None:
    model = mlp()
    plan = unitvar.plan(torch.compile(model, backend="eager"), torch.zeros(2, 32))  # type: ignore[arg-type]
    assert squares(plan) == squares(unitvar.plan(model, torch.zeros(2, 32)))


def test_a_copy_of_a_model_has_the_same_plan() -> None:
    model, example = zoo.OTHER["TransformerEncoder"]()
    assert unitvar.plan(copy.deepcopy(model), example).rows == unitvar.plan(model, example).rows
