"""Residual streams: found in any spelling, and n branches together add a variance of one."""

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.composition.spelling import assert_as_predicted, white
from tests.planning.streams import SCALABLE, WIDTH, Branch, LayerScale, Stream, norm


def added(model: Stream, x: Tensor) -> list[float]:
    """Measure the variance that each block's sum adds to its stream."""
    model.train()
    seen: list[float] = []
    plain = model.block

    def block(parts: nn.Module, x: Tensor) -> Tensor:
        before = x.clone()
        after = plain(parts, x)
        seen.append(float((after - before).double().var()))
        return after

    model.block = block
    with torch.no_grad():
        model(x)
    model.block = plain
    return seen


@pytest.mark.parametrize("name", sorted(SCALABLE))
def test_what_leaves_every_weight_is_as_predicted(name: str) -> None:
    build, n = SCALABLE[name]
    assert_as_predicted(build, white(128, WIDTH), draws=6, tolerance=0.08)
    labels = {label for layer in unitvar.plan(build(), torch.zeros(8, WIDTH)) for label in layer.branch.split("; ")}
    assert {f"branch {i + 1} of {n} in 'blocks'" for i in range(n)} <= labels


@pytest.mark.parametrize("name", ["no norm", "pre-norm", "dropout after", "DropPath", "half steps", "side by side"])
def test_n_branches_together_add_one(name: str) -> None:
    build, _ = SCALABLE[name]
    totals = []
    for _ in range(8):
        model = build()
        unitvar.initialize_(model, torch.zeros(8, WIDTH))
        totals.append(sum(added(model, torch.randn(256, WIDTH))))  # type: ignore[arg-type]
    found = torch.tensor(totals)
    assert abs(float(found.mean()) - 1) < 0.05 + 4 * float(found.std()) / 8**0.5, totals


@pytest.mark.parametrize("name", sorted(SCALABLE))
def test_streams_are_damped_where_norms_follow_the_sums_however_these_are_written(name: str) -> None:
    build, _ = SCALABLE[name]
    model, x = build(), torch.zeros(8, WIDTH)
    scales = {r: [layer.scale for layer in unitvar.plan(model, x, residual=r)] for r in ("auto", "scaled", "damped")}
    assert scales["auto"] == pytest.approx(scales["damped" if name.startswith("post-norm") else "scaled"])
    assert scales["damped"] != pytest.approx(scales["scaled"])


@pytest.mark.parametrize("n", [2, 5, 16])
def test_damped_branches_have_the_exponents_of_deepnorm(n: int) -> None:
    """Wang et al. (2022): rows n^(1/4) times shorter; the last weight stands in for their n^(1/4) times larger stream.

    A ReLU keeps the proportion of its input, so both factors show as they are.
    """

    def branch() -> nn.Module:
        return nn.Sequential(norm(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    model, x = Stream(lambda b, x: x + b(x), branch, n), torch.randn(256, WIDTH)
    unit = unitvar.plan(model, x, residual="unit")
    totals = []
    for _ in range(4):
        damped = unitvar.initialize_(model, x, residual="damped")
        totals.append(sum(added(model, x)))
    for name, power in (("blocks.1.1.weight", -1 / 4), ("blocks.1.3.weight", -1 / 2)):
        assert damped[name].scale == pytest.approx(unit[name].scale * n**power, rel=0.02)
    assert damped["blocks.1.1.weight"].branch == f"inside branch 2 of {n} in 'blocks'"
    found = torch.tensor(totals)
    assert abs(float(found.mean()) * n**0.5 - 1) < 0.06 + 2 * float(found.std()) * n**0.5


def test_a_nested_stream_is_scaled_for_both() -> None:
    build, _ = SCALABLE["nested"]
    plan = unitvar.plan(build(), torch.zeros(8, WIDTH))
    inner = plan["blocks.0.inner.0.3.weight"]
    assert inner.branch.count("branch") == 2
    # first and three inner branches make E b² = 1/2, of which the inner ones are a half together
    assert plan["blocks.0.first.weight"].predicted == pytest.approx(1 / 4, rel=0.05)
    assert inner.predicted == pytest.approx(1 / 12, rel=0.05)


@pytest.mark.parametrize("value", [1e-4, 0.3, 1.0])
def test_a_layer_scale_that_makes_branches_small_is_left_at_that(value: float) -> None:
    model = Stream(lambda b, x: x + b(x), lambda: Branch(LayerScale(value)), 4)
    plan = unitvar.plan(model, torch.zeros(8, WIDTH))
    assert plan["blocks.2.3.weight"].predicted == pytest.approx(min(1.0, 1 / (4 * value**2)), rel=0.01)


def test_one_weight_for_all_branches_counts_every_branch() -> None:
    shared = Branch()
    model = Stream(lambda b, x: x + b(x), lambda: shared, 4)
    plan = unitvar.plan(model, torch.zeros(8, WIDTH))
    assert "branch 4 of 4" in plan["blocks.0.3.weight"].branch
    assert plan["blocks.0.3.weight"].predicted == pytest.approx(1 / 4, rel=0.1)


def test_a_norm_at_the_end_of_a_branch_is_said_and_its_weight_is_as_it_was() -> None:
    built_in = Stream(lambda b, x: x + b(x), lambda: Branch(norm()), 3)
    by_hand = Stream(lambda b, x: x + _rms(b(x)), Branch, 3)
    for model in (built_in, by_hand):
        plan = unitvar.plan(model, torch.zeros(8, WIDTH))
        layer = plan["blocks.1.3.weight"]
        assert layer.predicted == pytest.approx(1, rel=1e-6)
        assert layer.branch == "branch 2 of 3 in 'blocks'; a norm after it sets its size"


def _rms(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


class Rotated(nn.Module):
    """Rotary positions, a gate, a dense block and a U: sums and joins that are no streams."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dense, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.shortcut, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        self.register_buffer("angle", torch.linspace(0, 3, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        q = q * self.angle.cos() + torch.cat((-q[..., WIDTH // 2 :], q[..., : WIDTH // 2]), -1) * self.angle.sin()
        q = q + q * self.gate(q).sigmoid()
        y = torch.cat((q, self.dense(q).relu(), x), -1)
        return self.head(self.up(y).relu() + self.shortcut(q))


def test_rotations_gates_dense_blocks_and_projected_shortcuts_are_no_streams() -> None:
    plan = unitvar.plan(Rotated(), torch.zeros(4, WIDTH))
    assert [layer.branch for layer in plan] == [""] * 6
    assert all(layer.predicted == pytest.approx(1) for layer in plan)


def test_unit_branches_grow_and_scaled_ones_do_not() -> None:
    build, _ = SCALABLE["no norm"]
    x = torch.randn(512, WIDTH)
    totals = {}
    for residual in ("unit", "scaled"):
        model = build()
        plan = unitvar.initialize_(model, x, residual=residual)
        totals[residual] = sum(added(model, x))  # type: ignore[arg-type]
        assert plan["blocks.4.0.weight"].second == pytest.approx({"unit": 5, "scaled": 1.8}[residual], rel=0.05)
    assert totals["unit"] > 4
    assert totals["scaled"] < 1.5


def test_zero_branches_leave_the_stream_alone() -> None:
    build, _ = SCALABLE["nested"]
    model, x = build(), torch.randn(8, WIDTH)
    plan = unitvar.initialize_(model, x, residual="zero")
    assert plan["blocks.0.inner.2.3.weight"].scale == 0
    assert isinstance(model, Stream)
    torch.testing.assert_close(model(x), model.head(model.first(x)), rtol=0, atol=0)


def test_measured_weights_follow_the_plan_of_their_branch() -> None:
    for residual, expected in (("scaled", 0.25), ("zero", 0.0), ("unit", 1.0)):
        model = SCALABLE["pre-norm"][0]()
        x = torch.randn(256, WIDTH)
        unitvar.initialize_(model, x, method="measured", residual=residual)
        assert isinstance(model, Stream)
        assert added(model, x)[2] == pytest.approx(expected, rel=0.15)


def test_the_papers_formula_knows_no_branches() -> None:
    build, _ = SCALABLE["no norm"]
    model, x = build(), torch.zeros(8, WIDTH)
    plans = [unitvar.plan(model, x, mode="paper", residual=r) for r in ("scaled", "unit")]
    assert [a.scale for a in plans[0]] == [b.scale for b in plans[1]]


def test_a_post_norm_stream_has_no_backward_scales_and_the_plan_says_so() -> None:
    model, x = SCALABLE["post-norm"][0](), torch.zeros(8, WIDTH)
    assert "found no scales" in unitvar.plan(model, x, mode="backward").advice[0]
    assert not unitvar.plan(model, x).advice


@pytest.mark.parametrize("mode", ["backward", "mean"])
def test_other_modes_scale_branches_by_the_same_factor(mode: str) -> None:
    model = Stream(lambda b, x: x + b(x), lambda: nn.Sequential(norm(), *Branch()), 4)
    x = torch.zeros(8, WIDTH)
    scaled, unit = (unitvar.plan(model, x, mode=mode, residual=r) for r in ("scaled", "unit"))
    for layer in scaled:
        if layer.branch:
            assert layer.scale == pytest.approx(unit[layer.name].scale / 2, rel=0.1)


@pytest.mark.parametrize(("option", "value"), [("residual", "small"), ("embeddings", "zero")])
def test_a_bad_option_is_named_with_what_is_allowed(option: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{option}='{value}' is not one of '(auto|keep)', '"):
        unitvar.plan(nn.Linear(2, 2), torch.zeros(1, 2), **{option: value})
