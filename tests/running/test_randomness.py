"""Random state: noticing what was drawn, and putting it back."""

import random

import numpy as np
import numpy.random  # loaded on first use, and only what is loaded can be drawn from
import pytest
import torch
from torch import nn

from unitvar.running.randomness import RandomState, owned_generators, random_state_kept, same

# The run-time type checker draws random numbers itself, and refuses wrong types before the library can.
pytestmark = pytest.mark.usefixtures("untyped")


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)
        self.python, self.legacy = random.Random(3), np.random.RandomState(3)
        self.system = random.SystemRandom()  # has no state to put back
        self.numpy, self.twister = np.random.default_rng(3), np.random.Generator(np.random.MT19937(3))


DRAWS = {
    "torch": lambda owner: torch.rand(1),
    "python": lambda owner: random.random(),
    "numpy": lambda owner: np.random.rand(),
    "its own": lambda owner: torch.rand(1, generator=owner.generator),
    "its own, Python's": lambda owner: owner.python.random(),
    "its own, numpy's": lambda owner: owner.numpy.random(),
    "its own, numpy's with arrays in its state": lambda owner: owner.twister.random(),
    "its own, numpy's of old": lambda owner: owner.legacy.rand(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_random_state_notices_a_draw_and_undoes_it(draw) -> None:
    owner = Owner()
    with random_state_kept(owner) as before:
        first = draw(owner)
        assert not RandomState.read(owned_generators(owner)).same_as(before)
    assert RandomState.read(owned_generators(owner)).same_as(before)
    assert draw(owner) == first


def test_same_looks_inside_structures() -> None:
    a, b = torch.ones(2), torch.zeros(2)
    assert same({"x": (a, [a])}, {"x": (a.clone(), [a])})
    assert same(torch.tensor(torch.nan), torch.tensor(torch.nan))
    for other in ({"x": (a, [b])}, {"y": (a, [a])}, {"x": (a,)}):
        assert not same({"x": (a, [a])}, other)
