"""Table 1: the paper's digits, and its errata."""

import pytest

from unitvar_reproduction.experiments.table1 import rows
from unitvar_reproduction.values import TABLE1


def test_the_second_moments_of_the_paper_hold_to_every_digit() -> None:
    assert all(row.second_agrees for row in rows())


def test_exactly_the_known_slopes_are_wrong() -> None:
    assert [row.name for row in rows() if not row.slope_agrees] == ["gelu", "tanh", "elu"]
    assert all(bool(row.erratum) != row.slope_agrees for row in rows())


def test_the_printed_tanh_is_the_square_of_the_right_one() -> None:
    (tanh,) = (row for row in rows() if row.name == "tanh")
    assert tanh.slope == pytest.approx(0.4644, abs=5e-5)
    assert tanh.slope**2 == pytest.approx(tanh.paper_slope, abs=5e-4)


def test_the_table_has_the_papers_rows_in_its_order() -> None:
    assert [(p.name, p.second, p.slope) for p in TABLE1] == [
        ("identity", 1, 1),
        ("relu", 0.5, 0.5),
        ("gelu", 0.425, 0.444),
        ("tanh", 0.394, 0.216),
        ("elu", 0.645, 0.671),
    ]
