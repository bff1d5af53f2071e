"""Convolutional families, at any size; each maker returns a model and an example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unitvar_reproduction import networks
from unitvar_reproduction.networks.convolution import ChannelNorm

__all__ = ["Model", "convnext", "densenet", "generator", "resnet", "unet", "vgg"]

Model: TypeAlias = tuple[nn.Module, Any]


def images(batch: int, side: int, channels: int = 3) -> Tensor:
    """Draw standard normal images."""
    return torch.randn(batch, channels, side, side)


def vgg(width: int = 64, *, circular: bool = False, batch: int = 16) -> Model:
    """Build Hendrycks & Gimpel's."""
    return networks.vgg(width, padding="circular" if circular else "zeros"), images(batch, 32)


class Residual(nn.Module):
    """He et al.'s block: two 3x3 convolutions, or 1x1, 3x3, 1x1 with four times the channels after the last."""

    def __init__(self, before: int, width: int, stride: int, *, norm: bool, bottleneck: bool) -> None:
        super().__init__()
        after = 4 * width if bottleneck else width
        first = _conv(before, width, 1, 1, norm) if bottleneck else _conv(before, width, 3, stride, norm)
        middle = [*_conv(width, width, 3, stride, norm), nn.ReLU(inplace=True)] if bottleneck else []
        last = _conv(width, after, 1 if bottleneck else 3, 1, norm)
        self.body = nn.Sequential(*first, nn.ReLU(inplace=True), *middle, *last)
        plain = before == after and stride == 1
        self.skip = nn.Identity() if plain else nn.Sequential(*_conv(before, after, 1, stride, norm))

    def forward(self, x: Tensor) -> Tensor:
        """Add the body to the shortcut."""
        return F.relu(self.body(x) + self.skip(x), inplace=True)


def _conv(before: int, after: int, kernel: int, stride: int, norm: bool) -> list[nn.Module]:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(after)] if norm else [conv]


def resnet(
    blocks: Sequence[int] = (3, 4, 6, 3),
    width: int = 64,
    *,
    norm: bool = True,
    bottleneck: bool = True,
    side: int = 224,
    batch: int = 4,
) -> Model:
    """Build a ResNet; the default is ResNet-50."""
    small = side < 64  # CIFAR's have a 3x3 stem
    layers = [*_conv(3, width, 3 if small else 7, 1 if small else 2, norm), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            size, stride = width * 2**stage, 2 if stage and not block else 1
            layers.append(Residual(channels, size, stride, norm=norm, bottleneck=bottleneck))
            channels = 4 * size if bottleneck else size
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers, *head), images(batch, side)


def densenet(depth: int = 40, growth: int = 12, *, side: int = 32, batch: int = 16) -> Model:
    """Build the paper's DenseNet."""
    from unitvar_reproduction.networks.architectures import DenseNet

    return DenseNet(depth, growth, dropout=0.2), images(batch, side)


class UNet(nn.Module):
    """Ronneberger et al.'s: convolutions and pools down, transposed convolutions and shortcuts up."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(levels + 1)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        # Both kinds of kernel that people use: one that tiles, and one that overlaps.
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * n, n, *((2, 2) if i % 2 else (4, 2, 1))) for i, n in enumerate(sizes[:-1])
        )
        self.merge = nn.ModuleList(_twice(2 * n, n) for n in sizes[:-1])
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Go down, then up."""
        levels = []
        for i, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if i else x)
            levels.append(x)
        x = F.dropout(levels.pop(), 0.3, self.training)
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            x = merge(torch.cat((up(x), levels.pop()), 1))
        return self.out(x)  # type: ignore[no-any-return]


def _twice(before: int, after: int) -> nn.Sequential:
    convs = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
    return nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU())


def unet(width: int = 64, levels: int = 4, *, side: int = 128, batch: int = 2) -> Model:
    """Build a U-Net."""
    return UNet(width, levels), images(batch, side)


class ConvNeXtBlock(nn.Module):
    """Liu et al.'s: depthwise 7x7, norm, an inverted bottleneck with GELU, layer scale and stochastic depth."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), scale))

    def forward(self, x: Tensor) -> Tensor:
        """Add the block, or nothing at all, one time in ten in training."""
        normed = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y: Tensor = (self.gamma * self.shrink(F.gelu(self.expand(normed)))).permute(0, 3, 1, 2)
        if not self.training:
            return x + y
        keep = torch.rand(x.shape[0], 1, 1, 1, device=x.device) >= 0.1
        return x + y * keep / 0.9


def convnext(
    blocks: Sequence[int] = (3, 3, 9, 3), width: int = 96, *, scale: float = 1e-6, side: int = 224, batch: int = 4
) -> Model:
    """Build a ConvNeXt; the default is ConvNeXt-T."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), ChannelNorm(width)]
    for stage, count in enumerate(blocks):
        size = width * 2**stage
        layers += [ChannelNorm(size // 2), nn.Conv2d(size // 2, size, 2, 2)] if stage else []
        layers += [ConvNeXtBlock(size, scale) for _ in range(count)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(size), nn.Linear(size, 1000)]
    return nn.Sequential(*layers, *head), images(batch, side)


def generator(width: int = 64, ups: int = 3, *, latent: int = 100, batch: int = 16) -> Model:
    """Build DCGAN's generator."""
    channels = width * 2**ups
    layers: list[nn.Module] = [nn.ConvTranspose2d(latent, channels, 4, 1, 0, bias=False)]
    for _ in range(ups):
        layers += [nn.BatchNorm2d(channels), nn.ReLU(True)]
        layers.append(nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1, bias=False))
        channels //= 2
    layers += [nn.BatchNorm2d(channels), nn.ReLU(True), nn.ConvTranspose2d(channels, 3, 4, 2, 1), nn.Tanh()]
    return nn.Sequential(*layers), images(batch, 1, latent)
