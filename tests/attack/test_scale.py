"""What must not grow with the size of a model or the length of a run."""

import torch
from torch import nn

import unitvar
from tests.attack.scale import Pointwise
from unitvar.moments.signal import MOST_WORDS, Path


def test_a_path_keeps_the_latest_words_of_very_many() -> None:
    path = Path()
    for i in range(5 * MOST_WORDS):
        path = path.then(f"op {i}")
        assert len(path.words) <= MOST_WORDS
    assert path.words[0] == "…"
    assert path.words[1:] == tuple(f"op {i}" for i in range(5 * MOST_WORDS))[1 - len(path.words) :]


def test_a_thousand_ops_that_change_nothing_change_nothing_in_a_plan() -> None:
    x = torch.randn(2, 4)
    one, many = (unitvar.plan(nn.Sequential(Pointwise(count), nn.Linear(4, 4)), x) for count in (1, 1000))
    assert [layer.scale for layer in one.layers] == [layer.scale for layer in many.layers]
