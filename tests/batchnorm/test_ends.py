"""Where the data end: not where a dataset says StopIteration, and not in batches that one pass cannot normalise."""

import math
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import unitvar
from tests.attack.snapshot import differences, snapshot

# The run-time type checker draws random numbers itself.
pytestmark = pytest.mark.usefixtures("untyped")

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))


class Stops(Dataset[Tensor]):
    """A dataset that raises StopIteration at one example, as a reader of a broken file may."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        if index == 13:
            raise StopIteration
        return X[index]


class Stream(IterableDataset[Tensor]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Tensor]:
        return iter(X[: self.count])

    def __len__(self) -> int:
        return 24  # an estimate


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.BatchNorm1d(6))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_raises_stop_iteration_is_an_error_and_not_the_end_of_the_data(workers: int) -> None:
    model = network()
    before = snapshot(model)
    with pytest.raises(RuntimeError, match=r"StopIteration after 3 batches.*len\(batches\) is 6"):
        unitvar.reestimate_bn_(model, DataLoader(Stops(), batch_size=4, num_workers=workers))
    assert differences(before, snapshot(model)) == []


class Sized:
    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Tensor]:
        return iter(X[:12].split(4))


def test_fewer_batches_than_their_length_are_told_and_a_streams_length_is_an_estimate() -> None:
    with pytest.warns(UserWarning, match=r"ended after 3 batches, but len\(batches\) is 4"):
        unitvar.reestimate_bn_(network(), Sized())
    assert unitvar.reestimate_bn_(network(), DataLoader(Stream(20), batch_size=4)).batches == 5
    assert unitvar.reestimate_bn_(network(), Sized(), max_batches=2).batches == 2


def test_batches_of_one_value_name_the_method_that_is_exact_for_them() -> None:
    ones = list(X.split(1))
    with pytest.warns(UserWarning, match=r"BatchNorm '1' receives one value per channel.*method=\"sequential\""):
        report = unitvar.reestimate_bn_(network(), ones)
    assert 'method="sequential"' in str(report).replace("\n  ", " ")
    exact = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = unitvar.reestimate_bn_(exact, ones, method="sequential")
        unitvar.reestimate_bn_(nn.BatchNorm1d(6), ones)  # no layer comes after it
    assert "warning" not in str(report)
    with torch.no_grad():
        seen = exact.eval()[:4](X)
    torch.testing.assert_close(exact[4].running_var, seen.var(0))


@pytest.mark.parametrize("tolerance", [math.inf, math.nan, 0.0, -1.0])
def test_a_tolerance_must_be_a_finite_number_above_0(tolerance: float) -> None:
    with pytest.raises(ValueError, match=r"tolerance=.* is not a finite number above 0"):
        unitvar.reestimate_bn_(network(), [X], tolerance=tolerance)
