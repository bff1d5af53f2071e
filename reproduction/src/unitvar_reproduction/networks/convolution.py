"""Small convolutional networks, each as it is usually built and with its usual dropout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unitvar_reproduction.networks.architectures import ACTIVATIONS

__all__ = ["ChannelNorm", "ConvNeXt", "DropPath", "ResNet", "UNet", "plain_cnn"]


def plain_cnn(width: int, activation: str, dropout: float, *, classes: int = 10) -> nn.Sequential:
    """Build eight convolutions without norms or shortcuts, dropout after each, as in the paper's VGG, and a head."""
    layers: list[nn.Module] = []
    channels = 3
    for stage, count in enumerate((2, 3, 3)):
        for _ in range(count):
            size = width * 2**stage
            layers += [nn.Conv2d(channels, size, 3, padding=1), ACTIVATIONS[activation](), nn.Dropout(dropout)]
            channels = size
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * channels, classes))


class ResidualBlock(nn.Module):
    """He et al.'s basic block with BatchNorm, and Zagoruyko & Komodakis' dropout between its convolutions."""

    def __init__(self, before: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.drop = nn.Dropout(dropout)
        plain = before == width and stride == 1
        conv = nn.Conv2d(before, width, 1, stride, bias=False)
        self.skip = nn.Identity() if plain else nn.Sequential(conv, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        branch = self.drop(F.relu(self.norm1(self.conv1(x))))
        return F.relu(self.skip(x) + self.norm2(self.conv2(branch)))


class ResNet(nn.Sequential):
    """A ResNet for 16x16 images: three stages of some blocks."""

    def __init__(self, width: int, blocks: int, dropout: float, *, classes: int = 10) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
        for stage in range(3):
            for block in range(blocks):
                size = width * 2**stage
                layers.append(ResidualBlock(channels, size, 2 if stage and not block else 1, dropout))
                channels = size
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class DropPath(nn.Module):
    """Stochastic depth: a branch of an example is dropped whole."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Drop and scale in training, else return x."""
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(x.shape[0], *[1] * (x.dim() - 1), device=x.device) >= self.rate
        return x * keep / (1 - self.rate)


class ConvNeXtBlock(nn.Module):
    """Liu et al.'s: depthwise 7x7, norm, an inverted bottleneck with GELU, layer scale, stochastic depth."""

    def __init__(self, width: int, scale: float, rate: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.start, self.end = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), scale))
        self.drop = DropPath(rate)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        branch = self.gamma * self.end(F.gelu(self.start(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))))
        return x + self.drop(branch.permute(0, 3, 1, 2))  # type: ignore[no-any-return]


class ChannelNorm(nn.LayerNorm):
    """A LayerNorm over channels that come second."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Sequential):
    """A ConvNeXt for 16x16 images, in two stages; layer scale 1e-6 as in the paper."""

    def __init__(
        self, width: int, blocks: Sequence[int], rate: float, *, scale: float = 1e-6, classes: int = 10
    ) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, width, 2, 2), ChannelNorm(width)]
        size, rates = width, iter(torch.linspace(0, rate, sum(blocks)).tolist())
        for stage, count in enumerate(blocks):
            size = width * 2**stage
            layers += [ChannelNorm(size // 2), nn.Conv2d(size // 2, size, 2, 2)] if stage else []
            layers += [ConvNeXtBlock(size, scale, next(rates)) for _ in range(count)]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(size), nn.Linear(size, classes)]
        super().__init__(*layers, *head)


class UNet(nn.Module):
    """Ronneberger et al.'s with two levels: dropout at the bottom, one score a pixel."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip((3, *sizes), sizes, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, 2) for n in sizes[:-1])
        self.merge = nn.ModuleList(_twice(2 * n, n) for n in sizes[:-1])
        self.drop = nn.Dropout(dropout)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Go down, then up; return the scores [N, H, W]."""
        levels = []
        for i, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if i else x)
            levels.append(x)
        x = self.drop(levels.pop())
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            x = merge(torch.cat((levels.pop(), up(x)), 1))
        return self.head(x).squeeze(1)  # type: ignore[no-any-return]


def _twice(before: int, after: int) -> nn.Sequential:
    first, second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
