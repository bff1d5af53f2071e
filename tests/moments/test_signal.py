"""Signals: extremes and sums of elements that are alike."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unitvar.moments import Correlation, Signal


@pytest.mark.parametrize(
    ("count", "exact"), [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (4, 1.0293753730), (9, 1.4850131622)]
)
def test_the_largest_of_some_is_an_order_statistic(count: int, exact: float) -> None:
    top = Signal(0.0, 1.0, (4, 8, 6, 6)).maximum(count)
    assert top.mean == pytest.approx(exact, abs=5e-3)  # 512 quantiles


@given(rho=st.floats(0.01, 0.95))
def test_the_larger_of_two_alike_is_smaller(rho: float) -> None:
    top = Signal(0.0, 1.0, (4, 8, 6, 6), correlation=Correlation(positions=rho)).maximum(2, "positions")
    assert top.mean == pytest.approx(math.sqrt((1 - rho) / math.pi), abs=5e-3)
    assert top.second == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("terms", [{"p": 9}, {"f": 4}, {"f": 3, "p": 5}, {"p": 6, "c": 3}], ids=str)
@pytest.mark.parametrize(("features", "positions"), [(0.0, 0.0), (0.0, 0.4), (0.2, 0.0), (0.2, 0.5)])
def test_a_sum_has_the_moments_of_draws(terms: dict[str, float], features: float, positions: float) -> None:
    """Positions of a feature share one part, features of a position another: E s², and E s_1 s_2 of two such sums."""
    count, f, p = 1 << 14, int(terms.get("f", 1)), int(terms.get("p", 1))
    x = Signal(0.7, 0.7**2 + 1, (2, 8, 8), correlation=Correlation(features=features).with_positions(positions))
    shares = positions, features, 1 - positions - features
    sizes = (count, 2 * f, 1), (count, 1, 2 * p), (count, 2 * f, 2 * p)
    y = 0.7 + sum(math.sqrt(s) * torch.randn(size, dtype=torch.float64) for s, size in zip(shares, sizes, strict=True))
    y = y * terms.get("c", 1)
    one, other, apart = (v.sum((1, 2)) for v in (y[:, :f, :p], y[:, :f, p:], y[:, f:, :p]))
    found = x.summed(terms)
    assert found.mean == pytest.approx(one.mean().item(), abs=5 * one.std().item() / math.sqrt(count))
    pairs = {"second": (found.second, one * one)}
    if "f" not in terms:  # or two sums of other features would differ in both
        pairs["features"] = found.pair("features"), one * apart
    if "p" not in terms:
        pairs["positions"] = found.pair("positions"), one * other
    for name, (predicted, products) in pairs.items():
        error = products.std().item() / math.sqrt(count)
        assert predicted == pytest.approx(products.mean().item(), abs=5 * error), name


@pytest.mark.parametrize(("examples", "positions"), [(0.0, 0.3), (0.2, 0.2), (0.2, 0.5)])
def test_what_examples_share_their_positions_share(examples: float, positions: float) -> None:
    """A weight makes the same of a mean in all examples and positions: in averages over positions that part stays."""
    count, p = 1 << 15, 6
    x = Signal(0.7, 0.7**2 + 1, (2, 8, 8), correlation=Correlation(examples=examples).with_positions(positions))
    shares = examples, positions - examples, 1 - positions
    sizes = (count, 1, 1), (count, 2, 1), (count, 2, p)
    y = 0.7 + sum(math.sqrt(s) * torch.randn(size, dtype=torch.float64) for s, size in zip(shares, sizes, strict=True))
    one, other = y.mean(2).T
    found = x.averaged(p)
    for predicted, products in ((found.second, one * one), (found.pair("examples"), one * other)):
        assert predicted == pytest.approx(products.mean().item(), abs=5 * products.std().item() / math.sqrt(count))


@given(st.floats(1, 50), st.floats(-2, 2), st.floats(0, 1))
def test_an_average_keeps_the_mean_and_what_is_shared(count: float, mean: float, rho: float) -> None:
    x = Signal(mean, mean**2 + 3.0, (2, 8, 6, 6), correlation=Correlation().with_positions(rho))
    out = x.averaged(count)
    assert out.mean == pytest.approx(mean)
    assert out.var == pytest.approx(3.0 * (rho + (1 - rho) / count))


@given(st.floats(-3, 3), st.floats(-2, 2), st.floats(-0.5, 1))
def test_a_factor_scales_every_moment(factor: float, mean: float, rho: float) -> None:
    x = Signal(mean, mean**2 + 1.0, (2, 8), correlation=Correlation(*[rho] * 5))
    out = x.scaled(factor)
    assert (out.mean, out.second) == pytest.approx((factor * mean, factor**2 * x.second))
    for kind in Correlation._fields:
        assert out.pair(kind) == pytest.approx(factor**2 * x.pair(kind))


@given(st.floats(-1, 1), st.sampled_from(Correlation._fields))
def test_moments_of_pairs_come_back_as_they_were_given(rho: float, kind: str) -> None:
    x = Signal(0.4, 2.0, (2, 8))
    assert x.related({kind: 0.16 + rho * x.var}).pair(kind) == pytest.approx(0.16 + rho * x.var)
