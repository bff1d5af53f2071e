"""Small models of every family, each with an example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = tuple[nn.Module, Any]


def mlp() -> Model:
    layers: list[nn.Module] = [nn.Linear(64, 128)]
    for _ in range(6):
        layers += [nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 128)]
    return nn.Sequential(*layers), torch.randn(256, 64)


def vgg(circular: bool = False, width: int = 4) -> Model:
    """Hendrycks & Gimpel's: dropout 0.3 after conv 1, 0.4 after 3, 5, 6, 8, 9, 11, 12, 0.5 before the dense layers."""
    rates = {1: 0.3} | dict.fromkeys((3, 5, 6, 8, 9, 11, 12), 0.4)
    layers: list[nn.Module] = []
    channels, index = 3, 0
    for stage, convolutions in enumerate((2, 2, 3, 3, 3)):
        size = width * 2 ** min(stage, 3)
        for _ in range(convolutions):
            index += 1
            mode = "circular" if circular else "zeros"
            layers += [nn.Conv2d(channels, size, 3, padding=1, padding_mode=mode), nn.ReLU()]
            layers += [nn.Dropout(rates[index])] if index in rates else []
            channels = size
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Dropout(0.5), nn.Linear(channels, 8 * width), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, *head, nn.Linear(8 * width, 10)), torch.randn(16, 3, 32, 32)


class Residual(nn.Module):
    def __init__(self, width: int, norm: bool, stride: int = 1, before: int | None = None) -> None:
        super().__init__()
        before = before or width
        make: Callable[[int], nn.Module] = nn.BatchNorm2d if norm else (lambda _: nn.Identity())
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False), make(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), make(width),
        )  # fmt: skip
        plain = before == width and stride == 1
        self.skip = nn.Identity() if plain else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def resnet(norm: bool = True) -> Model:
    blocks = [Residual(16, norm), Residual(16, norm), Residual(32, norm, 2, 16), Residual(32, norm)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    first = [nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16) if norm else nn.Identity(), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*first, *blocks, *head), torch.randn(16, 3, 32, 32)


class Dense(nn.Module):
    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(before), nn.Conv2d(before, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, F.dropout(self.conv(F.relu(self.norm(x))), 0.2, self.training)), 1)


def densenet() -> Model:
    blocks = [Dense(16 + 12 * i, 12) for i in range(4)]
    tail = [nn.BatchNorm2d(64), nn.ReLU(), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, *tail), torch.randn(16, 3, 16, 16)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.middle = nn.Conv2d(32, 64, 3, padding=1)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 4, 2, 1)
        self.merge2, self.merge1 = nn.Conv2d(64, 32, 3, padding=1), nn.Conv2d(32, 16, 3, padding=1)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        c = F.dropout(F.relu(self.middle(F.max_pool2d(b, 2))), 0.3, self.training)
        b = F.relu(self.merge2(torch.cat((self.up2(c), b), 1)))
        return self.out(F.relu(self.merge1(torch.cat((self.up1(b), a), 1))))


def unet() -> Model:
    return UNet(), torch.randn(8, 3, 32, 32)


class Mixer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Patches(nn.Module):
    def __init__(self, width: int, *blocks: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def mixer() -> Model:
    return Patches(64, Mixer(64, 64), Mixer(64, 64)), torch.randn(8, 3, 32, 32)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.shrink(F.gelu(self.expand(y)))
        if self.training:
            keep = torch.rand(x.shape[0], 1, 1, 1) >= 0.1
            return x + y.permute(0, 3, 1, 2) * keep / 0.9
        return x + y.permute(0, 3, 1, 2)


def convnext() -> Model:
    blocks = [nn.Conv2d(3, 32, 4, 4), *(ConvNeXtBlock(32) for _ in range(3))]
    return nn.Sequential(
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(32), nn.Linear(32, 10)
    ), torch.randn(8, 3, 64, 64)


def vit() -> Model:
    layers = [nn.TransformerEncoderLayer(64, 4, 128, 0.1, "gelu", batch_first=True, norm_first=True) for _ in range(2)]
    return Patches(64, *layers), torch.randn(8, 3, 32, 32)


class LSTMClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 64, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(128, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0].mean(1))


def lstm() -> Model:
    return LSTMClassifier(), torch.randint(100, (16, 12))


def encoder() -> Model:
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(8, 12, 64)


def generator() -> Model:
    def up(a: int, b: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]

    first = [nn.ConvTranspose2d(32, 64, 4, 1, 0, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    return nn.Sequential(*first, *up(64, 32), *up(32, 16), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()), torch.randn(
        16, 32, 1, 1
    )


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class SwiGLU(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 128, bias=False), nn.Linear(width, 128, bias=False)
        self.down = nn.Linear(128, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (m(y).unflatten(-1, (4, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.blocks = nn.Sequential(SwiGLU(64), SwiGLU(64))
        self.norm, self.head = RMSNorm(64), nn.Linear(64, 100, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def swiglu() -> Model:
    return Decoder(), torch.randint(100, (8, 16))


PLAIN: dict[str, Callable[[], Model]] = {
    "MLP": mlp,
    "VGG": lambda: vgg(width=16),
    "ResNet": resnet,
    "ResNet without norm": lambda: resnet(norm=False),
    "DenseNet": densenet,
    "U-Net": unet,
    "GAN generator": generator,
    "ConvNeXt": convnext,
    "MLP-Mixer": mixer,
}
OTHER: dict[str, Callable[[], Model]] = {
    "ViT": vit,
    "LSTM classifier": lstm,
    "TransformerEncoder": encoder,
    "SwiGLU transformer": swiglu,
}
