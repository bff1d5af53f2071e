"""The variance shift of batch norms: Li et al.'s formulas are special cases, and measure finds what is predicted."""

import pytest
import torch
from torch import Tensor, nn

import unitvar


@pytest.mark.parametrize("dropout", [0.1, 0.5])
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.4), (2.0, 1.0)])
def test_a_dropout_directly_before_has_the_published_ratio(dropout: float, mean: float, std: float) -> None:
    """Li et al. (2019), equation for one unit: Δ = v / ((c² + v) / p − c²)."""
    keep, v = 1 - dropout, std**2
    plan = unitvar.plan(nn.Sequential(nn.Dropout(dropout), nn.BatchNorm1d(8)), torch.zeros(4, 8), inputs=(mean, std))
    assert 1 / plan.shifts["1"] == pytest.approx(v / ((mean**2 + v) / keep - mean**2), rel=1e-6)


def published(d: float, keep: float, c: float, v: float, rho: float) -> float:
    """Li et al. (2019) with a weight between, from d inputs of mean c, variance v, correlation rho, all weighted alike.

    Masks are independent, so the inputs' covariance rho v is the same with dropout on and off.
    """
    return v * (1 + rho * (d - 1)) / ((c**2 + v) / keep - c**2 + rho * v * (d - 1))


@pytest.mark.parametrize("width", [1, 8, 64])
def test_random_weights_between_leave_the_ratio_as_it_is_at_any_width(width: int) -> None:
    """Weights of zero mean: their products cancel, so neither the correlation of inputs nor their number counts."""
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(width, 64), nn.BatchNorm1d(64))
    for mean in (0.0, 0.5, 1.0):
        shift = unitvar.plan(net, torch.zeros(4, width), inputs=(mean, 1.0)).shifts["2"]
        assert 1 / shift == pytest.approx(published(1, 0.5, mean, 1.0, rho=0.0), rel=1e-6)


class Mean(nn.Module):
    """The mean over d units that share a part of what they are: weights that are all the same."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.drop, self.norm = nn.Dropout(dropout), nn.BatchNorm1d(8)

    def forward(self, shared: Tensor, own: Tensor) -> Tensor:
        return self.norm(self.drop(shared.unsqueeze(2) + own).mean(2))


@pytest.mark.parametrize("dropout", [0.1, 0.5])
@pytest.mark.parametrize(("c", "v", "rho"), [(0.0, 1.25, 0.8), (0.5, 2.0, 0.5), (1.0, 1.25, 0.2), (1.0, 1.0, 0.0)])
def test_the_wider_the_sum_of_correlated_units_the_smaller_the_shift(
    dropout: float, c: float, v: float, rho: float
) -> None:
    found = []
    for d in (1, 4, 64, 1024):
        inputs = [(c, (rho * v) ** 0.5), (0.0, ((1 - rho) * v) ** 0.5)]
        plan = unitvar.plan(Mean(dropout), (torch.zeros(4, 8), torch.zeros(4, 8, d)), inputs=inputs)
        found.append(1 / plan.shifts["norm"])
        assert found[-1] == pytest.approx(published(d, 1 - dropout, c, v, rho), rel=1e-6)
    if rho:
        assert found == sorted(found)
        assert found[-1] == pytest.approx(1, abs=0.02)


class ByHand(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.empty_like(x).bernoulli_(0.7) / 0.7 if self.training else x


def layers(drop: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), drop, nn.Conv2d(32, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )  # fmt: skip


def test_measure_finds_the_predicted_gap_at_every_norm_in_any_spelling() -> None:
    x = torch.randn(64, 3, 6, 6)
    plans = {}
    for name, drop in (("module", nn.Dropout(0.3)), ("by hand", ByHand())):
        found: dict[str, list[float]] = {}
        for seed in range(4):
            torch.manual_seed(seed)
            model = layers(drop)
            plan = unitvar.initialize_(model, x, inputs="standard")
            for norm in unitvar.measure(model, x, runs=2).norms:
                assert norm.gap is not None
                found.setdefault(norm.name, []).append(norm.gap)
                if norm.name in plan.shifts and name == "module":
                    assert norm.predicted_gap == pytest.approx(plan.shifts[norm.name], rel=0.1)
        plans[name] = plan.shifts
        for label, gaps in found.items():
            assert sum(gaps) / len(gaps) == pytest.approx(plan.shifts.get(label, 1.0), rel=0.06), label
    assert plans["module"] == pytest.approx(plans["by hand"], rel=1e-6)


def test_a_plan_advises_where_dropout_shifts_a_norm_and_is_silent_where_not() -> None:
    x = torch.zeros(4, 32)
    before = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 32), nn.BatchNorm1d(32))
    after = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 8))
    assert "reestimate_bn_" in " ".join(unitvar.plan(before, x).advice)
    assert unitvar.plan(after, x).advice == ()
    assert unitvar.plan(after, x).shifts == {}
