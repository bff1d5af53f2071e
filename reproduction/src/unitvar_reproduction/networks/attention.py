"""Small transformers and an MLP-Mixer, each as it is usually built and with its usual dropout."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["GPT", "Attention", "Block", "Encoder", "Mixer", "ViT"]


class Attention(nn.Module):
    """Self-attention with packed queries, keys and values, written out so that its dropout can be the quick one."""

    hidden: Tensor

    def __init__(self, width: int, heads: int, dropout: float, *, causal: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.packed, self.end = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop_weights, self.drop = nn.Dropout(dropout), nn.Dropout(dropout)
        hidden = torch.ones(causal, causal, dtype=torch.bool).triu(1)
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix positions; with a causal length, only earlier ones."""
        q, k, v = self.packed(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        if self.hidden.numel():
            length = x.shape[1]
            scores = scores.masked_fill(self.hidden[:length, :length], -math.inf)
        mixed = self.drop_weights(scores.softmax(-1)) @ v
        return self.drop(self.end(mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    """Two dense layers with GELU between, and dropout after the second."""

    def __init__(self, width: int, between: int, dropout: float) -> None:
        super().__init__()
        self.start, self.end = nn.Linear(width, between), nn.Linear(between, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the branch."""
        return self.drop(self.end(nn.functional.gelu(self.start(x))))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A pre-norm block: attention, then an MLP, each added to the stream."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: int = 0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal=causal)
        self.mlp = Perceptron(width, 4 * width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Add both branches."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Radford et al.'s decoder: characters in, scores of the next ones out; the head may be tied to the embedding."""

    def __init__(self, vocabulary: int, length: int, width: int, blocks: int, dropout: float, *, tied: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, 4, dropout, causal=length) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Score."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.tokens(tokens) + self.places(places))
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """torch's own encoder layers, post-norm as Vaswani et al.'s, with a causal mask as in torch's language model."""

    hidden: Tensor

    def __init__(self, vocabulary: int, length: int, width: int, blocks: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(dropout)
        layers = (nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True) for _ in range(blocks))
        self.blocks = nn.ModuleList(layers)
        self.head = nn.Linear(width, vocabulary)
        hidden = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score the next characters."""
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device)
        x = self.drop(self.norm(self.tokens(tokens) + self.places(places)))
        for block in self.blocks:
            x = block(x, self.hidden[:length, :length])
        return self.head(x)  # type: ignore[no-any-return]


class ViT(nn.Module):
    """Dosovitskiy et al.'s, over patches of 4x4, with an average over tokens before the head."""

    def __init__(self, side: int, width: int, blocks: int, dropout: float, *, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)
        # Part of the architecture, as in timm: small, and left alone by every initialisation but the family's own.
        self.places = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, (side // 4) ** 2, width), std=0.02))
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, 4, dropout) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        x = self.drop(self.embed(x).flatten(2).transpose(1, 2) + self.places)
        return self.head(self.norm(self.blocks(x)).mean(1))  # type: ignore[no-any-return]


class MixerBlock(nn.Module):
    """Tolstikhin et al.'s: one MLP over tokens, one over channels, each added to the stream."""

    def __init__(self, tokens: int, width: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_tokens = Perceptron(tokens, width // 2, dropout)
        self.over_channels = Perceptron(width, 4 * width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, then channels."""
        x = x + self.over_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norm2(x))  # type: ignore[no-any-return]


class Mixer(nn.Module):
    """An MLP-Mixer over patches of 4x4."""

    def __init__(self, side: int, width: int, blocks: int, dropout: float, *, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)
        tokens = (side // 4) ** 2
        self.blocks = nn.Sequential(*(MixerBlock(tokens, width, dropout) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))  # type: ignore[no-any-return]
