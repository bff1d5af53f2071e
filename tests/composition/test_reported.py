"""What was reported of the first engine, signals: one test a report, each with the factor that it was off by."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from tests.composition.spelling import assert_as_predicted, assert_ones, assert_same_plans, shared, white
from tests.composition.test_attention import Attention, Packed, einsum, written
from tests.composition.test_pooling import SPELLINGS, Pooled


def test_attention_with_dropout_on_its_weights_written_out() -> None:
    """7.5 ×, over 64 tokens."""
    assert_as_predicted(lambda: Attention(written, None, 0.1), white(8, 64, 96), draws=8)


def test_attention_with_dropout_on_its_weights_in_the_module() -> None:
    """7.5 ×, with the weights asked for."""
    assert_as_predicted(lambda: Packed(0.1, need_weights=True), white(8, 64, 96), draws=8)


def test_einsum_of_softmax_and_values() -> None:
    """8.6 ×; the same with @ was right."""
    assert_as_predicted(lambda: Attention(einsum), white(8, 64, 96), draws=8)


@pytest.mark.parametrize("kind", ["mean(2).mean(2)", "einsum / n"])
def test_a_global_pool_in_two_steps_or_by_einsum(kind: str) -> None:
    """Up to 28 ×, after conv–ReLU–conv–ReLU–conv on 24 x 24."""
    assert_as_predicted(lambda: Pooled(SPELLINGS[kind]), white(4, 8, 24, 24), draws=8)


class Chain(nn.Module):
    """A convolution, a function of its output, a linear layer on the channels of the result."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(16, 64, 3), nn.Linear(64, 64)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.conv(x).relu()).movedim(1, -1))


def test_a_crop_by_negative_padding() -> None:
    """0.14 to 0.26."""
    assert_as_predicted(lambda: Chain(lambda x: F.pad(x, (-3, -3, -2, -2))), white(8, 16, 14, 14))


def test_a_pool_with_a_divisor_of_its_own() -> None:
    """15 ×."""
    for divisor in (1, 3, 16):
        pool = nn.AvgPool2d(4, divisor_override=divisor)
        assert_as_predicted(lambda pool=pool: Chain(pool), white(8, 16, 14, 14), draws=8)


@pytest.mark.parametrize("size", [32, 48, 80])
def test_adaptive_pooling_to_more_positions(size: int) -> None:
    """1.4 × from 32 to 48: windows overlap, and are of one or of two positions."""
    net = nn.Sequential
    for pool in (nn.AdaptiveAvgPool1d(size), nn.AdaptiveMaxPool1d(size)):
        assert_as_predicted(
            lambda pool=pool: net(nn.Conv1d(32, 64, 1), pool, nn.Conv1d(64, 64, 1)), white(8, 32, 32), draws=8
        )


class Bag(nn.Module):
    """An embedding bag and a linear layer."""

    def __init__(self, mode: str, weight: float | None = None, last: bool = False) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(200, 128, mode=mode, include_last_offset=last)
        self.linear, self.last = nn.Linear(128, 64), nn.Linear(64, 64)
        self.weight = weight

    def forward(self, tokens: Tensor, offsets: Tensor | None = None) -> Tensor:
        weights = None if self.weight is None else torch.full(tokens.shape, self.weight)
        return self.last(self.linear(self.bag(tokens, offsets, per_sample_weights=weights)))


@pytest.mark.parametrize("weight", [None, 3.0, 0.5])
def test_a_bag_of_weighted_embeddings(weight: float | None) -> None:
    """9 × with weights of three."""
    assert_as_predicted(lambda: Bag("sum", weight), lambda: torch.randint(200, (32, 6)), draws=8)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_bag_whose_last_offset_is_its_end(mode: str) -> None:
    """1.5 ×: of four offsets the last starts no bag."""
    offsets = torch.tensor([0, 6, 12, 18])
    assert_as_predicted(
        lambda: Bag(mode, last=True), lambda: (torch.randint(200, (18,)), offsets), draws=24, tolerance=0.03
    )


class Mixed(nn.Module):
    """Values weighted by a softmax over scores that come as an input, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, scores: Tensor, values: Tensor) -> Tensor:
        return self.linear(scores.softmax(-1) @ values)


def concentration(positions: int, std: float) -> float:
    """Draw E Σ a², to 1 % or better."""
    return float((std * torch.randn(8192, positions)).softmax(-1).square().sum(-1).mean())


@pytest.mark.parametrize("positions", [64, 1024, 1025, 1500])
@pytest.mark.parametrize("std", [1.0, 3.0])
def test_a_softmax_over_many_positions(positions: int, std: float) -> None:
    """E Σ a² at score variance 9 was 0.140 at 1,024 positions and 0.888 at 1,025; drawn: 0.132."""
    example = torch.zeros(2, positions), torch.zeros(positions, 16)
    (layer,) = unitvar.plan(Mixed(), example, inputs=[(0.0, std), (0.0, 1.0)])
    assert layer.second == pytest.approx(concentration(positions, std), rel=0.08)


def test_a_softmax_does_not_jump_at_any_number_of_positions() -> None:
    found = []
    for positions in (1023, 1024, 1025):
        example = torch.zeros(2, positions), torch.zeros(positions, 16)
        (layer,) = unitvar.plan(Mixed(), example, inputs=[(0.0, 3.0), (0.0, 1.0)])
        found.append(layer.second)
    assert found == pytest.approx([found[0]] * 3, rel=0.01)


def encoder(norm_first: bool, layers: int = 2) -> nn.Module:
    layer = nn.TransformerEncoderLayer(96, 4, 128, dropout=0.1, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_on_tokens_that_share_a_part(norm_first: bool) -> None:
    """12 to 17 × at the first out_proj: inputs="measured" did not see what tokens of three dimensions share."""
    sample = shared(4, 48, 96, dims=(1,))
    assert_as_predicted(lambda: encoder(norm_first), sample, inputs="measured", draws=8)


class Classifier(nn.Module):
    """An encoder, an average over tokens, logits."""

    def __init__(self, norm_first: bool, layers: int = 2) -> None:
        super().__init__()
        self.encoder, self.head = encoder(norm_first, layers), nn.Linear(96, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


@pytest.mark.parametrize("inputs", ["standard", "measured"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_logits_after_an_average_over_tokens(norm_first: bool, inputs: str) -> None:
    """2 × in a post-norm classifier, on tokens that share a part."""
    sample = white(8, 32, 96) if inputs == "standard" else shared(8, 32, 96, dims=(1,))
    assert_as_predicted(lambda: Classifier(norm_first, 1), sample, inputs=inputs, draws=8)


def bump(x: Tensor) -> Tensor:
    return 100 * torch.exp(-0.5 * ((x - 0.3) / 0.001) ** 2)


def step(x: Tensor) -> Tensor:
    return torch.tanh(1e6 * x)


BUMP = 1e4 * 0.001 * math.sqrt(math.pi) * math.exp(-0.045) / math.sqrt(2 * math.pi)  # E f²
STEP = 1e6 * 4 / 3 / math.sqrt(2 * math.pi)  # E f'²: the integral of sech⁴ is 4/3


@pytest.mark.parametrize(("function", "field", "exact"), [(bump, "second", BUMP), (step, "slope", STEP)])
def test_an_activation_finer_than_the_grid_is_integrated_or_refused(
    function: Callable[[Tensor], Tensor], field: str, exact: float
) -> None:
    """A bump gave E f² = 0 and a steep tanh a slope of 0, in silence."""
    try:
        found = getattr(unitvar.activation_moments(function), field)
    except ValueError:
        return
    assert found == pytest.approx(exact, rel=0.01)


def test_a_plan_with_an_activation_finer_than_its_grid_is_right_or_says_so() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(bump(self.a(x)) + 1)

    plan = unitvar.plan(Net(), torch.zeros(1, 64))
    mean = 100 * 0.001 * math.exp(-0.045)  # E f
    assert plan.unsupported or plan["b.weight"].second == pytest.approx(BUMP + 2 * mean + 1, rel=0.02)


class Projected(nn.Module):
    """An LSTM with a projection and a linear layer on its states, on the last of them, or on the final state."""

    def __init__(self, taken: str) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(64, 128, proj_size=48, batch_first=True), nn.Linear(48, 64)
        self.taken = taken

    def forward(self, x: Tensor) -> Tensor:
        states, (state, _) = self.lstm(x)
        return self.last({"all": states, "last": states[:, -1], "state": state[0]}[self.taken])


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("taken", ["all", "last", "state"])
def test_an_lstm_with_a_projection(taken: str) -> None:
    """1.13 to 1.3 ×: the state grows over the steps, so that the last is larger than their mean."""
    values = []
    for _ in range(12):
        model, x = Projected(taken), torch.randn(32, 12, 64)
        plan = unitvar.initialize_(model, x)
        with torch.no_grad():
            values.append(float(model(x).square().mean()) / plan["last.weight"].predicted)
    assert_ones({"last.weight": torch.tensor(values)}, tolerance=0.05, errors=3.0)


def test_huggingface_attention_eager_is_sdpa() -> None:
    """BERT: 11 to 20 × with attn_implementation="eager"."""
    transformers = pytest.importorskip("transformers")
    models = {}
    for kind in ("sdpa", "eager"):
        config = transformers.BertConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=100
        )
        config._attn_implementation = kind
        models[kind] = transformers.BertModel(config)
    models["eager"].load_state_dict(models["sdpa"].state_dict())  # embeddings are left alone: the same in both
    assert_same_plans(models, torch.randint(100, (2, 32)))
