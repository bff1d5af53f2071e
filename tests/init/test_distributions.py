"""The four distributions: norms, directions, and what they equal in special cases."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from torch import nn

from tests.init.fills import NAMES, RATES, generator
from unitvar import activation_moments, init
from unitvar.init import distributions


@given(st.integers(1, 40), st.integers(1, 40), RATES, NAMES, st.integers(0, 1000))
def test_rows_of_the_sphere_have_exactly_the_norm(out: int, fan_in: int, dropout: float, name: str, seed: int) -> None:
    w = init.sphere_(torch.empty(out, fan_in), name, dropout, generator=generator(seed))
    torch.testing.assert_close(w.norm(dim=1), torch.full((out,), init.gain(name, dropout)), rtol=1e-6, atol=0)


def test_rows_of_the_sphere_have_no_preferred_direction() -> None:
    w = init.sphere_(torch.empty(100_000, 3, dtype=torch.float64), gain=1.0, generator=generator())
    # On the sphere in three dimensions each coordinate is uniform on [-1, 1] (Archimedes).
    uniform = torch.rand(100_000, generator=generator(1)) * 2 - 1
    for column in w.T:
        assert ks_2samp(column.numpy(), uniform.numpy()).pvalue > 1e-3


def test_a_row_of_zeros_becomes_a_row_of_the_norm() -> None:
    """A normal draw in float32 is exactly zero now and then; a row of one such must not become NaN."""
    w = torch.tensor([[0.0], [2.0]])
    distributions._normalise_(w, (1,), 3.0)
    assert w.tolist() == [[3.0], [3.0]]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 1000))
def test_orthonormal_has_orthogonal_rows_or_columns_and_unit_mean_square_norm(
    rows: int, columns: int, seed: int
) -> None:
    gain = 1.3
    w = init.orthonormal_(torch.empty(rows, columns, dtype=torch.float64), gain=gain, generator=generator(seed))
    assert (w**2).sum(dim=1).mean().item() == pytest.approx(gain**2)
    product = w @ w.T if rows <= columns else w.T @ w
    scale = gain**2 * max(1, rows / columns)
    torch.testing.assert_close(product, scale * torch.eye(len(product), dtype=torch.float64))


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_orthonormal_is_haar(shape: tuple[int, int]) -> None:
    """Signs of QR left as they come would make the trace of a square matrix biased."""
    rows, columns = shape
    many = init.orthonormal_(torch.empty(4000 * rows, columns), gain=1.0, groups=4000, generator=generator())
    entries = many.view(4000, rows, columns)
    standard_error = entries.std(dim=0) / math.sqrt(len(entries))
    assert (entries.mean(dim=0).abs() < 5 * standard_error).all()


def test_normal_forward_relu_is_he() -> None:
    ours = init.normal_(torch.empty(400, 200), generator=generator(1))
    he = nn.init.kaiming_normal_(torch.empty(400, 200), nonlinearity="relu", generator=generator(2))
    assert ks_2samp(ours.flatten().numpy(), he.flatten().numpy()).pvalue > 1e-3


def test_uniform_paper_unknown_is_xavier() -> None:
    ours = init.uniform_(torch.empty(400, 200), None, mode="paper", generator=generator(1))
    xavier = nn.init.xavier_uniform_(torch.empty(400, 200), generator=generator(2))
    assert ks_2samp(ours.flatten().numpy(), xavier.flatten().numpy()).pvalue > 1e-3
    assert ours.abs().max().item() <= math.sqrt(6 / 600) * (1 + 1e-6)


def test_normal_and_uniform_in_paper_mode_weigh_the_backward_term_with_the_fans() -> None:
    w = init.normal_(torch.empty(1000, 250), "tanh", 0.5, mode="paper", generator=generator())
    m = activation_moments("tanh")
    expected = 1 / (250 / 0.5 * m.second + 0.5 * 1000 * m.slope)  # the paper's Discussion, over three
    assert w.var().item() == pytest.approx(expected, rel=5 * math.sqrt(2 / w.numel()))
    sphere = init.sphere_(torch.empty(1000, 250), "tanh", 0.5, mode="paper")
    assert sphere[0].norm().item() ** 2 == pytest.approx(1 / (m.second / 0.5 + 0.5 * m.slope))


def test_orthonormal_groups_are_orthogonal_each() -> None:
    w = init.orthonormal_(torch.empty(12, 4, 3), gain=1.0, groups=3)
    for group in w.flatten(1).split(4):
        torch.testing.assert_close(group @ group.T, torch.eye(4))
