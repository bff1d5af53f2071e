"""Dropouts."""

import pytest
import torch
from torch import nn

import unitvar


@pytest.mark.parametrize("layer", [nn.AlphaDropout(1.0), nn.FeatureAlphaDropout(1.0)])
def test_an_alpha_dropout_of_everything_leaves_zeros(layer: nn.Module) -> None:
    assert not layer(torch.ones(4, 4, 4)).any()
    for mode in ("forward", "backward"):
        plan = unitvar.plan(nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 4)), torch.zeros(4, 4, 4), mode=mode)
        assert "its input is always 0" in plan.skipped["2.weight"]
