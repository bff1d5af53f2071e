"""The scales of a plan: predicted is measured."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import unitvar
from tests.planning.models import ACTIVATIONS, Conv1D, mlp, squares
from unitvar import init
from unitvar_reproduction.experiments.zoo import measured
from zoo import convolutional


def finite_width(name: str, dropout: float, width: int, distribution: str, depth: int) -> list[float]:
    """Bound the deviation of E z² from one that width alone causes, to first order in 1 / width, layer by layer.

    Let q be the mean square of one example's layer: z is N(0, q) given q, and E q = 1. With F = f², one layer on,
    E q' - 1 = chi (E q - 1) + E[He4 F] / E F (var q / 8 + k / 24), as d²/dq² E F(z) = E[He4 F] / 4; k is the excess
    kurtosis of a weighted sum with such weights, and var q' = chi² var q + (E f⁴ / (E f²)² / keep - 1) / width.
    """
    f = ACTIVATIONS[name]()
    m = unitvar.activation_moments(f)
    fourth = unitvar.activation_moments(lambda x: f(x) ** 2).second / m.second**2
    hermite = torch.special.hermite_polynomial_he
    curve = unitvar.activation_moments(lambda x: f(x) ** 2 * hermite(x, torch.full_like(x, 4))).mean / m.second
    inputs, hidden = 3.0, fourth / (1 - dropout)  # E x⁴ / (E x²)² of what is summed
    error, var, found = 0.0, 2 / width, [0.0]
    for layer in range(1, depth):
        summed = inputs if layer == 1 else hidden
        excess = {"normal": 0.0, "uniform": 1.2 * summed / width}.get(distribution, 6 / (width + 2))
        error = m.chi * error + abs(curve) * (var / 8 + excess / 24)
        var = m.chi**2 * var + (hidden - 1) / width
        found.append(error)
    return found


@settings(max_examples=12)
@given(
    depth=st.integers(2, 6),
    width=st.sampled_from([200, 300, 400]),
    name=st.sampled_from(sorted(ACTIVATIONS)),
    dropout=st.sampled_from([0.0, 0.1, 0.3, 0.5]),
    distribution=st.sampled_from(["sphere", "orthonormal", "normal", "uniform"]),
)
def test_predicted_is_measured(depth: int, width: int, name: str, dropout: float, distribution: str) -> None:
    torch.manual_seed(0)
    model = mlp(inputs=width, depth=depth, width=width, act=ACTIVATIONS[name], dropout=dropout)
    draws: dict[str, list[float]] = {}
    for _ in range(20):  # weights, inputs and masks anew, so that the draws are independent
        x = torch.randn(64, width)
        plan = unitvar.initialize_(model, x, distribution=distribution)
        for key, value in measured(model, x).items():
            draws.setdefault(key, []).append(value)
    for layer, floor in zip(plan, finite_width(name, dropout, width, distribution, depth), strict=True):
        values = torch.tensor(draws[layer.name], dtype=torch.float64)
        standard_error = values.std().item() / math.sqrt(len(values))
        assert values.mean().item() == pytest.approx(layer.predicted, abs=5 * standard_error + floor)
        assert layer.predicted == pytest.approx(1.0)


def chain(act: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(32, 64), act, nn.Dropout(0.4), nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 8)
    )


@pytest.mark.parametrize("mode", ["forward", "mean", "paper"])
@pytest.mark.parametrize("name", ["relu", "tanh", "gelu"])
def test_in_a_chain_scales_are_those_of_gain(mode: str, name: str) -> None:
    layer = unitvar.plan(chain(ACTIVATIONS[name]()), torch.zeros(2, 32), mode=mode).layers[1]
    extra = {"next_nonlinearity": "tanh", "next_dropout": 0.2} if mode == "paper" else {}
    ratio = 1.0 if mode == "paper" else 16 / 64
    assert layer.scale == pytest.approx(init.gain(name, 0.4, mode=mode, fan_ratio=ratio, **extra), rel=1e-6)  # type: ignore[arg-type]


def test_the_papers_vgg_has_the_papers_divisors() -> None:
    model, example = convolutional.vgg(4, circular=True)
    plan = unitvar.plan(model, example, inputs="standard", rules={"aten.max_pool2d": lambda x, *_: x})
    r = 0.5
    expected = [1, r / 0.7, r, r / 0.6, r, r / 0.6, r / 0.6, r, r / 0.6, r / 0.6, r, r / 0.6, r / 0.6, 1, 1]
    assert [layer.second for layer in plan] == pytest.approx(expected, rel=1e-9)
    assert squares(plan) == pytest.approx([1 / e for e in expected], rel=1e-9)


class HandDropout(nn.Module):
    def __init__(self, kind: str, p: float) -> None:
        super().__init__()
        self.kind, self.p = kind, p

    def forward(self, x: Tensor) -> Tensor:
        keep = 1 - self.p
        if not self.training:
            return x
        if self.kind == "bernoulli":
            return x * torch.bernoulli(torch.full_like(x, keep)) / keep
        if self.kind == "rand":
            return torch.where(torch.rand_like(x) < self.p, 0.0, x / keep)
        if self.kind == "droppath":
            return x.div(keep) * x.new_empty(x.shape[0], 1).bernoulli_(keep)
        if self.kind == "floor":
            return x.div(keep) * (keep + torch.rand(x.shape[0], 1)).floor_()
        return F.dropout(x, self.p)


@pytest.mark.parametrize("kind", ["bernoulli", "rand", "droppath", "floor", "functional"])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_by_hand_is_dropout(kind: str, p: float) -> None:
    def build(drop: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), drop, nn.Linear(8, 8), drop, nn.ReLU(), nn.Linear(8, 8))

    expected = squares(unitvar.plan(build(nn.Dropout(p)), torch.zeros(4, 8)))
    assert squares(unitvar.plan(build(HandDropout(kind, p)), torch.zeros(4, 8))) == pytest.approx(expected, rel=1e-9)


class Manual(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("mode", ["forward", "mean"])
def test_gelu_by_hand_is_gelu(mode: str) -> None:
    plans = [
        unitvar.plan(nn.Sequential(nn.Linear(8, 8), act, nn.Linear(8, 8)), torch.zeros(2, 8), mode=mode)
        for act in (Manual(), nn.GELU("tanh"))
    ]
    assert squares(plans[0]) == pytest.approx(squares(plans[1]), rel=1e-9)
    assert plans[0].chi == pytest.approx(plans[1].chi)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.a(x)) + F.relu(self.b(x)))


def test_in_a_sum_means_add_and_variances_add() -> None:
    relu = unitvar.activation_moments("relu")
    last = unitvar.plan(Sum(), torch.zeros(2, 16)).layers[-1]
    assert last.mean == pytest.approx(2 * relu.mean)
    assert last.second == pytest.approx(2 * relu.var + (2 * relu.mean) ** 2)


@pytest.mark.parametrize("norm", [nn.LayerNorm(32), nn.BatchNorm1d(32), nn.GroupNorm(4, 32), nn.RMSNorm(32)], ids=str)
def test_after_a_norm_the_inputs_size_is_gone(norm: nn.Module) -> None:
    model = nn.Sequential(norm, nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    small, large = (unitvar.plan(model, torch.zeros(4, 32), inputs=(0.0, std)) for std in (1.0, 50.0))
    assert squares(small) == pytest.approx(squares(large), rel=1e-4)


def test_a_border_of_zeros_is_accounted_for() -> None:
    model = nn.Sequential(nn.Conv2d(8, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
    plan = unitvar.initialize_(model, torch.zeros(1, 8, 6, 6))
    assert plan.layers[0].scale ** 2 == pytest.approx((18 / 16) ** 2)  # of 6 windows of 3, two see 2
    found = measured(model, torch.randn(200, 8, 6, 6))
    assert found["0.weight"] == pytest.approx(1.0, rel=0.05)
    assert found["2.weight"] == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize(
    ("act", "dropout"), [("relu", 0.3), ("relu", 0.5), *itertools.product(("elu", "tanh"), (0.1, 0.3, 0.5))]
)
def test_a_hundred_layers_stay_near_one(act: str, dropout: float) -> None:
    torch.manual_seed(1)
    model = mlp(depth=100, width=300, act=ACTIVATIONS[act], dropout=dropout)
    x = torch.randn(200, 32)
    unitvar.initialize_(model, x)
    found = measured(model, x).values()
    assert 0.25 < min(found) <= max(found) < 4


def test_a_shared_weight_is_solved_for_the_mean_of_its_uses() -> None:
    layer = nn.Linear(16, 16, bias=False)
    plan = unitvar.plan(nn.Sequential(layer, nn.ReLU(), layer), torch.zeros(2, 16))
    (record,) = plan.layers
    # E z² = s² at the first use, s² s² / 2 at the second: s² (1 + s²/2) / 2 = 1.
    square = math.sqrt(5) - 1
    assert record.scale**2 == pytest.approx(square)
    assert record.second == pytest.approx((1 + square / 2) / 2)


def test_transposed_weights_get_rows_along_what_is_summed() -> None:
    for distribution in ("sphere", "orthonormal"):
        model = nn.Sequential(Conv1D(32, 8))
        plan = unitvar.initialize_(model, torch.zeros(4, 32), distribution=distribution)
        assert plan.layers[0].fan_in == 32
        assert torch.allclose(model[0].weight.norm(dim=0), torch.ones(8))
        assert not model[0].bias.any()


@pytest.mark.parametrize("equation", ["bi,oi->bo", "bi,io->bo"])
def test_einsum_and_matmul_know_their_fan_in(equation: str) -> None:
    class Einsum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 24) if "oi" in equation else torch.randn(24, 6))

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum(equation, x, self.weight)

    model = Einsum()
    plan = unitvar.initialize_(model, torch.zeros(4, 24))
    assert plan.layers[0].fan_in == 24
    assert torch.allclose(model.weight.norm(dim=1 if "oi" in equation else 0), torch.ones(6))
