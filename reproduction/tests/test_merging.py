"""Merged networks: a permutation changes no function, and every merged network is judged in every way."""

import torch

from unitvar_reproduction import networks
from unitvar_reproduction.experiments.merging import STATISTICS, WEIGHTS, Trial, mean_of, permuted, run_trial


def test_a_permuted_network_is_the_same_function_and_finds_its_own_units() -> None:
    torch.manual_seed(0)
    images = torch.randn(200, 1, 8, 8)
    one, two = (networks.mlp(64, 0.5).train() for _ in range(2))
    for model in (one, two):
        model(images)  # statistics that differ from unit to unit
    moved = permuted(two, one, images)
    assert not torch.equal(moved[1].weight, two[1].weight)
    assert torch.allclose(moved.eval()(images), two.eval()(images), atol=1e-5)
    # Matched back to the original, every unit finds its place.
    assert torch.equal(permuted(moved, two, images)[1].weight, two[1].weight)
    assert torch.equal(mean_of(two, two)[1].weight, two[1].weight)


def test_every_merged_network_is_judged_in_every_way() -> None:
    found = run_trial(Trial(seed=0, epochs=2, dropout=0.2))["measured"]
    assert tuple(found) == WEIGHTS
    assert all(tuple(ways) == STATISTICS for ways in found.values())
