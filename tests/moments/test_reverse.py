"""Gradients through a graph: closed forms, and autograd on random numbers."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import unitvar
from unitvar.graph import trace
from unitvar.moments import Moments, known, propagate
from unitvar.moments.reverse import gradients


def balanced_(model: nn.Module) -> nn.Module:
    """Give every weight zero mean and rows of norm one, exactly; rows that sum to zero would hide a signal's mean."""
    for p in model.parameters():
        if p.dim() > 1:
            signs = torch.tensor([1.0, -1.0]).repeat(len(p))[: len(p)]
            p.data = signs.view(-1, *(1,) * (p.dim() - 1)).expand(p.shape) / math.sqrt(p[0].numel())
        elif not torch.equal(p, torch.ones_like(p)):  # not the scale of a norm
            p.data.zero_()
    return model


def at_weights(model: nn.Module, example: Tensor) -> list[float]:
    """Follow a unit gradient at every output back to the output of every weight."""
    graph = trace(model, example, known=lambda op: known(op, {}))
    found = propagate(graph, [Moments(0.0, 1.0)], lambda _: None)
    energies = gradients(graph, found, [1.0] * len(graph.outputs))
    weights = [n for n in graph.nodes if n.name in ("aten.linear", "aten.conv2d", "aten.conv_transpose2d")]
    return [energies[id(n.outputs[0])].second for n in weights]


@given(
    st.lists(st.integers(1, 25).map(lambda n: 2 * n), min_size=2, max_size=5),
    st.sampled_from(["relu", "gelu", "tanh", "silu", "elu"]),
    st.floats(0.0, 0.9, allow_subnormal=False),
)
def test_a_chain_multiplies_design_s_backward_factors(widths: list[int], name: str, drop: float) -> None:
    activation = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "silu": nn.SiLU, "elu": nn.ELU}[name]
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), activation(), nn.Dropout(drop)]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], 3))
    balanced_(model)
    second, expected = 1.0, []
    for _ in widths[1:]:
        m = unitvar.activation_moments(name, std=math.sqrt(second))
        expected.append(m.slope / (1 - drop))
        second = m.second / (1 - drop)
    sizes = [*widths[1:], 3]
    for i in reversed(range(len(expected))):
        behind = expected[i + 1] if i + 1 < len(expected) else 1.0
        expected[i] *= behind * sizes[i + 1] / sizes[i]  # s² n'/n E f'²/p
    assert at_weights(model, torch.zeros(2, widths[0])) == pytest.approx([*expected, 1.0], rel=1e-6)


def test_every_batch_norm_after_a_relu_multiplies_gradients_by_pi_over_pi_minus_one() -> None:
    """Yang et al., A Mean Field Theory of Batch Normalization (2019)."""
    blocks = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.BatchNorm1d(64, eps=1e-12), nn.ReLU())]
    found = at_weights(balanced_(nn.Sequential(*blocks)), torch.randn(512, 64))
    ratios = [a / b for a, b in pairwise(found[1:])]
    assert ratios == pytest.approx([math.pi / (math.pi - 1)] * 6, rel=1e-3)


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.BatchNorm1d(48, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.cat((torch.cat((self.a(x), 3 * self.b(x)), 1), 5 * self.b(x)), 1))


def test_a_batch_norm_divides_each_channel_by_its_own_variance() -> None:
    """Scaled before it or not, a channel of unit variance gets back what comes: b, which is used twice, twice."""
    found = at_weights(balanced_(Joined()), torch.randn(4096, 16))
    assert found == pytest.approx([1.0, 1.0, 1.0], rel=1e-3)


def test_a_pool_finds_the_slope_on_unless_all_of_its_window_is_off() -> None:
    model = balanced_(nn.Sequential(nn.Conv2d(2, 8, 1), nn.ReLU(), nn.MaxPool2d(2)))
    (found,) = at_weights(model, torch.randn(4, 2, 8, 8))
    assert found == pytest.approx((1 - 2**-4) / 4, rel=1e-3)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        return torch.cat((z + self.second(torch.tanh(z)), 2 * z), 1)


def test_where_a_value_is_used_twice_energies_add() -> None:
    slope = unitvar.activation_moments("tanh").slope
    # 1 by the sum, E tanh'² by the branch, 4 by the second half of the output.
    assert at_weights(balanced_(Branches()), torch.zeros(2, 64)) == pytest.approx([1 + slope + 4, 1.0], rel=1e-6)


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(16, 32), nn.Linear(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.gate(x)) * self.up(x)


def test_a_product_passes_the_other_factor_s_square() -> None:
    m = unitvar.activation_moments("silu")
    assert at_weights(balanced_(Product()), torch.zeros(2, 16)) == pytest.approx([m.slope, m.second], rel=1e-6)


class Pointwise(nn.Module):
    """Operands of different origin, for which there is no closed rule."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.atan2(self.a(x), 2 + self.b(x).square())


def test_other_ops_of_two_signals_are_drawn() -> None:
    z = torch.randn(2, 1 << 20, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(torch.atan2(z[0], 2 + z[1].square()).sum(), z)
    squares = g.square()
    error = squares.std(1) / squares.mean(1) / math.sqrt(4096)
    found = torch.tensor(at_weights(balanced_(Pointwise()), torch.zeros(2, 64)), dtype=torch.float64)
    assert ((found / squares.mean(1) - 1).abs() < 4 * error).all()


def test_a_convolution_at_a_border_sends_less() -> None:
    model = nn.Sequential(nn.Conv2d(2, 16, 1), nn.Conv2d(16, 32, 3, padding=1))
    found = at_weights(model, torch.randn(2, 2, 8, 8))
    weight = model[1].weight.detach().double().square().mean()
    taps = (8 * 3 - 2) / 8  # of three, on average, along each dimension
    assert found == pytest.approx([float(32 * taps**2 * weight), 1.0], rel=1e-6)
