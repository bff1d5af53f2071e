"""What the tests of the initialisers share."""

import pytest
import torch
from hypothesis import strategies as st

from unitvar import init

INITIALISERS = [init.sphere_, init.orthonormal_, init.normal_, init.uniform_]


each = pytest.mark.parametrize("fill_", INITIALISERS, ids=lambda f: f.__name__)


RATES = st.floats(0, 0.95)


NAMES = st.sampled_from(["relu", "tanh", "elu", "gelu", "selu", "identity"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
