"""Forward rules: each against the op itself on random numbers."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from unitvar.moments.ops.simplex import softmax_moments

SHAPE = (64, 8, 12, 12)


OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool2d, padded": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3),
    "mean": lambda x: x.mean((2, 3), keepdim=True).expand_as(x),
    "amax": lambda x: x.amax((2, 3), keepdim=True).expand_as(x),
    "max": lambda x: x.max(3, keepdim=True)[0].expand_as(x),
    "sum of two": lambda x: x.relu() + x.tanh(),
    "product": lambda x: x * x.sigmoid(),
    "pad": lambda x: F.pad(x, (2, 2, 2, 2)),
    "layer_norm": lambda x: F.layer_norm(x, (12,)),
    "group_norm": lambda x: F.group_norm(3 * x + 1, 4),
    "instance_norm": lambda x: F.instance_norm(3 * x + 1),
    "glu": lambda x: F.glu(torch.cat([x, x.roll(1, 0)], 1), 1),
    "softmax": lambda x: x.softmax(-1) * 10,
    "amin": lambda x: x.relu().exp().amin((2, 3), keepdim=True).expand_as(x),
    "upsample": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x + 1, size=(20, 31), mode="bilinear", align_corners=True),
    "bilinear, smaller": lambda x: F.interpolate(x, size=(5, 7), mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=3, mode="bicubic"),
    "bicubic, smaller": lambda x: F.interpolate(x, size=(5, 7), mode="bicubic"),
    "trilinear": lambda x: F.interpolate(x.unsqueeze(2), scale_factor=2, mode="trilinear")[:, :, 0],
    "dropout2d": lambda x: F.dropout2d(x, 0.4),
    "alpha_dropout": lambda x: F.alpha_dropout(F.selu(x), 0.3, True),
    "where": lambda x: torch.where(x > 0.5, x, 0.1 * x),
    "clamp": lambda x: x.clamp(-1, 2),
    "slices": lambda x: x[:, :4] * x[:, 4:],
    "hardswish": F.hardswish,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.3])),
    "norm": lambda x: x.norm(dim=1, keepdim=True).expand_as(x),
    "norm of order 1": lambda x: x.norm(p=1, dim=1, keepdim=True).expand_as(x),
    "largest modulus": lambda x: torch.linalg.vector_norm(x, float("inf"), 1, keepdim=True).expand_as(x),
    "logsumexp": lambda x: (3 * x).logsumexp(1, keepdim=True).expand_as(x),
    "log_softmax": lambda x: (3 * x + 1).log_softmax(1),
    "tril": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(1),
    "std": lambda x: x / x.std((1, 2, 3), keepdim=True),
}


class Before(nn.Module):
    """The op, then a weight that says what reached it."""

    def __init__(self, op: Callable[[Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.op, self.conv = op, nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.op(x))


@pytest.mark.parametrize("name", OPS)
def test_a_rule_gives_what_the_op_does(name: str) -> None:
    torch.manual_seed(0)
    op = OPS[name]
    x = torch.randn(SHAPE)
    y = torch.stack([op(torch.randn(SHAPE)) for _ in range(4)]).double()
    (layer,) = unitvar.plan(Before(op, y.shape[2]), x)
    assert layer.mean == pytest.approx(y.mean().item(), abs=0.02, rel=0.02)
    # A mean over 144 positions leaves 2048 numbers, whose square is known to 3 %.
    assert layer.second == pytest.approx(y.square().mean().item(), rel=0.12 if name == "mean" else 0.04)


@pytest.mark.parametrize("var", [0.3, 30.0, 300.0, 900.0])
@pytest.mark.parametrize("count", [3, 50])
def test_moments_of_a_softmax_are_those_that_are_drawn(var: float, count: int) -> None:
    """Of scores far apart, too, where one takes all."""
    torch.manual_seed(0)
    a = (torch.randn(100_000, count, dtype=torch.float64) * math.sqrt(var)).softmax(1)
    squares = a.square().sum(1)
    slopes = (a.square() * (1 - 2 * a + squares[:, None])).sum(1)
    for drawn, expected in zip((squares, slopes), softmax_moments(var, count), strict=True):
        assert abs(float(drawn.mean()) - expected) < 5 * float(drawn.std()) / len(drawn) ** 0.5 + 0.01 * expected
