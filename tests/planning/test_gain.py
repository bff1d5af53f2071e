"""gain= and embeddings=: what is multiplied, what is filled, and what a loss starts from."""

import math

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.composition.spelling import assert_as_predicted, assert_same_plans, white
from tests.planning.models import mlp
from unitvar.planning.gains import gain_at


@pytest.mark.parametrize("gain", [0.35, 2.0])
def test_gain_multiplies_every_weight_but_the_last(gain: float) -> None:
    model, x = mlp(depth=4, dropout=0.3), torch.zeros(4, 32)
    unit, scaled = unitvar.plan(model, x), unitvar.plan(model, x, gain=gain)
    for i, (a, b) in enumerate(zip(unit, scaled, strict=True)):
        assert b.scale == pytest.approx(a.scale * (gain if i < 3 else 1.0), rel=1e-6)
        assert b.predicted == pytest.approx(gain ** (2 * min(i + 1, 3)), rel=1e-6)  # ReLU: the scale goes through
    assert_as_predicted(lambda: mlp(depth=4, width=256, dropout=0.3), white(128, 32), draws=6, gain=gain)


def test_gain_keeps_the_output_of_every_head() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = self.body(x).tanh()
            return {"class": self.a(h), "box": self.b(h).sigmoid()}

    unit, half = (unitvar.plan(Heads(), torch.zeros(2, 8), gain=g) for g in (1.0, 0.5))
    ratio = {a.name: b.scale / a.scale for a, b in zip(unit, half, strict=True)}
    assert ratio == pytest.approx({"body.weight": 0.5, "a.weight": 1.0, "b.weight": 1.0})


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan, "large"])
def test_a_gain_that_is_no_scale_is_refused(bad: float | str) -> None:
    with pytest.raises(ValueError, match=r"gain=.* is neither a finite number above 0 nor 'auto'; 1\.0 keeps unit"):
        unitvar.plan(nn.Linear(2, 2), torch.zeros(1, 2), gain=bad)


@pytest.mark.parametrize(("depth", "gain"), [(8, 0.6), (12, 0.7), (16, 0.8)])
def test_the_automatic_gain_leaves_three_percent_of_a_signal_that_drowns(depth: int, gain: float) -> None:
    model, x = mlp(depth=depth, dropout=0.4), torch.zeros(4, 32)
    found = unitvar.plan(model, x, gain="auto")
    assert found.gain == gain
    assert f"mode forward, gain {gain}: " in str(found)
    assert [a.scale for a in found] == [b.scale for b in unitvar.plan(model, x, gain=gain)]
    assert 0.4 < 0.03 / gain**depth < 2.5  # one digit of the gain


@pytest.mark.parametrize(("depth", "gain"), [(1, 0.4), (4, 0.4), (24, 0.86), (1000, 1.0)])
def test_a_gain_is_that_of_four_layers_for_fewer_and_has_two_digits_for_many(depth: int, gain: float) -> None:
    assert gain_at(depth) == gain


def test_the_automatic_gain_is_one_where_the_signal_survives_or_norms_and_skips_carry_it() -> None:
    x = torch.zeros(4, 64)
    quiet = mlp(depth=12, dropout=0.0)
    block = [nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Dropout(0.5)]
    normed = nn.Sequential(*(m for _ in range(12) for m in (nn.Linear(64, 64), *block[1:])), nn.Linear(64, 2))
    for model, example in ((quiet, torch.zeros(4, 32)), (normed, x)):
        plan = unitvar.plan(model, example, gain="auto")
        assert plan.gain == 1
        assert [a.scale for a in plan] == [b.scale for b in unitvar.plan(model, example)]


class Language(nn.Module):
    """Tokens and positions, one attention block, a head that may be the token table."""

    def __init__(self, *, tied: bool, positions: str = "embedding", padding: int | None = None) -> None:
        super().__init__()
        d = 64
        self.tokens, self.norms = nn.Embedding(50, d, padding), nn.ModuleList(nn.LayerNorm(d) for _ in range(2))
        self.positions = nn.Embedding(24, d) if positions == "embedding" else None
        self.table = nn.Parameter(torch.randn(1, 24, d)) if positions == "parameter" else None
        self.register_buffer("fixed", torch.randn(24, d) if positions == "buffer" else None)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.head = nn.Linear(d, 50, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, i: Tensor) -> Tensor:
        more = self.fixed if self.table is None else self.table
        if self.positions is not None:
            more = self.positions(torch.arange(i.shape[1]))
        x = self.tokens(i) + more
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.head(self.norms[1](x))


def tokens() -> Tensor:
    return torch.randint(0, 50, (16, 24))


@pytest.mark.parametrize("positions", ["embedding", "parameter", "buffer"])
def test_positions_of_any_kind_are_followed_through_attention(positions: str) -> None:
    assert_as_predicted(lambda: Language(tied=False, positions=positions), tokens, draws=6, tolerance=0.1)


def test_positions_of_all_kinds_give_equal_plans() -> None:
    models = {p: Language(tied=False, positions=p) for p in ("embedding", "parameter", "buffer")}
    for model in models.values():
        with torch.no_grad():
            model.tokens.weight.normal_(generator=torch.Generator().manual_seed(0))
    numbers = torch.randn(24, 64)
    with torch.no_grad():
        assert models["embedding"].positions is not None
        models["embedding"].positions.weight.copy_(numbers)
        models["parameter"].table.copy_(numbers[None])  # type: ignore[union-attr]
        models["buffer"].fixed.copy_(numbers)
    assert_same_plans(models, tokens())
    meta = unitvar.plan(Language(tied=False).to("meta"), tokens().to("meta"))
    here = unitvar.plan(models["embedding"], tokens())
    assert [a.scale for a in meta] == pytest.approx([b.scale for b in here], rel=0.05)


def test_unit_embeddings_have_unit_elements_and_padding_stays_zero() -> None:
    model = Language(tied=False, padding=0)
    with torch.no_grad():
        model.tokens.weight.mul_(5)
    plan = unitvar.initialize_(model, tokens(), embeddings="unit")
    assert [layer.name for layer in plan][:2] == ["positions.weight", "tokens.weight"]  # as they are looked up
    assert float(model.tokens.weight[0].detach().abs().max()) == 0
    assert float(model.tokens.weight[1:].detach().square().mean()) == pytest.approx(1, rel=1e-4)
    assert float(model.positions.weight.detach().square().mean()) == pytest.approx(1, rel=1e-4)  # type: ignore[union-attr]
    assert "tokens.weight" not in plan.skipped


def test_a_tied_table_starts_the_loss_near_that_of_a_guess() -> None:
    losses = {}
    for embeddings in ("keep", "unit"):
        torch.manual_seed(0)
        model, i = Language(tied=True), tokens()
        plan = unitvar.initialize_(model, i, embeddings=embeddings)
        logits = model(i)[:, :-1].flatten(0, 1).detach()
        losses[embeddings] = float(nn.functional.cross_entropy(logits, i[:, 1:].flatten()))
        assert bool(plan.advice) == (embeddings == "keep")
    assert losses["keep"] > 2 * math.log(50)
    assert losses["unit"] < math.log(50) + 0.7  # logits of unit variance cost half a nat
    assert 'embeddings="unit"' in unitvar.plan(Language(tied=True), tokens()).advice[0]


def test_kept_embeddings_are_left_alone_and_count_as_they_are() -> None:
    model = Language(tied=True)
    before = model.tokens.weight.detach().clone()
    plan = unitvar.initialize_(model, tokens())
    assert torch.equal(before, model.tokens.weight)
    assert plan.skipped["tokens.weight"] == "embedding"
    assert plan.skipped["head.weight"] == "tied to tokens.weight"
