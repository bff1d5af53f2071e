"""Random networks with dropout, one image each; ``python -m tests.expectation.fuzz`` has more, and compares them."""

import pytest
import torch

import unitvar
from tests.composition.random_graphs import seeded
from tests.expectation.fuzz import network, sound

# Attention, norms, channel dropout before convolutions, gates and pools.
SEEDS = (0, 1, 111, 177, 220, 280)


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_are_sound_and_the_same_in_every_precision(seed: int) -> None:
    """Batches of one; float64 is what float32 says to its accuracy, bfloat16 to its own."""
    description = seeded(seed)
    with torch.no_grad():
        single, double, half = (
            unitvar.expect(*network(description, dtype)) for dtype in (torch.float32, torch.float64, torch.bfloat16)
        )
    assert single.methods
    assert sound(single)
    assert sound(double)
    assert sound(half)
    deviation = double.var.mean().sqrt()
    assert (single.mean - double.mean).abs().max() < 1e-3 * deviation
    torch.testing.assert_close(single.var.double(), double.var, rtol=1e-3, atol=1e-6 * float(deviation) ** 2)
    torch.testing.assert_close(half.var.mean().double(), double.var.mean(), rtol=0.1, atol=0)
