"""Moments on their way: grids, sums, positions, borders, recurrences, gradients; each against another computation."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import unitvar
from unitvar import Moments
from unitvar.graph import Value, trace
from unitvar.propagate import gradients, propagate
from unitvar.propagate.given import realised
from unitvar.propagate.grid import Field, bernoulli, gaussian
from unitvar.propagate.state import State
from unitvar.rules import RULES
from unitvar.rules.weights import conv, conv_transpose

rates = st.floats(0.05, 1.0)
means, stds = st.floats(-3, 3), st.floats(0.1, 3)


def field(function: Callable[[Tensor], Tensor], mean: float = 0.0, std: float = 1.0, rho: float = 0.0) -> Field:
    axis = gaussian(mean, std, rho)
    return Field(function(axis.nodes), (), axis)


# Grids ----------------------------------------------------------------------------------------------------------------


@given(mean=means, std=stds)
def test_a_grid_has_the_moments_of_its_gaussian(mean: float, std: float) -> None:
    first, second, cross = field(lambda x: x, mean, std).moments()
    assert first == pytest.approx(mean, abs=1e-9)
    assert second == pytest.approx(mean**2 + std**2, rel=1e-9)
    assert cross is None


@given(mean=means, std=stds, keep=rates)
def test_a_mask_divides_the_second_moment_by_its_rate(mean: float, std: float, keep: float) -> None:
    x = field(torch.relu, mean, std)
    mask = bernoulli(keep)
    dropped = Field(x.values.unsqueeze(-2) * mask.nodes.unsqueeze(-1) / keep, (mask,), x.large)
    first, second, _ = x.moments()
    assert dropped.moments()[:2] == pytest.approx((first, second / keep), rel=1e-9)
    assert dropped.slope() == pytest.approx(x.slope() / keep, rel=1e-9)
    assert dropped.growth() == pytest.approx(x.growth(), rel=1e-9)


@given(mean=means, std=stds)
def test_slope_and_growth_are_those_of_the_activation(mean: float, std: float) -> None:
    found, exact = field(torch.tanh, mean, std), unitvar.activation_moments("tanh", mean, std)
    assert found.slope() == pytest.approx(exact.slope, rel=1e-6)
    # Of z itself, not of its deviation from the mean: E z v v' / E v².
    z, w = found.large.nodes.detach(), found.large.weights  # type: ignore[union-attr]
    expected = (w * z * z.tanh() * (1 - z.tanh() ** 2)).sum() / (w * z.tanh() ** 2).sum()
    assert found.growth() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)


@given(rho=st.floats(0.01, 0.99))
def test_relu_of_two_positions_follows_the_arc_cosine(rho: float) -> None:
    _, _, cross = field(torch.relu, rho=rho).moments()
    exact = (math.sqrt(1 - rho**2) + rho * (math.pi - math.acos(rho))) / (2 * math.pi)  # Cho & Saul, degree 1
    assert cross == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
def test_tanh_of_two_positions_is_the_double_integral(rho: float) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    u, v = nodes[:, None], rho * nodes[:, None] + math.sqrt(1 - rho**2) * nodes
    exact = weights @ (np.tanh(u) * np.tanh(v)) @ weights / weights.sum() ** 2
    assert field(torch.tanh, rho=rho).moments()[2] == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(
    ("count", "exact"), [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (4, 1.0293753730), (9, 1.4850131622)]
)
def test_the_largest_of_some_is_an_order_statistic(count: int, exact: float) -> None:
    top = State(Moments(0.0, 1.0, (4, 8, 6, 6))).moments.maximum(count)
    assert top.mean == pytest.approx(exact, abs=5e-3)  # 512 quantiles


@given(rho=st.floats(0.01, 0.95))
def test_the_larger_of_two_alike_is_smaller(rho: float) -> None:
    top = State(Moments(0.0, 1.0, (4, 8, 6, 6), cross=rho)).moments.maximum(2)
    assert top.mean == pytest.approx(math.sqrt((1 - rho) / math.pi), abs=5e-3)
    assert top.second == pytest.approx(1.0, abs=1e-2)


# Sums and products ----------------------------------------------------------------------------------------------------


class Body(nn.Module):
    """Something, then a weight that says what reaches it."""

    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(features, 4)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.head(self.body(*inputs))


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def reaching(function: Callable[..., Tensor], **layers: nn.Module) -> tuple[float, float]:
    """Return mean and second moment that a plan says a function of the input has."""
    head = unitvar.plan(Body(Calls(function, **layers), 16), torch.zeros(4, 16))["head.weight"]
    return head.mean, head.second


def linear() -> nn.Linear:
    return nn.Linear(16, 16)


@given(a=st.floats(-2, 2), b=st.floats(-2, 2), c=st.floats(-2, 2))
def test_of_one_origin_values_add(a: float, b: float, c: float) -> None:
    mean, second = reaching(lambda m, x: a * x + b * x - x + c)
    assert mean == pytest.approx(c, abs=1e-9)
    assert second == pytest.approx((a + b - 1) ** 2 + c**2, abs=1e-9)


@given(a=st.floats(0.1, 2), b=st.floats(0.1, 2), subtract=st.booleans())
def test_of_two_origins_means_add_and_variances_add(a: float, b: float, subtract: bool) -> None:
    relu = unitvar.activation_moments("relu")
    sign = -1 if subtract else 1
    mean, second = reaching(
        lambda m, x: torch.add(a * m.one(x).relu(), b * m.two(x).relu(), alpha=sign), one=linear(), two=linear()
    )
    assert mean == pytest.approx((a + sign * b) * relu.mean, abs=1e-9)
    assert second == pytest.approx((a**2 + b**2) * relu.var + mean**2, rel=1e-9)


def test_of_two_origins_second_moments_multiply() -> None:
    relu, tanh = unitvar.activation_moments("relu"), unitvar.activation_moments("tanh")
    mean, second = reaching(lambda m, x: m.one(x).relu() * m.two(x).tanh(), one=linear(), two=linear())
    assert mean == pytest.approx(0.0, abs=1e-9)
    assert second == pytest.approx(relu.second * tanh.second, rel=1e-6)


def test_the_same_slice_twice_is_the_same_slice() -> None:
    same = reaching(lambda m, x: (x[:, :8] * x[:, :8]).repeat(1, 2))
    other = reaching(lambda m, x: (x[:, :8] * x[:, 8:]).repeat(1, 2))
    assert same == pytest.approx((1.0, 3.0), rel=1e-6)
    assert other == pytest.approx((0.0, 1.0), abs=1e-9)


# Positions ------------------------------------------------------------------------------------------------------------

CONVOLUTIONS: list[dict[str, Any]] = [
    {"stride": s, "padding": p, "dilation": d} for s, p, d in [(1, 1, 1), (2, 1, 1), (1, 0, 1), (1, 2, 2), (2, 2, 1)]
]


def taps_of(call: Callable[..., Tensor], x: Tensor, options: dict[str, Any]) -> Tensor:
    """Give what each tap of a 3x3 kernel sees at each position, by convolving with one tap at a time."""
    kernels = torch.eye(9, dtype=torch.float64).view(9, 1, 1, 3, 3)
    return torch.stack([call(x[None, None], kernel, **options)[0, 0].flatten() for kernel in kernels])


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("rule", [conv, conv_transpose])
def test_two_outputs_share_the_taps_that_both_see(rule: Callable[..., Moments], options: dict[str, Any]) -> None:
    if rule is conv_transpose and options["padding"] == 0:
        options = {**options, "output_padding": 0}
    call = F.conv2d if rule is conv else F.conv_transpose2d
    seen = taps_of(call, torch.ones(6, 5, dtype=torch.float64), options)
    weight = Moments(0.0, 1 / 72, (8, 8, 3, 3))
    keys = {"output_padding": "extra"}
    out = rule(Moments(0.0, 1.0, (2, 8, 6, 5), cross=1.0, features=1), weight, **{
        keys.get(k, k): (v, v) for k, v in options.items()
    })  # fmt: skip
    together = seen.T @ seen  # taps that positions p and q have in common
    n = len(together)
    distinct = (together.sum() - together.trace()) / (n * (n - 1))
    assert out.second == pytest.approx(together.trace().item() / n / 9, rel=1e-9)
    assert out.pair == pytest.approx(distinct.item() / 9, rel=1e-9)


def test_borders_get_quieter_as_brute_force_says() -> None:
    sizes, ones = (7, 5), torch.ones(1, 1, 3, 3, dtype=torch.float64) / 9
    x, exact = Moments(0.0, 1.0, (2, 8, *sizes)), torch.ones(1, 1, *sizes, dtype=torch.float64)
    for stride in (1, 2, 1):
        x = conv(x, Moments(0.0, 1 / 72, (8, 8, 3, 3)), None, (stride, stride), (1, 1), (1, 1))
        exact = F.conv2d(exact, ones, stride=stride, padding=1)  # E z² = sum of E x² / fan-in
        rows, columns = (torch.as_tensor(p) for p in x.profile or ())
        assert x.second == pytest.approx(exact.mean().item(), rel=1e-9)
        assert torch.allclose(torch.outer(rows, columns) * x.second, exact[0, 0], rtol=1e-9)


class Tokens(nn.Module):
    """Mix tokens by a weight, and add."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.first = nn.Linear(12, 12, bias=False), nn.Linear(64, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x))
        return x + self.mix(x.transpose(1, 2)).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(64, 4, batch_first=True, dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x, need_weights=False)[0]


class Twice(nn.Sequential):
    """Positions are looked at one by one, and then together."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        return super().forward(x.flatten(0, 1)).view(*shape[:-1], -1)


MIXERS: dict[str, Callable[[], nn.Module]] = {
    "tokens": Tokens,
    "attention": Attention,
    "attention twice": lambda: nn.Sequential(Attention(), nn.GELU(), Attention()),
    "flat for a moment": lambda: nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), Twice(nn.Linear(64, 64), nn.Dropout(0.2)), nn.Linear(64, 64)
    ),
    "a transposed convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 4)),
        Permuted(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(64, 64, 4, 2, 1)),
        nn.Flatten(1, 2),
    ),
}  # fmt: skip


class Permuted(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


@pytest.mark.parametrize("name", MIXERS)
def test_what_tokens_share_is_known(name: str) -> None:
    """The mean over tokens has second moment (E x² + (n - 1) E x x') / n."""
    ratios = []
    for seed in range(24):
        torch.manual_seed(seed)
        body = MIXERS[name]()
        model = Body(Calls(lambda m, x: m.body(x).mean(1), body=body), 64)
        layer = unitvar.initialize_(model, torch.randn(16, 12, 64))["head.weight"]
        with torch.no_grad():
            ratios.append(model.body(torch.randn(16, 12, 64)).square().mean().item() / layer.second)
    found = torch.tensor(ratios)
    # Five standard errors, and what 64 features and 12 tokens leave of formulas for many of them: 1 / 12.
    assert found.mean().item() == pytest.approx(1.0, abs=5 * found.std().item() / math.sqrt(24) + 1 / 12)


# Layers that have their own way ---------------------------------------------------------------------------------------


class Unrolled(nn.Module):
    """A loop over cells, from zero, which returns the last state."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[1], 64)
        for step in x:
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(step, (h, c))
            else:
                h = self.cell(step, h)
        return h


class Output(nn.Module):
    def __init__(self, layer: nn.Module, reduce: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.layer, self.reduce = layer, reduce

    def forward(self, x: Tensor) -> Tensor:
        return self.reduce(self.layer(x))


RECURRENT: dict[str, tuple[Callable[[], nn.Module], int]] = {
    **{
        f"{kind.__name__} {options}": (lambda kind=kind, options=options: Unrolled(kind(16, 64, **options)), 64)
        for kind, options in [
            (nn.LSTMCell, {}), (nn.GRUCell, {}), (nn.RNNCell, {}), (nn.RNNCell, {"nonlinearity": "relu"}),
        ]
    },
    **{
        f"{kind.__name__} {options}, {where}": (
            lambda kind=kind, options=options, reduce=reduce: Output(kind(16, 64, **options), reduce),
            128 if "bidirectional" in options else 64,
        )
        for kind, options in [
            (nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}),
            (nn.LSTM, {"num_layers": 2, "dropout": 0.3}), (nn.GRU, {"num_layers": 2, "bidirectional": True}),
        ]
        for where, reduce in [("all steps", lambda out: out[0]), ("mean", lambda out: out[0].mean(0))]
    },
    "LSTM's last state": (lambda: Output(nn.LSTM(16, 64), lambda out: out[1][0][0]), 64),
    "LSTM's cell": (lambda: Output(nn.LSTM(16, 64), lambda out: out[1][1][0]), 64),
    "GRU's last state": (lambda: Output(nn.GRU(16, 64, bias=False), lambda out: out[1][0]), 64),
}  # fmt: skip


def outcomes(make: Callable[[], nn.Module], features: int, example: Callable[[], Any], runs: int = 16) -> Tensor:
    """Return measured over predicted second moment of what a body gives, for some draws of its weights."""
    ratios = []
    for seed in range(runs):
        torch.manual_seed(seed)
        model = Body(make(), features)
        layer = unitvar.initialize_(model, example())["head.weight"]
        with torch.no_grad():
            ratios.append(model.body(example()).square().mean().item() / layer.second)
    return torch.tensor(ratios)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrences_have_the_states_that_were_predicted(name: str) -> None:
    make, features = RECURRENT[name]
    found = outcomes(make, features, lambda: torch.randn(10, 32, 16))
    # The rule itself simulates one recurrence of 128 units, whose own error is that of one draw at twice the width.
    error = found.std().item() * (5 / math.sqrt(len(found)) + 2 / math.sqrt(2))
    assert found.mean().item() == pytest.approx(1.0, abs=error)


def test_a_frozen_recurrence_counts_as_it_is() -> None:
    def make() -> nn.Module:
        return Output(nn.LSTM(16, 64).requires_grad_(False), lambda out: out[0])

    found = outcomes(make, 64, lambda: torch.randn(10, 32, 16))
    assert found.mean().item() == pytest.approx(1.0, abs=0.15)  # torch's own weights are not Gaussian


class Experts(nn.Module):
    def __init__(self, call: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.call, self.weight = call, nn.Parameter(torch.empty(shape).normal_())

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x, self.weight)


EXPERTS = {
    "grouped einsum": (Experts, "bgi,goi->bgo", (3, 20, 12), (64, 3, 12), 2),
    "einsum that sums experts": (Experts, "bi,gio->bgo", (3, 12, 20), (64, 12), 1),
    "bmm of experts": (Experts, torch.bmm, (3, 12, 20), (3, 64, 12), 1),
    "baddbmm of experts": (Experts, lambda x, w: torch.baddbmm(x.new_zeros(1), x, w), (3, 12, 20), (3, 64, 12), 1),
}


@pytest.mark.parametrize("name", EXPERTS)
def test_each_expert_gives_unit_second_moment(name: str) -> None:
    make, call, shape, example, columns = EXPERTS[name]
    run = call if callable(call) else lambda x, w: torch.einsum(call, x, w)
    torch.manual_seed(0)
    model = make(run, *shape)
    plan = unitvar.initialize_(model, torch.zeros(example))
    assert plan.layers[0].fan_in == 12
    norms = model.weight.norm(dim=columns)
    assert torch.allclose(norms, torch.ones_like(norms))


def test_a_bilinear_layer_gives_unit_second_moment() -> None:
    found = []
    for _ in range(16):
        model = nn.Bilinear(10, 12, 40)
        plan = unitvar.initialize_(model, (torch.zeros(2, 10), torch.zeros(2, 12)))
        assert plan.layers[0].fan_in == 120
        with torch.no_grad():
            found.append(model(torch.randn(64, 10), torch.randn(64, 12)).square().mean())
    values = torch.stack(found)
    assert values.mean().item() == pytest.approx(1.0, abs=5 * values.std().item() / 4)


@pytest.mark.parametrize(("mode", "tolerance"), [("sum", 0.05), ("mean", 0.05), ("max", 0.1)])
@pytest.mark.parametrize("offsets", [False, True])
def test_bags_of_embeddings(mode: str, tolerance: float, offsets: bool) -> None:
    bag = nn.EmbeddingBag(2000, 32, mode=mode)
    tokens = torch.randint(2000, (400, 6))
    example = (tokens.flatten(), torch.arange(0, 2400, 6)) if offsets else (tokens,)
    layer = unitvar.plan(Body(bag, 32), example)["head.weight"]
    with torch.no_grad():
        assert layer.second == pytest.approx(bag(*example).square().mean().item(), rel=tolerance)
    assert layer.path == "embedding"


# Masks ----------------------------------------------------------------------------------------------------------------

CAUSAL = torch.ones(32, 32).tril().bool()
LOW = torch.zeros(32, 32).masked_fill(~CAUSAL, -math.inf)
Mixing = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5


def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (scores(q, k) + mask).softmax(-1) @ v


MASKINGS: dict[str, tuple[Mixing, Tensor]] = {
    "boolean": (F.scaled_dot_product_attention, CAUSAL),
    "minus infinity": (F.scaled_dot_product_attention, LOW),
    "causal": (lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, is_causal=True), CAUSAL),
    "added": (added, LOW),
    "filled": (lambda q, k, v, mask: scores(q, k).masked_fill(~mask, -math.inf).softmax(-1) @ v, CAUSAL),
    "where": (lambda q, k, v, mask: torch.where(mask, scores(q, k), -math.inf).softmax(-1) @ v, CAUSAL),
}


class Masked(nn.Module):
    def __init__(self, mixing: Mixing, mask: Tensor, buffered: bool) -> None:
        super().__init__()
        self.mixing = mixing
        self.q, self.k, self.v, self.out = (nn.Linear(64, 64, bias=False) for _ in range(4))
        if buffered:
            self.register_buffer("mask", mask)
        else:
            self.mask = mask

    def mixed(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (4, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.mixing(q, k, v, self.mask).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mixed(x))


@pytest.fixture(scope="module")
def attended() -> tuple[float, float]:
    """Measure E x² after causal attention, over draws of weights and tokens; its mean and standard error."""
    found = []
    for seed in range(30):
        torch.manual_seed(seed)
        net = Masked(*MASKINGS["boolean"], buffered=False)
        for layer in (net.q, net.k, net.v):
            unitvar.init.sphere_(layer.weight, gain=1.0)
        found.append(net.mixed(torch.randn(8, 32, 64)).square().mean().item())
    return float(np.mean(found)), float(np.std(found, ddof=1)) / len(found) ** 0.5


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("name", MASKINGS)
def test_every_way_to_write_a_mask_is_the_same_mask(name: str, buffered: bool, attended: tuple[float, float]) -> None:
    """Its rows count, not their average: the first token sees itself alone."""
    found = unitvar.plan(Masked(*MASKINGS[name], buffered), torch.zeros(8, 32, 64))["out.weight"].second
    assert found == pytest.approx(attended[0], abs=5 * attended[1])


def test_a_mask_may_be_an_input(attended: tuple[float, float]) -> None:
    class Given(Masked):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
            self.mask = mask
            return super().forward(x)

    for name in ("boolean", "minus infinity", "added"):
        mixing, mask = MASKINGS[name]
        plan = unitvar.plan(Given(mixing, mask, buffered=False), (torch.zeros(8, 32, 64), mask))
        assert plan["out.weight"].second == pytest.approx(attended[0], abs=5 * attended[1])


# Devices --------------------------------------------------------------------------------------------------------------


def test_another_default_device_changes_nothing() -> None:
    norm = nn.LayerNorm(64)
    nn.init.normal_(norm.weight)  # a law of its own
    net = nn.Sequential(
        nn.Linear(64, 64), norm, nn.PReLU(5), nn.Dropout(0.3), Attention(), nn.RReLU(), Cumulated(),
        nn.Unflatten(2, (8, 8)), nn.Upsample(scale_factor=2), nn.Flatten(2), nn.LSTM(256, 8, num_layers=2, dropout=0.1),
    )  # fmt: skip
    x = torch.randn(4, 5, 64)
    with torch.device("meta"):  # first, so that nothing is known from before
        elsewhere = unitvar.plan(net, x, mode="backward").rows
    assert elsewhere == unitvar.plan(net, x, mode="backward").rows


class Cumulated(nn.Module):
    """An op without a rule, which is sampled."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


def test_numbers_are_taken_from_where_they_are_to_the_cpu() -> None:
    with FakeTensorMode():  # has CUDA on any machine
        parameter = torch.empty(8, device="cuda")
        value = Value("parameter", parameter)
        value.tensor = parameter
        found = realised(value)
    assert found is not None
    assert found.device.type == "cpu"


# Gradients ------------------------------------------------------------------------------------------------------------


class Between(nn.Module):
    def __init__(self, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.op, self.a, self.b = op, nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.op(self.a(x)))


def squared(op: Callable[[Tensor], Tensor], **options: Any) -> float:
    """Return 1 / (E g² factor of the op): with as many rows as columns, the squared scale of the weight after it."""
    example = torch.zeros(256, 16)
    return unitvar.plan(Between(op), example, mode="backward", **options)["b.weight"].scale ** 2


def test_a_rule_without_backward_has_its_factor_from_samples() -> None:
    exact = 17 / 2  # of cumsum over 16: an input reaches 16, 15, ..., 1 outputs
    assert 1 / squared(lambda x: x.cumsum(1)) == pytest.approx(exact, rel=0.1)  # unknown: sampled altogether

    @unitvar.rule("aten.cumsum")
    def cumsum(x: Moments, dim: int, *_: Any) -> Moments:
        return x

    try:
        assert 1 / squared(lambda x: x.cumsum(1)) == pytest.approx(exact, rel=0.1)
    finally:
        del RULES["aten.cumsum"]


def test_a_rule_for_one_call_keeps_the_factor_of_its_op_or_brings_its_own() -> None:
    def pooled(x: Tensor) -> Tensor:
        return F.avg_pool1d(x, 2).repeat(1, 2)

    name = "aten.avg_pool1d"
    usual = squared(pooled)
    assert squared(pooled, rules={name: lambda x, *_: x.like(shape=(256, 8))}) == pytest.approx(usual)
    halved = squared(pooled, rules={name: (lambda x, *_: x.like(shape=(256, 8)), lambda x, *_: 0.5)})
    assert halved == pytest.approx(usual / 2)  # an average of two passes a quarter


@pytest.fixture
def rules() -> Iterator[None]:
    """Give the rules back as they were."""
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


@pytest.mark.usefixtures("rules")
def test_a_registered_rule_does_what_one_for_a_call_does() -> None:
    net, x = nn.Sequential(linear(), nn.ReLU(), nn.Dropout(0.75), linear()), torch.zeros(2, 16)
    usual = unitvar.plan(net, x)
    for name, own, times in [
        ("aten.linear", RULES["aten.linear"].forward, 1.0),
        ("aten.dropout", lambda x, *_: x, 0.25),
    ]:
        once = unitvar.plan(net, x, rules={name: own})
        unitvar.rule(name)(own)
        always = unitvar.plan(net, x)
        assert [layer.second for layer in always] == [layer.second for layer in once]
        # Without its dropout ReLU halves: 1/2 instead of 1/2 over the keep rate.
        assert [layer.second for layer in always] == pytest.approx([1.0, usual["3.weight"].second * times])
        assert usual["3.weight"].second == pytest.approx(0.5 / 0.25)


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("name", ["aten.dropout", "aten.dropout.default"])
def test_a_registered_rule_brings_its_own_backward(name: str) -> None:
    unitvar.rule(name, backward=lambda x, *_: 5.0)(lambda x, *_: x)
    assert 1 / squared(lambda x: F.dropout(x, 0.5)) == pytest.approx(5.0)
    graph = trace(nn.Dropout(0.5), torch.zeros(2, 16))
    found = propagate(graph, [Moments(0.0, 1.0)], lambda weighing: None)
    assert gradients(graph, found, [1.0])[id(graph.inputs[0])] == pytest.approx(5.0)


@pytest.mark.usefixtures("rules")
def test_a_rule_for_all_overloads_goes_before_those_of_single_ones() -> None:
    unitvar.rule("aten.max")(lambda x, *_: x.like(mean=0.0, second=7.0, shape=x.shape[:1]))
    assert unitvar.plan(Calls(lambda m, x: m.l(x.max(1)[0]), l=linear()), torch.zeros(16, 2))["l.weight"].second == 7.0


@pytest.mark.usefixtures("untyped")
def test_a_rule_that_is_no_function_is_named() -> None:
    with pytest.raises(TypeError, match="not a function of the op's arguments, nor a pair"):
        unitvar.plan(linear(), torch.zeros(2, 16), rules={"aten.relu": (1, 2)})  # type: ignore[dict-item]


# Depth ----------------------------------------------------------------------------------------------------------------

DEEP = [("relu", 0.3), ("relu", 0.5), *itertools.product(("elu", "tanh"), (0.1, 0.3, 0.5))]


def plain_cnn(act: type[nn.Module], dropout: float, depth: int = 50, width: int = 64) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth - 1):
        layers += [act(), nn.Dropout(dropout), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers)


def seconds(model: nn.Sequential, x: Tensor) -> list[float]:
    found = []
    with torch.no_grad():
        for module in model:
            x = module(x)
            if isinstance(module, nn.Conv2d):
                found.append(x.square().mean().item())
    return found


@pytest.mark.parametrize(("name", "dropout"), DEEP)
def test_fifty_plain_convolutions_stay_near_one(name: str, dropout: float) -> None:
    torch.manual_seed(0)
    model, x = plain_cnn({"relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh}[name], dropout), torch.randn(16, 3, 8, 8)
    unitvar.initialize_(model, x)
    found = seconds(model, x)
    assert 0.25 < min(found) <= max(found) < 4
    for module in model:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    if name != "tanh":  # which no variance can leave: it saturates
        assert max(seconds(model, x)) > 4


@pytest.mark.parametrize("act", [nn.GELU, nn.SiLU])
def test_where_depth_amplifies_the_plan_says_so(act: type[nn.Module]) -> None:
    plan = unitvar.plan(plain_cnn(act, 0.3, width=4), torch.zeros(2, 3, 8, 8))
    assert plan.depth == 49
    assert plan.chi == pytest.approx(unitvar.activation_moments(act()).chi, rel=1e-6)
    said = " ".join(str(plan).split())
    assert f"depth amplifies deviations by {plan.chi**49:.3g} in all" in said
    assert 'Put norms between the layers, or use method="measured".' in said
