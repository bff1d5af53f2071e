"""Blocks that the first engine got wrong in whole networks: gates of pooled signals, windows, cosines, covariances.

The bound is 15 % and five standard errors: a gate for each channel is one number that all positions share, and a cosine
is a ratio of two sums; both are known to first order in 1/width.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from tests.composition.spelling import assert_as_predicted, assert_gradients_as_predicted, white

WIDTH, SIDE, HEADS = 64, 8, 4
IMAGES, LAST = (8, WIDTH, SIDE, SIDE), (4, SIDE, SIDE, WIDTH)  # channels first, channels last


class Excited(nn.Module):
    """An inverted bottleneck with a squeeze-and-excite gate, as in EfficientNet."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        wide = 2 * WIDTH

        def normed() -> nn.Module:
            return nn.BatchNorm2d(wide) if norm else nn.Identity()

        self.expand, self.a = nn.Conv2d(WIDTH, wide, 1, bias=False), normed()
        self.depthwise, self.b = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), normed()
        self.squeeze, self.excite = nn.Conv2d(wide, 32, 1), nn.Conv2d(32, wide, 1)
        self.project = nn.Conv2d(wide, WIDTH, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.b(self.depthwise(F.silu(self.a(self.expand(x))))))
        gate = torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.project(y * gate)


class Windowed(nn.Module):
    """Attention in 4 x 4 windows with a learnt bias for relative positions, as in Swin and MaxViT."""

    def __init__(self, grid: bool = False) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(0.02 * torch.randn(49, HEADS))
        place = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = place[:, :, None] - place[:, None, :] + 3
        self.register_buffer("index", apart[0] * 7 + apart[1])
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        shape, order = ((b, h // 4, 4, w // 4, 4, c), (0, 1, 3, 2, 4, 5))
        if self.grid:
            shape, order = (b, 4, h // 4, 4, w // 4, c), (0, 2, 4, 1, 3, 5)
        windows = self.norm(x).view(shape).permute(order).reshape(-1, 16, c)
        q, k, v = self.qkv(windows).view(-1, 16, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (c // HEADS) ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.bias[self.index.view(-1)].view(16, 16, HEADS).permute(2, 0, 1)
        y = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c))
        back = [order.index(i) for i in range(6)]
        return x + y.view([shape[i] for i in order]).permute(back).reshape(b, h, w, c)


class Cosine(nn.Module):
    """Cosine attention with a learnt temperature, as in Swin v2."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.logit_scale = nn.Parameter(torch.full((HEADS, 1, 1), math.log(10)))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.logit_scale.clamp(max=4.6).exp()
        return x + self.norm(self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))


class Covariance(nn.Module):
    """Attention between channels, as in XCiT."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.temperature = nn.Parameter(torch.ones(HEADS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 4, 1)
        weights = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.temperature).softmax(-1)
        return x + self.out((weights @ v).permute(0, 3, 1, 2).flatten(2))


class Levit(nn.Module):
    """Attention with narrow keys, wide values and a Hardswish before the projection, as in LeViT."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, HEADS * (8 + 8 + 32)), nn.Linear(HEADS * 32, WIDTH)
        self.a, self.b = nn.BatchNorm1d(HEADS * 48), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(self.qkv(x).flatten(0, 1)).view_as(self.qkv(x))
        q, k, v = y.unflatten(-1, (HEADS, -1)).transpose(1, 2).split([8, 8, 32], -1)
        y = ((q @ k.mT * 8**-0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
        y = self.out(F.hardswish(y))
        return x + self.b(y.flatten(0, 1)).view_as(x)


class Patches(nn.Module):
    """Attention between the same place of all patches, unfolded and folded again, as in MobileViT."""

    def __init__(self) -> None:
        super().__init__()
        self.local, self.q, self.k, self.v, self.out = (
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            *(nn.Linear(WIDTH, WIDTH) for _ in range(4)),
        )
        self.fuse = nn.Conv2d(2 * WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = F.silu(self.local(x))
        y = y.reshape(b * c * h // 2, 2, w // 2, 2).transpose(1, 2)
        y = y.reshape(b, c, h * w // 4, 4).transpose(1, 3).reshape(b * 4, h * w // 4, c)
        y = y + self.out(F.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y)))
        y = y.view(b, 4, h * w // 4, c).transpose(1, 3).reshape(b * c * h // 2, w // 2, 2, 2)
        y = y.transpose(1, 2).reshape(b, c, h, w)
        return self.fuse(torch.cat((x, y), 1))


class Standardised(nn.Conv2d):
    """A convolution whose forward pass standardises its weight, as in NF-ResNets."""

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True, correction=0)
        fan_in = self.weight[0].numel()
        return F.conv2d(x, (self.weight - mean) / (variance * fan_in + 1e-8).sqrt(), self.bias, padding=1)


def after_relu(*blocks: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), *blocks)


BLOCKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "squeeze-and-excite": (lambda: nn.Sequential(*(Excited(False) for _ in range(3))), IMAGES),
    "squeeze-and-excite, normed": (lambda: nn.Sequential(*(Excited(True) for _ in range(3))), IMAGES),
    "windows": (lambda: nn.Sequential(Windowed(), Windowed(), nn.Linear(WIDTH, WIDTH)), LAST),
    "grid": (lambda: nn.Sequential(Windowed(True), nn.Linear(WIDTH, WIDTH)), LAST),
    "cosine": (lambda: after_relu(Cosine(), Cosine()), (8, 16, WIDTH)),
    "covariance": (lambda: after_relu(Covariance(), Covariance()), (8, 64, WIDTH)),
    "hardswish": (lambda: after_relu(Levit(), Levit()), (8, 16, WIDTH)),
    "patches": (lambda: nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 1), nn.ReLU(), Patches(), nn.SiLU(), Patches()), IMAGES),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_what_a_block_gives_is_what_was_predicted(kind: str) -> None:
    build, shape = BLOCKS[kind]
    assert_as_predicted(build, white(*shape), draws=8, tolerance=0.15)


@pytest.mark.parametrize("kind", ["squeeze-and-excite", "windows"])
def test_gradients_in_a_block_are_what_was_predicted(kind: str) -> None:
    build, shape = BLOCKS[kind]
    assert_gradients_as_predicted(build, white(*shape), draws=8, tolerance=0.25)


def test_weights_that_the_forward_pass_standardises_are_left_alone_with_a_reason() -> None:
    """Their scale has no effect; what follows them is still what was predicted."""

    def build() -> nn.Module:
        first, second = Standardised(32, 64, 3), Standardised(64, 64, 3)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 1))

    plan = unitvar.plan(build(), torch.zeros(1, 32, 8, 8))
    assert [layer.name for layer in plan] == ["4.weight", "6.weight"]
    assert {"0.weight", "2.weight"} <= set(plan.skipped)
    reason = plan.skipped["2.weight"]
    assert any(word in reason for word in ("standardis", "normalis", "no effect")), reason
    assert_as_predicted(build, white(8, 32, 8, 8), draws=8)
