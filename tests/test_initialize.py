"""plan() and initialize_(): predicted is measured, nothing is skipped in silence, all or nothing."""

import copy
import gc
import itertools
import math
import re
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import unitvar
from tests import zoo
from unitvar import init
from unitvar.initialize import fill
from unitvar_reproduction.experiments.zoo import measured
from zoo import convolutional

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU, "selu": nn.SELU}


def mlp(
    *, inputs: int = 32, depth: int = 3, width: int = 64, act: type[nn.Module] = nn.ReLU, dropout: float = 0.5
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(inputs, width)]
    for _ in range(depth - 1):
        layers += [act(), nn.Dropout(dropout), nn.Linear(width, width)]
    return nn.Sequential(*layers)


def squares(plan: unitvar.Plan) -> list[float]:
    return [layer.scale**2 for layer in plan]


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


# Laws -----------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("mode", ["forward", "backward", "mean", "paper"])
@pytest.mark.parametrize("name", ["relu", "tanh", "gelu"])
def test_in_a_chain_scales_are_those_of_gain(mode: str, name: str) -> None:
    model = nn.Sequential(
        nn.Linear(32, 64), ACTIVATIONS[name](), nn.Dropout(0.4), nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.2),
        nn.Linear(16, 8),
    )  # fmt: skip
    layer = unitvar.plan(model, torch.zeros(2, 32), mode=mode).layers[1]
    extra = {"next_nonlinearity": "tanh", "next_dropout": 0.2} if mode == "paper" else {}
    ratio = 1.0 if mode == "paper" else 16 / 64
    assert layer.scale == pytest.approx(init.gain(name, 0.4, mode=mode, fan_ratio=ratio, **extra), rel=1e-6)  # type: ignore[arg-type]


def test_the_papers_vgg_has_the_papers_divisors() -> None:
    model, example = convolutional.vgg(4, circular=True)
    plan = unitvar.plan(model, example, rules={"aten.max_pool2d": lambda x, *_: x})
    r = 0.5
    expected = [1, r / 0.7, r, r / 0.6, r, r / 0.6, r / 0.6, r, r / 0.6, r / 0.6, r, r / 0.6, r / 0.6, 1, 1]
    assert [layer.second for layer in plan] == pytest.approx(expected, rel=1e-9)
    assert squares(plan) == pytest.approx([1 / e for e in expected], rel=1e-9)


def test_backward_keeps_the_gradient() -> None:
    torch.manual_seed(0)
    widths = [100, 200, 400, 200, 100]
    layers: list[nn.Module] = [nn.Linear(50, 100)]
    for a, b in itertools.pairwise(widths):
        layers += [nn.ReLU(), nn.Dropout(0.4), nn.Linear(a, b)]
    model = nn.Sequential(*layers)
    ratios = []
    for _ in range(8):
        unitvar.initialize_(model, torch.zeros(1, 50), mode="backward")
        kept: list[Tensor] = []
        x = torch.randn(200, 50)
        for module in model:
            x = module(x)
            if isinstance(module, nn.Linear):
                x.retain_grad()
                kept.append(x)
        x.backward(torch.randn_like(x))
        ratios.append(kept[0].grad.square().mean().item())  # type: ignore[union-attr]
    assert sum(ratios) / 8 == pytest.approx(1.0, rel=0.2)


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
    plan = unitvar.initialize_(model, torch.randn(1, 8, 6, 6))
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


def test_chi_is_reported_with_advice() -> None:
    gelu = unitvar.plan(mlp(depth=10, act=nn.GELU, dropout=0.2), torch.zeros(2, 32))
    assert gelu.chi == pytest.approx(unitvar.activation_moments("gelu").chi, rel=1e-6)
    assert gelu.depth == 9
    assert "depth amplifies deviations" in " ".join(str(gelu).split())
    assert 'method="measured"' in str(gelu)
    relu = unitvar.plan(mlp(depth=10), torch.zeros(2, 32))
    assert relu.chi == pytest.approx(1.0)
    assert "amplifies" not in str(relu)
    normed = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())))
    assert unitvar.plan(normed, torch.zeros(2, 8)).chi <= 1


# What is left alone ---------------------------------------------------------------------------------------------------


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
        "normed.parametrizations.weight.original1": "parametrised",
        "spectral.parametrizations.weight.original": "parametrised", "position": "not a weight",
        "again.weight": "tied to first.weight", "tied.weight": "tied to first.weight",
    }  # fmt: skip
    assert {name: reason.partition(":")[0] for name, reason in plan.skipped.items()} == reasons
    assert [layer.name for layer in plan] == ["first.weight"]
    changed = {"first.weight", "again.weight", "tied.weight"}
    assert {k for k in before if not torch.equal(before[k], after[k])} == changed
    weights = {n for n, p in model.named_parameters(remove_duplicate=False) if p.dim() > 1}
    assert weights == set(plan.skipped) | {layer.name for layer in plan}


def test_a_shared_weight_is_solved_for_the_mean_of_its_uses() -> None:
    layer = nn.Linear(16, 16, bias=False)
    plan = unitvar.plan(nn.Sequential(layer, nn.ReLU(), layer), torch.zeros(2, 16))
    (record,) = plan.layers
    # E z² = s² at the first use, s² s² / 2 at the second: s² (1 + s²/2) / 2 = 1.
    square = math.sqrt(5) - 1
    assert record.scale**2 == pytest.approx(square)
    assert record.second == pytest.approx((1 + square / 2) / 2)


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


# Behaviour ------------------------------------------------------------------------------------------------------------


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


def test_a_weight_that_no_signal_reaches_is_left_alone() -> None:
    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x * 0)

    assert "no signal" in unitvar.plan(Dead(), torch.zeros(2, 8)).skipped["a.weight"]


@pytest.mark.parametrize("family", ["VGG", "ResNet without norm", "TransformerEncoder", "U-Net"])
def test_measured_gives_every_pre_activation_unit_variance(family: str) -> None:
    torch.manual_seed(0)
    model, example = {**zoo.PLAIN, **zoo.OTHER}[family]()
    random = torch.get_rng_state()
    unitvar.initialize_(model, example, method="measured", generator=torch.Generator().manual_seed(0))
    assert torch.equal(random, torch.get_rng_state())
    found = measured(model, example)  # the same masks: the random state is what it was
    assert all(value == pytest.approx(1.0, rel=1e-3) for value in found.values())


class Conv1D(nn.Module):
    """A linear layer whose weight stands second in a product."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(fan_in, fan_out)), nn.Parameter(torch.ones(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


BIASED = {
    "linear": (lambda: nn.Linear(32, 16), (64, 32)),
    "linear, 3-D": (lambda: nn.Linear(32, 16), (8, 8, 32)),
    "conv": (lambda: nn.Conv2d(4, 16, 3, padding=1), (8, 4, 6, 6)),
    "addmm": (lambda: Conv1D(32, 16), (64, 32)),
}


@pytest.mark.parametrize("kind", BIASED)
def test_a_bias_that_stays_comes_on_top_of_unit_variance(kind: str) -> None:
    """E (W x)² = 1 whatever the bias b, by either method; what follows is told of W x + b."""
    torch.manual_seed(0)
    make, shape = BIASED[kind]
    model, x = nn.Sequential(make(), nn.Tanh(), nn.LazyLinear(16)), torch.randn(shape)
    model(x)
    nn.init.constant_(model[0].bias, 3.0)
    plan = unitvar.plan(model, x, only="*weight")
    assert plan["0.weight"].predicted == pytest.approx(1.0)
    assert plan["2.weight"].second == pytest.approx(unitvar.activation_moments("tanh", mean=3.0).second, rel=1e-3)
    unitvar.initialize_(model, 5 * x, method="measured", only="*weight")
    assert bool((model[0].bias == 3.0).all())
    product, z = model[0](5 * x) - 3.0, model(5 * x)
    assert product.square().mean().item() == pytest.approx(1.0, rel=1e-5)
    assert (z - model[2].bias).square().mean().item() == pytest.approx(1.0, rel=1e-5)


class Cast(nn.Module):
    """Two layers in one weight, each cast by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 16))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.weight.chunk(2)
        return F.linear(x, a.double()), F.linear(y, b.double().clone())


def test_measured_follows_casts_of_weights_and_of_their_parts() -> None:
    torch.manual_seed(0)
    model, x = Cast(), torch.randn(64, 16).double()
    plan = unitvar.initialize_(model, (3 * x, 7 * x), method="measured")
    assert [z.square().mean().item() for z in model(3 * x, 7 * x)] == pytest.approx([1.0, 1.0], rel=1e-5)
    assert plan["weight"].scale == pytest.approx(model.weight.square().sum(1).mean().sqrt().item(), rel=1e-5)


def test_measured_holds_under_autocast() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)), 10 * torch.randn(256, 64)
    with torch.autocast("cpu", torch.bfloat16):
        unitvar.initialize_(model, x, method="measured")
        found = [z.float().square().mean().item() for z in (model[0](x), model(x))]
    assert found == pytest.approx([1.0, 1.0], rel=2**-8)  # the precision of bfloat16


def test_measured_fits_each_part_of_packed_weights_at_its_first_use() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(32, 4, bias=False)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            first = self.attention(q, k, v)[0]
            return first + self.attention(7 * q, 7 * k, 7 * v)[0]

    torch.manual_seed(0)
    model, x = Twice(), torch.randn(6, 8, 32)
    given = x, 3 * x, 5 * x
    plan = unitvar.initialize_(model, given, method="measured")
    weight = model.attention.in_proj_weight
    found = [F.linear(t, part).square().mean().item() for t, part in zip(given, weight.chunk(3), strict=True)]
    assert found == pytest.approx([1.0] * 3, rel=1e-5)
    rows = weight.square().sum(1)
    assert plan["attention.in_proj_weight"].scale == pytest.approx(rows.mean().sqrt().item(), rel=1e-5)


def test_measured_where_forward_takes_a_gradient() -> None:
    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 16)

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(self.a(x).square().sum(), x)[0]

    model, x = Force(), 4 * torch.randn(64, 8)
    unitvar.initialize_(model, x, method="measured")
    assert model.a(x).square().mean().item() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("cell", [nn.GRUCell, nn.RNNCell, nn.LSTMCell])
def test_measured_leaves_recurrences_at_their_analytic_scale(cell: type[nn.Module]) -> None:
    made = [
        unitvar.initialize_(cell(8, 8), torch.ones(4, 8), method=method, generator=torch.Generator().manual_seed(0))
        for method in ("analytic", "measured")
    ]
    assert made[0].rows == made[1].rows


def test_measured_refuses_a_weight_whose_output_it_cannot_find() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.register_buffer("mask", torch.eye(8))

        def forward(self, x: Tensor) -> Tensor:
            self.b.weight.data = self.b.weight.data * self.mask
            return self.b(self.a(x))

    model = Masked()
    before = state_of(model)
    with pytest.raises(ValueError, match=r"'b\.weight' was not met in the run"):
        unitvar.initialize_(model, torch.randn(4, 8), method="measured")
    assert same(before, model.state_dict())


def test_inputs_as_given_or_as_measured() -> None:
    model = nn.Linear(100, 3)
    x = 3 + 2 * torch.randn(500, 100)
    assert unitvar.plan(model, x, inputs=(3.0, 2.0)).layers[0].second == pytest.approx(13.0)
    assert unitvar.plan(model, x, inputs=[(3.0, 2.0)]).layers[0].second == pytest.approx(13.0)
    assert unitvar.plan(model, x, inputs="measured").layers[0].second == pytest.approx(13.0, rel=0.01)
    assert unitvar.plan(model, x).layers[0].second == 1.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_is_kept(dtype: torch.dtype) -> None:
    model = mlp().to(dtype)
    unitvar.initialize_(model, torch.zeros(2, 32, dtype=dtype))
    assert model[3].weight.dtype == dtype
    assert model[3].weight.double().norm(dim=1).mean().item() == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "fwd"}, "mode='fwd' is not one of 'forward', 'backward', 'mean', 'paper'"),
        ({"distribution": "cauchy"}, "distribution='cauchy' is not one of"),
        ({"inputs": "none"}, "inputs='none' is not"),
        ({"inputs": [(0.0, 1.0), (0.0, 1.0)]}, "inputs has 2 pairs, but the example has 1"),
        ({"inputs": (0.0, -1.0)}, "a standard deviation 0 or more"),
        ({"rules": {"relu": lambda x: x}}, "write it with its namespace"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        unitvar.plan(mlp(), torch.zeros(2, 32), **change)


@pytest.mark.parametrize("example", [[torch.zeros(2, 32), torch.zeros(2)], (torch.zeros(2, 32), torch.zeros(2))])
def test_a_loaders_batch_is_explained(example: Any) -> None:
    with pytest.raises(TypeError, match=r"pass batch\[0\]"):
        unitvar.plan(mlp(), example)


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.cumsum(1)).cumsum(1)


def test_unknown_ops_are_sampled_and_reported() -> None:
    plan = unitvar.plan(Odd(), torch.zeros(64, 8))
    assert plan.unsupported == {"aten.cumsum": 2}
    assert "aten.cumsum (2)" in str(plan)
    assert plan.layers[0].second == pytest.approx(4.5, rel=0.4)  # (1 + ... + 8) / 8
    with pytest.raises(ValueError, match=r"aten\.cumsum"):
        unitvar.plan(Odd(), torch.zeros(64, 8), strict=True)


def test_a_rule_for_an_op_that_the_model_does_not_run_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    same = {"aten.max_pool2d": lambda x, *_: x, "aten.relu": lambda x: x, "aten.conv2d.default": lambda x, *_: x}
    unitvar.plan(model, torch.zeros(2, 3, 4, 4), rules=same)  # all are run: no warning, which would be an error
    for run in (unitvar.plan, unitvar.initialize_):
        with pytest.warns(
            UserWarning, match=r"rules\['aten.max_pol2d'\] was not used.*Did you mean 'aten.max_pool2d'"
        ) as w:
            run(model, torch.zeros(2, 3, 4, 4), rules={"aten.max_pol2d": lambda x, *_: x})
        assert "It runs aten.conv2d, aten.max_pool2d, aten.relu." in str(w[0].message)


@pytest.mark.usefixtures("untyped")
def test_a_rule_for_what_cannot_be_an_op_is_refused() -> None:
    for key, kind in ((nn.functional.relu, TypeError), (3, TypeError), ("relu", ValueError)):
        with pytest.raises(kind, match=r"is not the name of an op; .* like 'aten.max_pool2d'"):
            unitvar.plan(nn.Linear(2, 2), torch.zeros(1, 2), rules={key: lambda x: x})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"rules=\['aten.relu'\] is not a dict of op name → rule"):
        unitvar.plan(nn.Linear(2, 2), torch.zeros(1, 2), rules=["aten.relu"])  # type: ignore[arg-type]


def test_a_rule_can_be_added_and_overridden() -> None:
    seven = unitvar.plan(Odd(), torch.zeros(4, 8), rules={"aten.cumsum": lambda x, dim, *_: x.like(second=7.0)})
    assert seven.layers[0].second == 7.0
    assert not seven.unsupported

    @unitvar.rule("aten.cumsum")
    def cumsum(x: unitvar.Moments, dim: int, *_: Any) -> unitvar.Moments:
        return unitvar.Moments(x.mean, 9.0, x.shape)

    try:
        assert unitvar.plan(Odd(), torch.zeros(4, 8)).layers[0].second == 9.0
    finally:
        from unitvar.rules import RULES

        del RULES["aten.cumsum"]


def test_a_plan_reads_like_a_table_of_80_columns() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4)
    )
    plan = unitvar.plan(
        model, torch.zeros(2, 3, 4, 4), rules={"aten.max_pool2d": lambda x, *_: x.like(shape=(2, 8, 1, 1))}
    )
    assert str(plan) == (
        "sphere weights, mode forward: 2 weights, 0 left alone\n"
        "weight      fan-in       E x      E x²     scale\n"
        "0.weight        27         0         1         1\n"
        "  conv2d 8x3x3x3 after input\n"
        "5.weight         8    0.3989         1         1\n"
        "  linear 4x8 after relu → dropout 0.5 → maxpool 2x2\n"
        "chi 1.000 a layer over 1 layers without a norm: deviations do not grow"
    )
    long = nn.Sequential()
    inside = long
    for _ in range(5):
        inside.add_module("a_rather_long_name_of_a_block", block := nn.Sequential())
        inside = block
    inside.append(nn.Linear(4, 4))
    text = str(unitvar.plan(long, torch.zeros(1, 4)))
    assert max(map(len, text.splitlines())) <= 80
    assert "".join(text.split()).count("a_rather_long_name_of_a_block") == 5
    assert {"name", "op", "scale", "path"} <= plan.rows[0].keys()


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


@pytest.mark.parametrize("method", ["analytic", "measured"])
def test_an_interrupt_in_the_middle_leaves_every_weight(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    before = [p.detach().clone() for p in model.parameters()]
    draw, calls = fill._FILL["sphere"], []

    def interrupted(*args: object, **kwargs: object) -> Tensor:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return draw(*args, **kwargs)

    monkeypatch.setitem(fill._FILL, "sphere", interrupted)
    with pytest.raises(KeyboardInterrupt):
        unitvar.initialize_(model, torch.randn(4, 8), method=method)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
