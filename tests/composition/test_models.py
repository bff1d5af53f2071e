"""Blocks of networks that people train now, put together as they do: what flows is what was predicted.

The bound is 20 % and five standard errors, as for the blocks of :mod:`tests.composition.test_blocks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.composition.spelling import assert_as_predicted, assert_same_plans, white

WIDTH, HEADS, TOKENS = 64, 4, 24


def split(x: Tensor, heads: int = HEADS) -> Tensor:
    """Split features into heads, [..., tokens, width] → [..., heads, tokens, width / heads]."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merged(x: Tensor) -> Tensor:
    return x.transpose(-3, -2).flatten(-2)


def plain(a: int, b: int) -> nn.Module:
    return nn.Linear(a, b, bias=False)


def halves(x: Tensor, angle: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    both = torch.cat((angle, angle), -1)
    return x * both.cos() + torch.cat((-b, a), -1) * both.sin()


def interleaved(x: Tensor, angle: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def complex_numbers(x: Tensor, angle: Tensor) -> Tensor:
    turn = torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)


Rotate = Callable[[Tensor, Tensor], Tensor]
ROTARY: dict[str, Rotate] = {f.__name__: f for f in (halves, interleaved, complex_numbers)}


class Llama(nn.Module):
    """A block with RMSNorm, rotary positions, grouped queries and SwiGLU with dropout."""

    def __init__(self, rotate: Rotate = halves) -> None:
        super().__init__()
        self.first, self.last, self.rotate = plain(WIDTH, WIDTH), plain(WIDTH, WIDTH), rotate
        self.a, self.b = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v = plain(WIDTH, WIDTH), plain(WIDTH, WIDTH // 2), plain(WIDTH, WIDTH // 2)
        self.out, self.gate, self.up, self.down = (
            plain(WIDTH, WIDTH), plain(WIDTH, 160), plain(WIDTH, 160), plain(160, WIDTH),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        size = WIDTH // HEADS
        angle = torch.outer(torch.arange(x.shape[1]).float(), 1e4 ** (-torch.arange(0, size, 2) / size))
        h = self.a(x)
        q, k, v = split(self.q(h)), split(self.k(h), 2), split(self.v(h), 2)
        q, k = self.rotate(q, angle), self.rotate(k, angle).repeat_interleave(2, 1)
        y = F.scaled_dot_product_attention(q, k, v.repeat_interleave(2, 1), is_causal=True)
        x = x + self.out(merged(y))
        h = self.b(x)
        return self.last(x + self.down(F.dropout(F.silu(self.gate(h)) * self.up(h), 0.1)))


def test_spellings_of_rotary_positions_have_one_plan() -> None:
    models = {kind: Llama(rotate) for kind, rotate in ROTARY.items()}
    assert_same_plans(models, torch.zeros(2, TOKENS, WIDTH))


class Gemma(nn.Module):
    """Norms by hand with 1 + w, before and after each branch; scores under a soft cap; a mask of large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.zeros(WIDTH)) for _ in range(4))
        self.first, self.qkv, self.out = plain(WIDTH, WIDTH), plain(WIDTH, 3 * WIDTH), plain(WIDTH, WIDTH)
        self.gate, self.up, self.down = plain(WIDTH, 160), plain(WIDTH, 160), plain(160, WIDTH)
        self.last = plain(WIDTH, WIDTH)

    def norm(self, x: Tensor, i: int) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.scales[i])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        q, k, v = map(split, self.qkv(self.norm(x, 0)).chunk(3, -1))
        scores = 50 * torch.tanh(q @ k.mT / math.sqrt(q.shape[-1]) / 50)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = x + self.norm(self.out(merged(scores.masked_fill(later, -1e9).softmax(-1) @ v)), 1)
        h = self.norm(x, 2)
        x = x + self.norm(self.down(F.gelu(self.gate(h), approximate="tanh") * self.up(h)), 3)
        return self.last(x)


class Parallel(nn.Module):
    """Attention with normed queries and keys beside an MLP, both from one weight and into one, as in ViT-22B."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.queries, self.keys = nn.LayerNorm(WIDTH), nn.LayerNorm(16), nn.LayerNorm(16)
        self.first, self.inner = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH + 256)
        self.out, self.last = nn.Linear(WIDTH + 256, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        q, k, v, h = self.inner(self.norm(x)).split([WIDTH, WIDTH, WIDTH, 256], -1)
        y = F.scaled_dot_product_attention(self.queries(split(q)), self.keys(split(k)), split(v))
        return self.last(x + F.dropout(self.out(torch.cat((merged(y), F.gelu(h)), -1)), 0.1))


class Diffusion(nn.Module):
    """A block whose shifts, scales and gates come from a condition, as in DiT."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.condition, self.modulate = (
            nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 6 * WIDTH),
        )  # fmt: skip
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.last = nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        x = self.first(x)
        parts = self.modulate(F.silu(self.condition(condition)))[:, None].chunk(6, -1)
        q, k, v = map(split, self.qkv(F.layer_norm(x, (WIDTH,)) * (1 + parts[0]) + parts[1]).chunk(3, -1))
        x = x + parts[2] * self.out(merged(F.scaled_dot_product_attention(q, k, v)))
        h = F.layer_norm(x, (WIDTH,)) * (1 + parts[3]) + parts[4]
        return self.last(x + parts[5] * self.down(F.gelu(self.up(h))))


class Cross(nn.Module):
    """Attention to a memory of sequences of different length, the rest of which is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.Linear(WIDTH, WIDTH)
        self.q, self.k, self.v, self.out, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(5))

    def forward(self, memory: Tensor, x: Tensor, real: Tensor) -> Tensor:
        memory = self.memory(memory).relu()
        k, v = split(self.k(memory)), split(self.v(memory))
        y = F.scaled_dot_product_attention(split(self.q(x)), k, v, attn_mask=real[:, None, None, :])
        return self.last(x + self.out(merged(y)))


def memories() -> tuple[Tensor, Tensor, Tensor]:
    real = torch.arange(TOKENS)[None] < torch.randint(6, TOKENS + 1, (16,))[:, None]
    return torch.randn(16, TOKENS, WIDTH), torch.randn(16, 12, WIDTH), real


class Merging(nn.Module):
    """Four neighbours become one token, twice, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(16, 32, 4, 4), nn.Linear(128, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(4 * width) for width in (32, 64))
        self.reduce = nn.ModuleList(plain(4 * width, 2 * width) for width in (32, 64))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).permute(0, 2, 3, 1)
        for norm, reduce in zip(self.norms, self.reduce, strict=True):
            parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
            x = F.gelu(reduce(norm(torch.cat(parts, -1))))
        return self.last(x.mean((1, 2)))


class Shuffled(nn.Module):
    """Half of the channels pass by a depthwise branch, and all are shuffled, as in ShuffleNet v2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(16, 64, 3, 2, 1), nn.Conv2d(64, WIDTH, 1)
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(32, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
                nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(32),
                nn.Conv2d(32, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            )
            for _ in range(3)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.first(x).relu(), 3, 2, 1)
        for branch in self.branches:
            a, b = x.chunk(2, 1)
            x = torch.cat((a, branch(b)), 1).unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        return self.last(x)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], object]]] = {
    "rotary, grouped queries, SwiGLU": (Llama, white(8, TOKENS, WIDTH)),
    "norms by hand on both sides, soft cap": (Gemma, white(8, TOKENS, WIDTH)),
    "parallel branches, normed queries": (Parallel, white(8, TOKENS, WIDTH)),
    "adaptive norms": (Diffusion, lambda: (torch.randn(16, TOKENS, WIDTH), torch.randn(16, WIDTH))),
    "cross-attention with padding": (Cross, memories),
    "patch merging": (Merging, white(8, 16, 32, 32)),
    "channel shuffle": (Shuffled, white(16, 16, 32, 32)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_what_a_model_gives_is_what_was_predicted(kind: str) -> None:
    build, sample = MODELS[kind]
    assert_as_predicted(build, sample, draws=8, tolerance=0.2)
