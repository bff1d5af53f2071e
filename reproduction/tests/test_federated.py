"""Federated statistics: merged equals pooled, and a layer at a time equals sequential."""

import pytest

from unitvar_reproduction import data
from unitvar_reproduction.experiments.federated import MERGED, POOLED, VARIANTS, Trial, clients_of, run_trial


def test_clients_are_skewed_and_have_everything_once() -> None:
    training, _ = data.digits(0)
    parts = clients_of(training, 10)
    assert sum(map(len, parts)) == len(training)
    assert max(len(part.labels.unique()) for part in parts) <= 4
    assert sorted(x.sum().item() for part in parts for x in part.images) == pytest.approx(
        sorted(x.sum().item() for x in training.images)
    )


def test_merged_is_pooled_and_layer_by_layer_is_sequential() -> None:
    found = run_trial(Trial(seed=0, rounds=1, clients=3, dropout=0.2))
    assert tuple(found["measured"]) == (VARIANTS[0], MERGED, POOLED, *VARIANTS[3:])
    assert found["measured"][MERGED] == pytest.approx(found["measured"][POOLED])
    assert found["deviation"]["merged"] < 1e-6
    assert found["deviation"]["a layer at a time"] < 1e-5
