"""method="measured": real data, one pass, unit variance."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from tests import zoo
from tests.planning.models import Conv1D, same, state_of
from unitvar_reproduction.experiments.zoo import measured


@pytest.mark.parametrize("family", ["VGG", "ResNet without norm", "TransformerEncoder", "U-Net"])
@pytest.mark.parametrize("residual", ["unit", "scaled"])
def test_measured_gives_every_pre_activation_its_planned_variance(family: str, residual: str) -> None:
    torch.manual_seed(0)
    model, example = {**zoo.PLAIN, **zoo.OTHER}[family]()
    random = torch.get_rng_state()
    draw = torch.Generator().manual_seed(0)
    plan = unitvar.initialize_(model, example, method="measured", residual=residual, generator=draw)
    assert torch.equal(random, torch.get_rng_state())
    found = measured(model, example)  # the same masks: the random state is what it was
    for layer in plan:
        assert layer.predicted == pytest.approx(1.0, rel=1e-3) or (residual == "scaled" and layer.branch), layer.name
        assert found[layer.name] == pytest.approx(layer.predicted, rel=1e-3)


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
    with pytest.raises(ValueError, match=r"'b\.weight' was not found in the run"):
        unitvar.initialize_(model, torch.randn(4, 8), method="measured")
    assert same(before, model.state_dict())
