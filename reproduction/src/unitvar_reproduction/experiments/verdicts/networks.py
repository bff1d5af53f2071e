"""The networks that are judged: families that people train, and the ways to build one that cannot be trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from zoo import convolutional, sequence
from zoo.sequence import SwiGLU

__all__ = ["BUILT_TO_FAIL", "FAMILIES", "GRADED", "Spec"]

LEVELS, PIXELS = 17, 32  # of the middle four rows of the 8x8 digits


@dataclass(frozen=True)
class Spec:
    """A network and what it is trained on.

    Attributes:
        build: makes it, with its weights.
        task: "rows" (64 numbers), "images" (3x16x16), "tokens" (32 levels of grey, classified) or "next" (the same,
            each predicted from those before it).
    """

    build: Callable[[], nn.Module]
    task: str


def dense(
    depth: int, width: int = 128, *, act: type[nn.Module] = nn.ReLU, dropout: float = 0.0, norm: bool = False
) -> nn.Sequential:
    """Build dense layers."""
    layers: list[nn.Module] = []
    for i in range(depth - 1):
        layers += [nn.Linear(64 if i == 0 else width, width), *([nn.BatchNorm1d(width)] if norm else []), act()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(width, 10))


def conv(depth: int, width: int = 16, *, norm: bool = False) -> nn.Sequential:
    """Build plain convolutions, a global average and a head."""
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Conv2d(3 if i == 0 else width, width, 3, padding=1)]
        layers += [*([nn.BatchNorm2d(width)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Tokens(nn.Module):
    """An embedding, a body over tokens, a head on their mean or on each of them, tied to the embedding if asked."""

    def __init__(self, body: nn.Module, width: int, outputs: int, *, each: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(LEVELS, width), nn.Parameter(torch.randn(PIXELS, width) * 0.02)
        self.body, self.each, self.norm = body, each, nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs, bias=not tied)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Score."""
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        x = self.norm(self.body(x))
        return self.head(x if self.each else x.mean(1))  # type: ignore[no-any-return]


class Causal(nn.Module):
    """Pre-norm transformer blocks with a causal mask."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
            for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens before."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for block in self.blocks:
            x = block(x, mask)
        return x


class LSTM(nn.Module):
    """All states of an LSTM: a tagger's body."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Read from left to right."""
        return self.lstm(x)[0]  # type: ignore[no-any-return]


class Residual(nn.Module):
    """x + f(x), without norms."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(64, width), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(nn.Sequential(nn.ReLU(), nn.Linear(width, width)) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """Add branch after branch."""
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)  # type: ignore[no-any-return]


def gpt(std: float, width: int = 64, blocks: int = 2) -> nn.Module:
    """Build a small GPT, its head tied to an embedding of the given standard deviation."""
    model = Tokens(Causal(width, blocks), width, LEVELS, each=True, tied=True)
    nn.init.normal_(model.embed.weight, std=std)
    return model


def _zoo(make: Callable[[], tuple[nn.Module, object]]) -> nn.Module:
    return make()[0]


def filled(build: Callable[[], nn.Module], fill: Callable[[Tensor], object], bias: float = 0.0) -> nn.Module:
    """Build a network, fill its weights and set its biases."""
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            _ = fill(parameter) if parameter.dim() > 1 else parameter.fill_(bias)
    return model


def scaled(gain: float) -> Callable[[Tensor], object]:
    """Draw weights of variance gain² / fan-in."""
    return lambda w: nn.init.normal_(w, std=gain / math.sqrt(w[0].numel()))


def loud(build: Callable[[], nn.Module], factor: float) -> nn.Module:
    """Multiply the last weight of a network."""
    model = build()
    last = [p for p in model.parameters() if p.dim() > 1][-1]
    last.data.mul_(factor)
    return model


def encoder() -> nn.Module:
    """Build torch's own encoder: norms after the sums."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
    return Tokens(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), 64, 10)


FAMILIES: dict[str, Spec] = {
    "MLP": Spec(partial(dense, 4, dropout=0.2), "rows"),
    "MLP, tanh": Spec(partial(dense, 5, act=nn.Tanh), "rows"),
    "MLP, BatchNorm": Spec(partial(dense, 8, norm=True, dropout=0.2), "rows"),
    "CNN": Spec(partial(conv, 4), "images"),
    "CNN, BatchNorm": Spec(partial(conv, 8, norm=True), "images"),
    "ResNet, BatchNorm": Spec(
        partial(_zoo, partial(convolutional.resnet, (2, 2, 2), 8, bottleneck=False, side=16)), "images"
    ),
    "DenseNet": Spec(partial(_zoo, partial(convolutional.densenet, 10, side=16)), "images"),
    "ConvNeXt": Spec(partial(_zoo, partial(convolutional.convnext, (1, 2), 16, scale=0.1, side=16)), "images"),
    "ViT": Spec(partial(_zoo, partial(sequence.vit, 64, 4, 3, patch=4, side=16)), "images"),
    "MLP-Mixer": Spec(partial(_zoo, partial(sequence.mixer, 64, (32, 128), 3, patch=4, side=16)), "images"),
    "LSTM classifier": Spec(lambda: Tokens(LSTM(64), 64, 10), "tokens"),
    "LSTM tagger": Spec(lambda: Tokens(LSTM(64), 64, LEVELS, each=True), "next"),
    "TransformerEncoder": Spec(encoder, "tokens"),
    "GPT, tied N(0, 0.02²)": Spec(partial(gpt, 0.02), "next"),
    "SwiGLU decoder": Spec(
        lambda: Tokens(nn.Sequential(*(SwiGLU(64, 4, 128) for _ in range(2))), 64, LEVELS, each=True), "next"
    ),
}
"""Families at sizes that train in seconds, with torch's own initialisation."""

BUILT_TO_FAIL: dict[str, Spec] = {
    "30 dense layers, PyTorch's default": Spec(partial(dense, 30), "rows"),
    "50 dense layers, Xavier": Spec(partial(filled, partial(dense, 50), nn.init.xavier_uniform_), "rows"),
    "30 dense layers, twice He": Spec(partial(filled, partial(dense, 30), scaled(2 * math.sqrt(2))), "rows"),
    "30 dense layers, half He": Spec(partial(filled, partial(dense, 30), scaled(math.sqrt(0.5))), "rows"),
    "20 dense layers, dropout 0.5, He": Spec(
        partial(filled, partial(dense, 20, dropout=0.5), scaled(math.sqrt(2))), "rows"
    ),
    "8 dense layers, N(0, 1) weights": Spec(partial(filled, partial(dense, 8), lambda w: nn.init.normal_(w)), "rows"),
    "20 tanh layers, gain 5": Spec(partial(filled, partial(dense, 20, act=nn.Tanh), scaled(5.0)), "rows"),
    "30 tanh layers, gain 0.5": Spec(partial(filled, partial(dense, 30, act=nn.Tanh), scaled(0.5)), "rows"),
    "12 sigmoid layers, PyTorch's default": Spec(partial(dense, 12, act=nn.Sigmoid), "rows"),
    "12 dense layers, biases of -3": Spec(partial(filled, partial(dense, 12), scaled(math.sqrt(2)), -3.0), "rows"),
    "8 dense layers, zero weights": Spec(partial(filled, partial(dense, 8), nn.init.zeros_), "rows"),
    "24 convolutions, PyTorch's default": Spec(partial(conv, 24), "images"),
    "24 convolutions, twice He": Spec(partial(filled, partial(conv, 24), scaled(2 * math.sqrt(2))), "images"),
    "40 residual blocks, He, no norm": Spec(partial(filled, partial(Residual, 64, 40), scaled(math.sqrt(2))), "rows"),
    "GPT, tied N(0, 1)": Spec(partial(gpt, 1.0), "next"),
    "MLP, last weight 100 times": Spec(partial(loud, partial(dense, 4), 100.0), "rows"),
    "ResNet, last weight 50 times": Spec(
        partial(loud, partial(_zoo, partial(convolutional.resnet, (2, 2, 2), 8, bottleneck=False, side=16)), 50.0),
        "images",
    ),
}
"""Scales that are wrong by themselves, or become so with depth."""

GRADED: dict[str, Spec] = {
    **{
        f"20 dense layers, {gain:g} × He": Spec(
            partial(filled, partial(dense, 20), scaled(gain * math.sqrt(2))), "rows"
        )
        for gain in (0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5)
    },
    **{
        f"MLP, last weight {factor:g} times": Spec(partial(loud, partial(dense, 4), factor), "rows")
        for factor in (10.0, 30.0)
    },
    **{f"GPT, tied N(0, {std:g}²)": Spec(partial(gpt, std), "next") for std in (0.125, 0.3, 0.6)},
}
"""Steps from what trains to what does not."""
