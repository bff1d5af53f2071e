"""Bags of embeddings."""

import pytest
import torch
from torch import nn

import unitvar
from tests.moments.models import Body


@pytest.mark.parametrize(("mode", "tolerance"), [("sum", 0.05), ("mean", 0.05), ("max", 0.1)])
@pytest.mark.parametrize("offsets", [False, True])
def test_bags_of_embeddings(mode: str, tolerance: float, offsets: bool) -> None:
    bag = nn.EmbeddingBag(2000, 32, mode=mode)
    tokens = torch.randint(2000, (400, 6))
    example = (tokens.flatten(), torch.arange(0, 2400, 6)) if offsets else (tokens,)
    layer = unitvar.plan(Body(bag, 32), example)["head.weight"]
    with torch.no_grad():
        assert layer.second == pytest.approx(bag(*example).square().mean().item(), rel=tolerance)
    assert layer.path == "embedding"
