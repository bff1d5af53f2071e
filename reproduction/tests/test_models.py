"""models: as the papers describe them."""

import pytest
import torch
from torch import nn

from unitvar_reproduction import networks


@pytest.mark.parametrize(("depth", "growth", "millions"), [(40, 12, 1.0), (100, 12, 7.0)])
def test_densenets_have_the_papers_parameters(depth: int, growth: int, millions: float) -> None:
    with torch.device("meta"):
        model = networks.DenseNet(depth, growth, 0.2)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


def test_densenet_has_its_depth_and_no_dropout_after_the_first_convolution() -> None:
    model = networks.DenseNet(22, 8, 0.3)
    weights = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(weights) == 22
    assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == 20
    assert isinstance(model[0], nn.Conv2d)
    assert not isinstance(model[1], nn.Dropout)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_a_depth_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match=r"depth=20 is not 3 n \+ 4"):
        networks.DenseNet(20, 8, 0.3)


def test_mlp_has_a_batchnorm_and_a_dropout_a_layer() -> None:
    model = networks.mlp(64, 0.5, hidden=3)
    assert sum(isinstance(m, nn.BatchNorm1d) for m in model) == 3
    assert sum(isinstance(m, nn.Dropout) for m in model) == 3
    assert model(torch.randn(5, 1, 8, 8)).shape == (5, 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("p", [0.2, 0.5, 0.7])
def test_our_dropout_drops_as_often_as_it_says_in_any_precision(dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(0)
    n = 400_000
    out = networks.Dropout(p)(torch.ones(n, dtype=dtype))
    assert out.dtype == dtype
    kept = (out != 0).double().mean().item()
    assert abs(kept - (1 - p)) < 5 * (p * (1 - p) / n) ** 0.5
    assert out.max().item() == pytest.approx(1 / (1 - p), rel=torch.finfo(dtype).eps)
