"""Expressions of several sources: moments of sums and products whose operands share one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.composition.spelling import assert_as_predicted, shared, white
from unitvar.moments.correlation import UNRELATED
from unitvar.moments.joint import Joint, Operand
from unitvar.moments.law import Field, gaussian
from unitvar.moments.signal import Origin

Expression = Callable[[Tensor, Tensor], Tensor]

# Of independent standard normal x and y.
EXPRESSIONS: dict[str, Expression] = {
    "a sum and its term": lambda x, y: (x + y) * x,
    "a gate by a term": lambda x, y: (x + y) * torch.sigmoid(x),
    "a gated sum and its term": lambda x, y: (x + y) * torch.sigmoid(x) + x,
    "products of products": lambda x, y: (x * y) * (x + y) * torch.tanh(y),
    "a function of a product": lambda x, y: nn.functional.silu(x * y),
    "a function of a sum of products": lambda x, y: nn.functional.gelu(x * y + x),
    "a power of a product": lambda x, y: torch.rsqrt(1 + (x * y) ** 2),
    "an exponential of a product": lambda x, y: torch.exp(-(nn.functional.softplus(x) * torch.sigmoid(y))),
    "a quotient": lambda x, y: (x + y) / (2 + torch.tanh(x)),
    "the larger one": lambda x, y: torch.maximum(x, x + y),
    "a choice": lambda x, y: torch.where(x > 0, x * y, y),
}


class Expressions(nn.Module):
    """Each expression with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 256)
        self.heads = nn.ModuleList(nn.Linear(256, 64) for _ in EXPRESSIONS)

    def forward(self, x: Tensor) -> list[Tensor]:
        y = self.first(x)
        return [head(f(x, y)) for head, f in zip(self.heads, EXPRESSIONS.values(), strict=True)]


def test_moments_of_expressions_are_those_of_brute_force() -> None:
    plan = unitvar.plan(Expressions(), torch.zeros(1, 256), residual="unit")
    x, y = torch.randn(2, 1 << 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for i, (name, function) in enumerate(EXPRESSIONS.items()):
        v, layer = function(x, y), plan[f"heads.{i}.weight"]
        error = float((v**2).std()) / math.sqrt(len(v))
        assert layer.second == pytest.approx(float(v.square().mean()), rel=0.03, abs=5 * error), name
        assert layer.mean == pytest.approx(float(v.mean()), abs=0.01 * math.sqrt(layer.second)), name


def test_a_plan_draws_the_same_numbers_each_time_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, second = (unitvar.plan(Expressions(), torch.zeros(1, 256)) for _ in range(2))
    assert [layer.scale for layer in first] == [layer.scale for layer in second]
    torch.manual_seed(0)
    _ = Expressions(), Expressions()
    after = torch.get_rng_state()
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), before)
    _ = unitvar.plan(Expressions(), torch.zeros(1, 256)), Expressions()
    assert torch.equal(torch.get_rng_state(), after)


class Averaged(nn.Module):
    """The average over positions of a product of dependent tensors: what positions share of it stays."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(128, 128), nn.LayerNorm(128), nn.Linear(128, 64)
        self.second, self.last = nn.Linear(128, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        product = (x + y) * self.norm(y)  # E (x + y) y = 1
        centred = self.second(x) * torch.tanh(x + y)  # no mean: what positions share comes of x and y alone
        return self.head(product.mean(1)), self.last(centred.mean(1))


@pytest.mark.parametrize("sample", [white(8, 32, 128), shared(8, 32, 128, dims=(1,))], ids=["white", "shared"])
def test_what_positions_share_of_a_product_of_dependent_tensors(sample: Callable[[], Tensor]) -> None:
    assert_as_predicted(Averaged, sample, draws=8, tolerance=0.1, inputs="measured")


def test_other_elements_of_one_tensor_are_independent() -> None:
    """E (x - x')² y² is 2, where x' is another token; x y less itself is nothing."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.head((x + y)[:, 1:] * (x - x.roll(1, 1))[:, 1:])

    layer = unitvar.plan(Shifted(), torch.zeros(4, 16, 64), residual="unit")["head.weight"]
    assert layer.second == pytest.approx(4.0, rel=0.03)


def test_an_expression_inside_another_one_twice_is_evaluated_once() -> None:
    """x ← x y + x, again and again, would take 2ⁿ evaluations of the first product."""
    calls = 0

    def counted(values: Sequence[Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        return values[0] * values[1].tanh() + values[2]

    def operand(field: Field) -> Operand:
        return Operand.of(field, UNRELATED, (4,), ())

    def source(joint: Joint | None = None) -> Field:
        origin = Origin(joint=joint)
        origin.axis = gaussian(0.0, 1.0, origin=origin)
        return Field(origin.axis.nodes, (), origin.axis)

    x, y = source(), source()
    for _ in range(16):
        joint = Joint.of(counted, [operand(x), operand(y), operand(x)], (4,), linear=False)
        assert joint is not None
        x = source(joint)
    assert joint.moments() is not None
    assert calls <= 16 * 7  # one element, an unrelated one, and one of each kind of pair


class Decay(nn.Module):
    """A gate exp(-d a), whose rates a are learned, one for each unit and state, and start at 1 to 8."""

    def __init__(self) -> None:
        super().__init__()
        self.log_rates = nn.Parameter(torch.arange(1.0, 9.0).log().repeat(64, 1))
        self.first, self.head = nn.Linear(64, 64), nn.Linear(8, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.exp(-nn.functional.softplus(self.first(x))[..., None] * self.log_rates.exp()))


def test_a_table_of_one_sign_keeps_it() -> None:
    """A Gaussian of the rates' mean and variance has negative ones, whose exponentials are 10⁵ times larger."""
    layer = unitvar.plan(Decay(), torch.zeros(4, 64), residual="unit")["head.weight"]
    z = torch.randn(1 << 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gates = torch.exp(-nn.functional.softplus(z)[:, None] * torch.arange(1.0, 9.0, dtype=torch.float64))
    assert layer.mean == pytest.approx(float(gates.mean()), rel=0.05)
    assert layer.second == pytest.approx(float(gates.square().mean()), rel=0.05)
