"""Attention: fused, written out and packed, after a ReLU, so that the tokens' values have a part in common."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.composition.spelling import assert_as_predicted, assert_same_plans, shared, white

TOKENS, WIDTH, HEADS = 12, 96, 4
INPUTS = {
    "white": (white(8, TOKENS, WIDTH), "standard"),
    "shared": (shared(8, TOKENS, WIDTH, dims=(1,)), "measured"),
}
CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
BAND = CAUSAL & ~CAUSAL.tril(-5)  # each token sees itself and the four before it
INFINITE = torch.zeros(TOKENS, TOKENS).masked_fill(~BAND, -math.inf)


def weights_of(q: Tensor, k: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return F.dropout(scores.softmax(-1), dropout)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


def written(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    return weights_of(q, k, mask, dropout) @ v


def einsum(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return torch.einsum("bhij,bhjd->bhid", F.dropout(torch.softmax(scores, -1), dropout), v)


def batched(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    return torch.bmm(weights_of(q, k, mask, dropout).flatten(0, 1), v.flatten(0, 1)).unflatten(0, q.shape[:2])


def transposed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    return (v.mT @ weights_of(q, k, mask, dropout).mT).mT


Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
SPELLINGS: dict[str, Attend] = {f.__name__: f for f in (fused, written, einsum, batched, transposed)}


class Attention(nn.Module):
    """A linear layer, a ReLU, attention, its projection and a linear layer."""

    def __init__(
        self, attend: Attend, mask: Tensor | None = None, dropout: float = 0.0, groups: int = HEADS, expand: Any = None
    ) -> None:
        super().__init__()
        inner = WIDTH // HEADS * groups
        self.first = nn.Linear(WIDTH, WIDTH)
        self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, inner), nn.Linear(WIDTH, inner)
        self.out, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attend, self.mask, self.dropout, self.groups, self.expand = attend, mask, dropout, groups, expand

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k = self.k(x).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        v = self.v(x).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        if self.expand is not None:
            k, v = self.expand(k), self.expand(v)
        y = self.attend(q, k, v, self.mask, self.dropout)
        return self.last(self.out(y.transpose(1, 2).flatten(2)))


class Packed(nn.Module):
    """The same with nn.MultiheadAttention, whose three projections are one weight."""

    def __init__(self, dropout: float, need_weights: bool, mask: Tensor | None = None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=dropout, batch_first=True)
        self.need_weights, self.mask = need_weights, mask

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        mask = self.mask if self.mask is None or self.mask.dtype != torch.bool else ~self.mask  # True: not seen
        return self.last(self.attention(x, x, x, need_weights=self.need_weights, attn_mask=mask)[0])


MASKS = {"full": None, "causal": CAUSAL, "boolean": BAND, "float": INFINITE}
DROPOUTS = {"kept": 0.0, "dropped": 0.2}


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("mask", MASKS)
def test_spellings_of_attention_have_one_plan(mask: str, dropout: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    models: dict[str, nn.Module] = {kind: Attention(f, MASKS[mask], DROPOUTS[dropout]) for kind, f in SPELLINGS.items()}
    assert_same_plans(models, sample(), inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("mask", MASKS)
def test_packed_attention_has_the_plan_of_the_fused_op(mask: str, dropout: str, inputs: str) -> None:
    """The packed weight is one record, so the last two weights are compared: projection and what follows."""
    models: dict[str, nn.Module] = {"fused": Attention(fused, MASKS[mask], DROPOUTS[dropout])}
    for need in (False, True):
        models[f"need_weights={need}"] = Packed(DROPOUTS[dropout], need, MASKS[mask])
    sample, known = INPUTS[inputs]
    assert_same_plans(models, sample(), last=2, inputs=known)


def test_is_causal_is_the_lower_triangle() -> None:
    models: dict[str, nn.Module] = {
        "mask": Attention(fused, CAUSAL),
        "is_causal": Attention(lambda q, k, v, *_: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    }
    assert_same_plans(models, torch.randn(4, TOKENS, WIDTH))


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", ["fused", "written", "einsum"])
@pytest.mark.parametrize("dropout", DROPOUTS)
def test_what_attention_gives_is_what_was_predicted(kind: str, dropout: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Attention(SPELLINGS[kind], None, DROPOUTS[dropout]), sample, inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", ["fused", "written"])
@pytest.mark.parametrize("mask", ["causal", "boolean", "float"])
def test_what_masked_attention_gives_is_what_was_predicted(kind: str, mask: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Attention(SPELLINGS[kind], MASKS[mask]), sample, inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("need", [False, True])
@pytest.mark.parametrize("dropout", DROPOUTS)
def test_what_packed_attention_gives_is_what_was_predicted(dropout: str, need: bool, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Packed(DROPOUTS[dropout], need), sample, inputs=known)


REPEATS = {
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "expand": lambda x: x.unsqueeze(2).expand(-1, -1, 2, -1, -1).flatten(1, 2),
    "indexed": lambda x: x[:, [0, 0, 1, 1]],
}


def grouped_models(dropout: float) -> dict[str, Callable[[], nn.Module]]:
    made: dict[str, Callable[[], nn.Module]] = {
        f"{name} {kind}": partial(Attention, SPELLINGS[kind], None, dropout, 2, repeat)
        for name, repeat in REPEATS.items()
        for kind in ("fused", "written", "einsum")
    }

    def native(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, enable_gqa=True)

    made["enable_gqa"] = partial(Attention, native, None, dropout, 2)
    return made


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("dropout", DROPOUTS)
def test_spellings_of_grouped_query_attention_have_one_plan(dropout: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    models = {kind: build() for kind, build in grouped_models(DROPOUTS[dropout]).items()}
    assert_same_plans(models, sample(), inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kind", ["enable_gqa", "expand written", "repeat_interleave fused"])
def test_what_grouped_query_attention_gives_is_what_was_predicted(kind: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(grouped_models(0.0)[kind], sample, inputs=known)
