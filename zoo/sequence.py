"""Dense, recurrent and attending families, at any size; each maker returns a model and an example."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.convolutional import Model, images

__all__ = ["encoder", "lstm", "mixer", "mlp", "swiglu", "vit"]


def mlp(inputs: int = 784, width: int = 1024, depth: int = 8, *, dropout: float = 0.5, batch: int = 256) -> Model:
    """Build dense ReLU layers with dropout."""
    layers: list[nn.Module] = [nn.Linear(inputs, width)]
    for _ in range(depth - 1):
        layers += [nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width)]
    return nn.Sequential(*layers), torch.randn(batch, inputs)


class Patches(nn.Module):
    """An image as tokens, blocks, a mean over tokens, a head."""

    def __init__(self, width: int, patch: int, *blocks: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))  # type: ignore[no-any-return]


class MixerBlock(nn.Module):
    """Tolstikhin et al.'s: one MLP over tokens, one over channels."""

    def __init__(self, tokens: int, width: int, between: tuple[int, int]) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens, self.channels = _two(tokens, between[0]), _two(width, between[1])

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, then channels."""
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))  # type: ignore[no-any-return]


def _two(width: int, between: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, between), nn.GELU(), nn.Dropout(0.1), nn.Linear(between, width))


def mixer(
    width: int = 512,
    between: tuple[int, int] = (256, 2048),
    blocks: int = 8,
    *,
    patch: int = 16,
    side: int = 224,
    batch: int = 4,
) -> Model:
    """Build an MLP-Mixer; the default is S/16."""
    tokens = (side // patch) ** 2
    return Patches(width, patch, *(MixerBlock(tokens, width, between) for _ in range(blocks))), images(batch, side)


def vit(
    width: int = 768, heads: int = 12, blocks: int = 12, *, patch: int = 16, side: int = 224, batch: int = 4
) -> Model:
    """Build a ViT that averages its tokens; the default has the size of B/16."""
    layers = [
        nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        for _ in range(blocks)
    ]
    return Patches(width, patch, *layers), images(batch, side)


class LSTMClassifier(nn.Module):
    """Embedding, bidirectional LSTM, a mean over time, a head."""

    def __init__(self, vocabulary: int, embedding: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, width, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(2 * width, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Classify."""
        return self.head(self.lstm(self.embed(tokens))[0].mean(1))  # type: ignore[no-any-return]


def lstm(
    vocabulary: int = 10_000, embedding: int = 300, width: int = 512, *, length: int = 100, batch: int = 16
) -> Model:
    """Build an LSTM classifier."""
    return LSTMClassifier(vocabulary, embedding, width), torch.randint(vocabulary, (batch, length))


def encoder(width: int = 512, heads: int = 8, blocks: int = 6, *, length: int = 128, batch: int = 8) -> Model:
    """Build torch's own encoder; the default is that of Vaswani et al."""
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, batch_first=True)
    return nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False), torch.randn(batch, length, width)


class RMSNorm(nn.Module):
    """Written out, as most code has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise."""
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class SwiGLU(nn.Module):
    """A decoder block: causal attention and a gated MLP, each after an RMSNorm."""

    def __init__(self, width: int, heads: int, between: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, between, bias=False), nn.Linear(width, between, bias=False)
        self.down = nn.Linear(between, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then gate."""
        y = self.norm1(x)
        q, k, v = (m(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Tokens in, scores of tokens out."""

    def __init__(self, vocabulary: int, width: int, *blocks: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score."""
        return self.head(self.norm(self.blocks(self.embed(tokens))))  # type: ignore[no-any-return]


def swiglu(
    vocabulary: int = 10_000,
    width: int = 768,
    between: int = 2048,
    heads: int = 12,
    blocks: int = 12,
    *,
    length: int = 128,
    batch: int = 4,
) -> Model:
    """Build a decoder with SwiGLU blocks."""
    layers = (SwiGLU(width, heads, between) for _ in range(blocks))
    return Decoder(vocabulary, width, *layers), torch.randint(vocabulary, (batch, length))
