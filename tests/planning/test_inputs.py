"""The batch's own mean and variance are what a plan starts from, and a batch that cannot be run is refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.planning.models import mlp, same, state_of

BATCHES: dict[str, Callable[[], Tensor]] = {
    "pixels in 0..255": lambda: torch.rand(256, 32) * 255,
    "pixels in 0..1": lambda: torch.rand(256, 32),
    "standardised": lambda: torch.nn.functional.layer_norm(torch.rand(256, 32), (32,)),
    "shifted": lambda: 3 + 2 * torch.randn(256, 32),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_taken_as_it_is(name: str) -> None:
    torch.manual_seed(0)
    model, x = mlp(width=512), BATCHES[name]()
    plan = unitvar.initialize_(model, x)
    assert plan.layers[0].mean == pytest.approx(x.double().mean().item(), abs=1e-6)
    assert plan.layers[0].second == pytest.approx(x.double().square().mean().item(), rel=1e-6)
    mean, std = x.mean().item(), x.std(unbiased=False).item()
    assert plan.inputs.startswith("measured from the batch, mean ")
    told = [float(word.rstrip(",")) for word in plan.inputs.split() if word[-1].isdigit() or word[-2].isdigit()]
    assert told == pytest.approx([mean, std], rel=5e-3, abs=1e-6)
    assert f"inputs: {plan.inputs}" in str(plan)
    # A row on a sphere gives E z² = 1 over rows: 512 of them know it to sqrt(2 / 512), if all examples were one.
    assert model[0](x).square().mean().item() == pytest.approx(1.0, abs=4 * math.sqrt(2 / 512))


def test_the_first_scale_undoes_the_units_of_the_data() -> None:
    x = torch.rand(64, 32)
    one, many = unitvar.plan(mlp(), x), unitvar.plan(mlp(), 255 * x)
    assert many.layers[0].scale == pytest.approx(one.layers[0].scale / 255)
    assert [layer.scale for layer in many][1:] == pytest.approx([layer.scale for layer in one][1:])


def test_standardised_data_gives_nearly_the_standard_plan() -> None:
    x = BATCHES["standardised"]()
    measured, standard = (unitvar.plan(mlp(), x, inputs=how) for how in ("auto", "standard"))
    assert [layer.scale for layer in measured] == pytest.approx([layer.scale for layer in standard], rel=1e-3)


@pytest.mark.parametrize("constant", [torch.zeros(4, 32), torch.full((4, 32), 7.0), torch.empty(4, 32, device="meta")])
def test_an_example_without_numbers_stands_for_standard_data(constant: Tensor) -> None:
    model = mlp().to(constant.device)
    plan = unitvar.plan(model, constant)
    assert plan.rows == unitvar.plan(model, constant, inputs="standard").rows
    why = "has no numbers" if constant.is_meta else "is constant"
    assert plan.inputs == f"standard (mean 0, std 1), as the example {why}"


def test_an_input_can_be_described_instead() -> None:
    model, x = nn.Linear(100, 3), 3 + 2 * torch.randn(500, 100)
    for given in ((3.0, 2.0), [(3.0, 2.0)]):
        plan = unitvar.plan(model, x, inputs=given)
        assert plan.layers[0].second == pytest.approx(13.0)
        assert plan.inputs == "as given, mean 3, std 2"
    assert unitvar.plan(model, x, inputs="measured").rows == unitvar.plan(model, x).rows
    standard = unitvar.plan(model, x, inputs="standard")
    assert standard.layers[0].second == 1.0
    assert standard.inputs == "standard (mean 0, std 1), as requested"


def test_tokens_have_no_variance_of_their_own() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 5)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embed(tokens))

    model, tokens = Tagger(), torch.randint(50, (8, 12))
    plan = unitvar.plan(model, tokens)
    assert plan.inputs == "no floating-point tensor"
    assert plan["head.weight"].second == pytest.approx(model.embed.weight.square().mean().item())
    assert plan.rows == unitvar.plan(model, tokens, inputs="standard").rows
    with pytest.raises(ValueError, match=r"has token 50, but 'embed.weight' has 50 rows; pass tokens from 0 to 49"):
        unitvar.plan(model, tokens.clamp(max=48) + 2 * (tokens == tokens.max()))
    with pytest.raises(TypeError, match=r"float32 of shape \(8, 12\).*pass integers, example.long\(\)"):
        unitvar.plan(model, tokens.float())


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return self.a(x) + self.b(state)


def test_every_tensor_has_its_own_moments_and_is_named() -> None:
    x, state = 5 * torch.randn(64, 8), torch.randn(64, 8) / 4
    plan = unitvar.plan(Two(), {"x": x, "state": state})
    assert plan["a.weight"].second == pytest.approx(x.square().mean().item(), rel=1e-5)
    assert plan["b.weight"].second == pytest.approx(state.square().mean().item(), rel=1e-5)
    assert plan.inputs.startswith("measured from the batch, x mean ")
    assert "; state mean " in plan.inputs
    # Beside real data zeros are zeros.
    assert "no signal reaches it" in unitvar.plan(Two(), (x, torch.zeros(64, 8))).skipped["b.weight"]


def test_a_mask_of_minus_infinity_is_a_mask_whether_argument_or_buffer() -> None:
    class Masked(nn.Module):
        def __init__(self, mask: Tensor | None) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            self.register_buffer("mask", mask)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return self.layer(x, self.mask if mask is None else mask)

    torch.manual_seed(0)
    x, mask = torch.randn(4, 6, 16), nn.Transformer.generate_square_subsequent_mask(6)
    inside, outside = unitvar.plan(Masked(mask), x), unitvar.plan(Masked(None), (x, mask))
    assert [layer.scale for layer in outside] == pytest.approx([layer.scale for layer in inside], rel=1e-6)
    free = unitvar.plan(Masked(None), (x, torch.zeros(6, 6)))
    assert free["layer.self_attn.out_proj.weight"].second < 0.8 * outside["layer.self_attn.out_proj.weight"].second


def spoilt(x: Tensor, value: float) -> Tensor:
    x = x.clone()
    x[0, :2] = value
    return x


X = torch.randn(4, 32)
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "NaN": (spoilt(X, math.nan), ValueError, "2 of the example's 128 numbers are NaN or infinite; pass a batch of fin"),
    "infinity": (spoilt(X, math.inf), ValueError, "2 of the example's 128 numbers are NaN or infinite"),
    "minus infinity": (spoilt(X, -math.inf), ValueError, "2 of the example's 128 numbers are NaN or infinite"),
    "float64": (X.double(), TypeError, "weights are torch.float32: pass example.to(torch.float32)"),
    "bytes": (X.to(torch.uint8), TypeError, "uint8 of shape (4, 32)"),
    "another shape": (torch.randn(4, 31), RuntimeError, "shapes cannot be multiplied (4x31 and 32x64)"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("method", ["analytic", "measured"])
def test_a_batch_that_cannot_be_run_is_refused_before_anything_is_planned(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unitvar.planning import solve

    def never(*_: object) -> None:
        raise AssertionError("planned")

    monkeypatch.setattr(solve, "_planned", never)
    batch, kind, message = REFUSED[name]
    model = mlp()
    before, random = state_of(model), torch.get_rng_state()
    for inputs in ("auto", "standard"):
        with pytest.raises(kind) as caught:
            unitvar.initialize_(model, batch, method=method, inputs=inputs)
        assert message in str(caught.value)
    assert same(before, model.state_dict())
    assert torch.equal(random, torch.get_rng_state())
    if kind is RuntimeError:  # torch's own, with what was run
        assert "float32 of shape (4, 31)" in caught.value.__notes__[0]


def test_a_dtype_that_the_model_converts_is_welcome() -> None:
    class Converts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.float() / 255)

    pixels = torch.randint(256, (64, 8), dtype=torch.uint8)
    layer = unitvar.plan(Converts(), pixels)["linear.weight"]
    assert layer.second == pytest.approx((pixels / 255).square().mean().item(), rel=1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        assert len(unitvar.plan(mlp(), X)) == 3


def test_measured_needs_numbers() -> None:
    with pytest.raises(ValueError, match=r"inputs='measured' needs numbers, but the example is on the meta device"):
        unitvar.plan(mlp().to("meta"), torch.empty(4, 32, device="meta"), inputs="measured")


RUNS: list[str] = []  # not an attribute of the model, which is restored


class Reader(nn.Module):
    """Look tokens and positions up, each in a way of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 5)
        if "places" in how:
            self.places = nn.Embedding(6, 8)
        self.register_buffer("table", torch.randn(6, 8))

    def forward(self, tokens: Tensor) -> Tensor:
        RUNS.append(self.how)
        length = torch.arange(tokens.shape[1])
        x = self.embed(tokens + 1 if self.how == "shifted" else tokens.clamp(max=49))
        if self.how == "places":
            x = x + self.places(length)
        if self.how == "later places":
            x = x + self.places((tokens >= 0).long().cumsum(1) - 1)
        if self.how == "buffer":
            x = x + self.table[length]
        if self.how == "gathered":
            x = x + self.table.gather(0, tokens[0, :, None].expand(-1, 8))
        logits = self.head(x)
        return nn.functional.cross_entropy(logits.mT, tokens) if self.how == "targets" else logits


TOO_FAR: dict[str, tuple[Tensor, Tensor, type[Exception], str]] = {
    "shifted": (torch.full((2, 4), 48), torch.full((2, 4), 49), ValueError, "'embed' has 50 rows, and the example's l"),
    "places": (torch.ones(2, 6).long(), torch.ones(2, 7).long(), ValueError, "embedding: 'places' has 6 rows, 'embed'"),
    "later places": (torch.ones(2, 6).long(), torch.ones(2, 7).long(), ValueError, "'places' has 6 rows"),
    "buffer": (torch.ones(2, 6).long(), torch.ones(2, 7).long(), IndexError, "index 6 is out of bounds"),
    "gathered": (torch.full((2, 4), 5), torch.full((2, 4), 6), RuntimeError, "index 6 is out of bounds"),
    "targets": (torch.full((2, 4), 4), torch.full((2, 4), 5), IndexError, "Target 5 is out of bounds"),
}


@pytest.mark.parametrize("how", TOO_FAR)
def test_an_index_past_the_end_is_refused_before_anything_is_planned(how: str) -> None:
    """Stand-ins have no numbers, so a run on them takes any index; what fits costs no second run."""
    good, bad, kind, message = TOO_FAR[how]
    model = Reader(how)
    RUNS.clear()
    assert unitvar.plan(model, good).layers[-1].name == "head.weight"
    assert len(RUNS) == 1
    before = state_of(model)
    with pytest.raises(kind, match=message):
        unitvar.initialize_(model, bad)
    assert same(before, model.state_dict())
    with pytest.raises(kind, match=message):
        unitvar.measure(model, bad)
