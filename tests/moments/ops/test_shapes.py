"""Triangles and padding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unitvar.moments import RULES, Correlation, Moments


@given(st.integers(1, 9), st.integers(1, 9), st.integers(-9, 9))
def test_a_triangle_keeps_its_share(rows: int, columns: int, diagonal: int) -> None:
    x, ones = Moments(0.0, 1.0, (rows, columns)), torch.ones(rows, columns)
    for name in ("tril", "triu"):
        rule, share = RULES[f"aten.{name}"], getattr(ones, name)(diagonal).mean().item()
        assert rule.forward(x, diagonal).second == pytest.approx(share)
        assert rule.backward is not None
        assert rule.backward(x, diagonal) == pytest.approx(share)


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(0, 1))
def test_a_padded_value_is_shared_by_all_positions(level: float, value: float, common: float) -> None:
    """Half of the positions are c + e of their own, half are the value: E y_i y_j = E (c / 2 + value / 2)²."""
    x = Moments(level, level**2 + 1, (1, 4, 1), correlation=Correlation(positions=common))
    exact = (level**2 + common + 2 * level * value + value**2) / 4
    assert RULES["aten.constant_pad_nd"].forward(x, [0, 0, 2, 2], value).pair("positions") == pytest.approx(exact)
