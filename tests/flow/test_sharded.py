"""measure and watch on a model sharded over 2 or 4 ranks, against the same model in one process."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.flow.ranks import SPLIT, reports, steps
from tests.planning.ranks import EXAMPLE, built
from tests.planning.test_sharded import ranks as ranks  # the same processes serve both


def assert_close(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]], *, rel: float = 1e-4) -> None:
    assert [row.keys() for row in found] == [row.keys() for row in expected]
    for row, other in zip(found, expected, strict=True):
        for key, value in other.items():
            if isinstance(value, float):
                assert row[key] == pytest.approx(value, rel=rel, abs=1e-9, nan_ok=True), (row["name"], key)
            else:
                assert row[key] == value, key


def sums_drawn_on_shards(name: str) -> bool:
    """Say whether each rank draws masks for its own part of a layer, which no single process can draw."""
    return name in ("tensor parallel", "both")


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_every_rank_measures_what_the_unsharded_model_shows(ranks: list[dict[str, Any]], rate: float) -> None:
    """The same batch on all ranks, forward, backward, predicted, shares; with the same masks where it draws them."""
    expected = reports(built(), EXAMPLE)[f"dropout {rate}"]
    assert any(row["predicted_gradient"] for row in expected)
    for rank in ranks:
        found = rank["flow"]["measured"][f"dropout {rate}"]
        if rate and sums_drawn_on_shards(rank["way"]):
            assert [row["name"] for row in found] == [row["name"] for row in expected]
            predicted = [{k: v for k, v in row.items() if "predicted" in k} for row in expected]
            assert_close([{k: row[k] for k in p} for row, p in zip(found, predicted, strict=True)], predicted)
        else:
            assert_close(found, expected)


def test_of_split_batches_the_mean_over_ranks_is_that_of_the_whole(ranks: list[dict[str, Any]]) -> None:
    """Each rank counts its own examples: of equally many, E z² and E g² average to those of all examples."""
    if sums_drawn_on_shards(ranks[0]["way"]):
        pytest.skip("ranks of one tensor-parallel group must have the same examples")
    expected = reports(built(), EXAMPLE)[SPLIT]
    for i, row in enumerate(expected):
        for key in ("mean", "variance", "gradient"):
            mean = sum(rank["flow"]["measured"][SPLIT][i][key] for rank in ranks) / len(ranks)
            assert mean == pytest.approx(row[key], rel=1e-4), (row["name"], key)


def test_the_model_comes_out_as_it_went_in(ranks: list[dict[str, Any]]) -> None:
    """Also after a failure: the same parameter and gradient objects, the same bits, the same random state."""
    for rank in ranks:
        assert all(rank["flow"][key] for key in ("random", "failed", "same", "equal"))


def test_watching_shows_the_unsharded_training_and_does_not_change_it(ranks: list[dict[str, Any]]) -> None:
    """Norms of gradients and updates are those of whole weights."""
    expected, outputs = steps(built(), EXAMPLE)
    assert all(row["update_ratio"] and row["weight_gradient_norm"] for row in expected)
    for rank in ranks:
        assert_close(rank["flow"]["watched"], expected)
        assert all(map(torch.equal, rank["flow"]["trained"], rank["flow"]["unwatched"]))
        assert all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(rank["flow"]["trained"], outputs, strict=True)
        )
