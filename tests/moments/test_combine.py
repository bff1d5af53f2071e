"""Sums and products of tensors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import unitvar
from tests.moments.models import linear, reaching
from unitvar.moments import Correlation, Signal
from unitvar.moments.combine import broadcast, contracted


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


# Products of matrices against draws -----------------------------------------------------------------------------------

STRUCTURES = {
    "unrelated": (0.0, 0.0),
    "rows share": (0.4, 0.0),
    "columns share": (0.0, 0.3),
    "rows and columns share": (0.4, 0.3),
}


def drawn(shape: tuple[int, int], mean: float, structure: tuple[float, float], count: int) -> Tensor:
    """Draw matrices of unit variance: rows share one part of it, columns another, which has another source."""
    (rows, columns), (m, n) = structure, shape
    shared = math.sqrt(rows) * torch.randn(count, 1, n) + math.sqrt(columns) * torch.randn(count, m, 1)
    return mean + shared + math.sqrt(1 - rows - columns) * torch.randn(count, m, n)


def described(shape: tuple[int, int], mean: float, structure: tuple[float, float]) -> Signal:
    correlation = Correlation(features=structure[1]).with_positions(structure[0])
    return Signal(mean, mean**2 + 1, shape, axes="pf", correlation=correlation)


def estimated(y: Tensor) -> dict[str, tuple[float, float]]:
    """Return moments of matrices and of pairs of their elements, each with its standard error."""
    y = y.double()
    m, n = y.shape[1:]
    each = {
        "mean": y.mean((1, 2)),
        "second": y.square().mean((1, 2)),
        "positions": (y.sum(1).square() - y.square().sum(1)).mean(1) / (m * (m - 1)),
        "features": (y.sum(2).square() - y.square().sum(2)).mean(1) / (n * (n - 1)),
    }
    return {name: (v.mean().item(), v.std().item() / math.sqrt(len(v))) for name, v in each.items()}


@pytest.mark.parametrize("second", STRUCTURES)
@pytest.mark.parametrize("first", STRUCTURES)
def test_a_product_of_matrices_has_the_moments_of_draws(first: str, second: str) -> None:
    count, (m, k, n) = 1 << 15, (4, 6, 3)
    a, b = STRUCTURES[first], STRUCTURES[second]
    out = contracted(described((m, k), 0.5, a), described((k, n), -0.4, b), [(1, 0)], (m, n), "pf", free=1)
    exact = estimated(drawn((m, k), 0.5, a, count) @ drawn((k, n), -0.4, b, count))
    pairs = {kind: out.pair(kind) for kind in ("positions", "features")}
    for name, predicted in {"mean": out.mean, "second": out.second, **pairs}.items():
        value, error = exact[name]
        assert predicted == pytest.approx(value, abs=5 * error), name


@given(st.integers(1, 5), st.integers(1, 5), st.integers(2, 5), st.floats(0, 1), st.floats(-2, 2))
def test_a_repeated_tensor_shares_what_is_repeated(old: int, new: int, width: int, rho: float, mean: float) -> None:
    """Of the pairs of positions some are copies of one, the others are as alike as before: counted one by one."""
    x = Signal(
        mean, mean**2 + 2.0, (3, old, 1, width), axes="bppf", correlation=Correlation(examples=0.3).with_positions(rho)
    )
    out = broadcast(x, (3, old, new, width), "bppf")
    whose = torch.arange(old).view(old, 1).expand(old, new).flatten()
    same = (whose[:, None] == whose).double()
    n = len(whose)
    if n > 1:
        copies = (same.sum() - n).item() / (n * (n - 1))
        assert out.correlations.positions == pytest.approx(copies + (1 - copies) * rho)
    assert (out.mean, out.second, out.correlations.examples) == (x.mean, x.second, 0.3)
    assert broadcast(out, out.shape, out.axes) is out


@given(st.sampled_from(["bpf", "pf", "f", ""]))
def test_along_new_dimensions_all_elements_are_the_same(axes: str) -> None:
    shape = tuple({"b": 4, "p": 5, "f": 6}[c] for c in axes)
    x = Signal(0.5, 1.5, shape, axes=axes)
    out = broadcast(x, (4, 5, 6), "bpf")
    for label, kind in (("b", "examples"), ("p", "positions"), ("f", "features")):
        assert getattr(out.correlations, kind) == (0.0 if label in axes else 1.0)
