"""Attention without queries of its tokens: learned queries, pooling, and linear attention, spelling by spelling."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.composition.spelling import assert_as_predicted, assert_same_plans, white

WIDTH, HEADS, TOKENS = 64, 4, 32


def heads(x: Tensor) -> Tensor:
    """Split features into heads, [..., tokens, width] → [..., heads, tokens, width / heads]."""
    return x.unflatten(-1, (HEADS, -1)).transpose(-3, -2)


class Learned(nn.Module):
    """Learned queries that attend to tokens; the average over them is read."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], project: bool, pool: bool = True) -> None:
        super().__init__()
        self.embed, self.queries = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(16, WIDTH))
        self.project = nn.Linear(WIDTH, WIDTH) if project else nn.Identity()
        self.keys, self.values = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 32)
        self.attend, self.pool = attend, pool

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).relu()
        y = self.attend(self.project(self.queries), heads(self.keys(x)), heads(self.values(x)))
        y = self.out(y.transpose(1, 2).flatten(2))
        return self.head(y.mean(1) if self.pool else y)


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(heads(q.expand(len(k), -1, -1)), k, v)


def matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (heads(q) @ k.mT * k.shape[-1] ** -0.5).softmax(-1) @ v


def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("hid,bhjd->bhij", heads(q), k) * k.shape[-1] ** -0.5
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


LEARNED = {"fused": fused, "matmul": matmul, "einsum": einsum}


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("attend", LEARNED)
def test_what_learned_queries_read_is_as_predicted(attend: str, pool: bool) -> None:
    """All queries read nearly the same, so that their average keeps it: 17 times what unrelated ones would leave."""
    assert_as_predicted(lambda: Learned(LEARNED[attend], True, pool), white(16, TOKENS, WIDTH), draws=8, tolerance=0.15)


def test_queries_that_are_the_weight_of_a_linear_layer_are_positions_after_it() -> None:
    """Without a projection, queries are initialised like any weight, here one of 16 columns a head."""
    assert_as_predicted(lambda: Learned(matmul, False), white(16, TOKENS, WIDTH), draws=8, tolerance=0.15)


def test_spellings_of_learned_queries_have_one_plan() -> None:
    torch.manual_seed(0)
    models = {kind: Learned(attend, True) for kind, attend in LEARNED.items()}
    for model in models.values():
        model.load_state_dict(models["fused"].state_dict())
    assert_same_plans(models, torch.zeros(16, TOKENS, WIDTH))


class Pooled(nn.Module):
    """nn.MultiheadAttention with learned queries, fused or not."""

    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.embed, self.queries = nn.Linear(WIDTH, WIDTH), nn.Parameter(0.02 * torch.randn(16, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.head, self.need_weights = nn.Linear(WIDTH, 32), need_weights

    def forward(self, x: Tensor) -> Tensor:
        x, queries = self.embed(x), self.queries.expand(len(x), -1, -1)
        return self.head(self.attention(queries, x, x, need_weights=self.need_weights)[0].mean(1))


@pytest.mark.parametrize("need_weights", [False, True])
def test_what_learned_queries_of_a_module_read_is_as_predicted(need_weights: bool) -> None:
    assert_as_predicted(lambda: Pooled(need_weights), white(16, TOKENS, WIDTH), draws=8, tolerance=0.15)


class LinearAttention(nn.Module):
    """φ(q) (φ(k)ᵀ v), with or without the sum of weights below it."""

    def __init__(self, phi: str, *, divided: bool, written: str = "matmul") -> None:
        super().__init__()
        self.embed, self.qkv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 32)
        self.phi, self.divided, self.written = phi, divided, written

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(self.embed(x)).chunk(3, -1))
        if self.phi == "softmax":
            q, k = q.softmax(-1), k.softmax(-2)
        else:
            q, k = (F.elu(t) + 1 if self.phi == "elu" else t.relu() for t in (q, k))
        if self.written == "matmul":
            y = q @ (k.mT @ v)
        else:
            y = torch.einsum("bhnd,bhde->bhne", q, torch.einsum("bhnd,bhne->bhde", k, v))
        if self.divided:
            y = y / (q @ k.sum(2, keepdim=True).mT)
        y = self.out(y.transpose(1, 2).flatten(2))
        return self.head(y.mean(1))


@pytest.mark.parametrize(
    ("phi", "divided", "tolerance"),
    [("elu", False, 0.1), ("elu", True, 0.25), ("relu", False, 0.3), ("softmax", False, 0.15)],
)
def test_linear_attention_is_as_predicted(phi: str, divided: bool, tolerance: float) -> None:
    """All rows of φ(k)ᵀ v share Σ v, since φ has a mean: up to 30 times what unrelated ones would give."""
    assert_as_predicted(
        lambda: LinearAttention(phi, divided=divided), white(16, TOKENS, WIDTH), draws=8, tolerance=tolerance
    )


def test_spellings_of_linear_attention_have_one_plan() -> None:
    models = {kind: LinearAttention("elu", divided=False, written=kind) for kind in ("matmul", "einsum")}
    assert_same_plans(models, torch.zeros(16, TOKENS, WIDTH))
