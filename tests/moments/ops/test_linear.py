"""Matrix products against draws."""

from collections.abc import Callable
from statistics import mean, stdev

import pytest
import torch
from torch import Tensor, nn

import unitvar
from unitvar.moments import RULES, Moments


@pytest.mark.parametrize(
    ("a", "b"),
    [((90, 70), (70,)), ((70,), (70, 90)), ((6, 50, 70), (70, 40)), ((6, 50, 70), (6, 70, 40)), ((70,), (70,))],
)
def test_a_product_hands_on_the_gradients_that_autograd_does(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    backward = RULES["aten.matmul"].backward
    assert backward is not None
    predicted = backward(Moments(0.0, 4.0, a), Moments(0.0, 9.0, b))
    found = []
    for _ in range(20):
        x, y = (2 * torch.randn(a)).requires_grad_(), (3 * torch.randn(b)).requires_grad_()
        out = x @ y
        grads = torch.autograd.grad(out, (x, y), torch.randn(out.shape))
        found.append([g.square().mean().item() for g in grads])
    for exact, each in zip(predicted, zip(*found, strict=True), strict=True):
        error = stdev(each) / len(each) ** 0.5
        assert mean(each) == pytest.approx(exact, abs=4 * error)


def test_a_sum_of_matrix_products_sums_over_matrices_too() -> None:
    shapes = (40, 50), (6, 40, 30), (6, 30, 50)
    described = [Moments(m, s, shape) for shape, m, s in zip(shapes, (0.0, 1.0, 0.0), (1.0, 5.0, 9.0), strict=True)]
    found = RULES["aten.addbmm"].forward(*described, 2.0, 0.5)
    assert found.shape == (40, 50)
    drawn = []
    for _ in range(20):
        bias, a, b = (torch.randn(shape) for shape in shapes)
        drawn.append(torch.addbmm(bias, 2 * a + 1, 3 * b, beta=2.0, alpha=0.5).square().mean().item())
    assert found.second == pytest.approx(mean(drawn), abs=4 * stdev(drawn) / len(drawn) ** 0.5)


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
