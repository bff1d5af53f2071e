"""Rules of a user, for ops of a user: worth as much as our own."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from unitvar.moments import RULES, Connection, Correlation, Moments

# What a user's library may have: ops of one kernel each, which no trace can look into.
LIBRARY = torch.library.Library("unitvar_tests", "DEF")
for schema in (
    "dense(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    "turned(Tensor x, Tensor weight) -> Tensor",
    "attend(Tensor query, Tensor key, Tensor value) -> Tensor",
    "unit(Tensor x) -> Tensor",
    "token_mean(Tensor x) -> Tensor",
):
    LIBRARY.define(schema)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def turned(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).softmax(-1) @ value


def unit(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def token_mean(x: Tensor) -> Tensor:
    return x.mean(1, keepdim=True).expand_as(x).clone()


for function in (dense, turned, attend, unit, token_mean):
    LIBRARY.impl(function.__name__, function, "CompositeImplicitAutograd")
OPS: Any = torch.ops.unitvar_tests


@pytest.fixture(autouse=True)
def rules() -> Iterator[None]:
    """Give the rules back as they were."""
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


class Net(nn.Module):
    """Linear layers and an attention between them, by a user's ops or by torch's."""

    def __init__(self, ours: bool, norm: bool = False) -> None:
        super().__init__()
        self.ours, self.norm = ours, norm
        self.first, self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(5))
        self.turned = nn.Parameter(torch.randn(32, 8))

    def dense(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return OPS.dense(x, layer.weight, layer.bias) if self.ours else layer(x)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.dense(self.first, x))
        if self.norm:
            x = OPS.unit(x) if self.ours else F.layer_norm(x, (32,))
        q, k, v = (self.dense(layer, x) for layer in (self.q, self.k, self.v))
        x = OPS.attend(q, k, v) if self.ours else F.scaled_dot_product_attention(q, k, v)
        x = F.relu(self.dense(self.out, x))
        return OPS.turned(x, self.turned) if self.ours else x @ self.turned


def concentration(query: Moments, key: Moments) -> float:
    """Return S + (1 - S) s² / C, S = E Σ a² drawn: keys and values come from the same C features of a token."""
    tokens, width = key.shape[-2:]
    spread = query.second * (key.second - key.pair("positions"))
    lengths = torch.randn(4096, width).square().mean(1, keepdim=True)
    rows = (torch.randn(4096, tokens) * (spread * lengths).sqrt()).softmax(1)
    squares = rows.square().sum(1).mean().item()
    return squares + (1 - squares) * spread / width


def register() -> None:
    """Say of each op what is known: forward, pairs, weights, connections, backward, words."""

    @unitvar.rule(
        "unitvar_tests.dense", weights=[1], word="dense", backward=lambda x, w, b: w.shape[0] * w.second,
        pairs=lambda kind, x, w, b: 0.0 if kind == "features" else w.shape[1] * w.second * x.pair(kind),
    )  # fmt: skip
    def dense(x: Moments, weight: Moments, bias: Any) -> Moments:
        return Moments(0.0, weight.shape[1] * weight.second * x.second, (*x.shape[:-1], weight.shape[0]))

    @unitvar.rule(
        "unitvar_tests.turned",
        weights=[1],
        connect=lambda args, position, operand: Connection.of(operand.shape, (0,)),
        pairs=lambda kind, x, w: 0.0 if kind == "features" else w.shape[0] * w.second * x.pair(kind),
        backward=lambda x, w: (w.shape[1] * w.second,),
        word="turned",
    )
    def turned(x: Moments, weight: Moments) -> Moments:
        return Moments(0.0, weight.shape[0] * weight.second * x.second, (*x.shape[:-1], weight.shape[1]))

    def shared(kind: str, query: Moments, key: Moments, value: Moments) -> float:
        """All queries average the same values: what tokens share stays, of the rest two of T averages share 1 / T."""
        if kind in ("positions", "neighbours"):
            same = value.pair("positions")
            return same + (value.second - same) / key.shape[-2]
        return value.pair(kind)

    @unitvar.rule("unitvar_tests.attend", pairs=shared, word="attend")
    def attend(query: Moments, key: Moments, value: Moments) -> Moments:
        same, weights = value.pair("positions"), concentration(query, key)
        return Moments(0.0, same + (value.second - same) * weights, query.shape)

    @unitvar.rule(
        "unitvar_tests.unit", resets=True, word="unit", backward=lambda x: 1 / x.var,
        pairs=lambda kind, x: (x.pair(kind) - x.mean**2) / x.var,
    )  # fmt: skip
    def unit(x: Moments) -> Moments:
        return Moments(0.0, 1.0, x.shape)


@pytest.mark.parametrize("norm", [False, True])
def test_a_net_of_a_users_ops_has_the_plan_of_the_builtin_spelling(norm: bool) -> None:
    register()
    x = torch.zeros(4, 64, 32)
    ours, theirs = (unitvar.plan(Net(own, norm), x, strict=True) for own in (True, False))
    assert [layer.name for layer in ours] == [layer.name for layer in theirs]
    assert not ours.unsupported
    for own, other in zip(ours, theirs, strict=True):
        assert (own.fan_in, own.fan_out) == (other.fan_in, other.fan_out)
        # The user takes all 32 features of a token for unrelated, the library counts those that are.
        assert own.scale == pytest.approx(other.scale, rel=0.1 if own.name in ("out.weight", "turned") else 0.01)
    assert ours.depth == theirs.depth
    assert ours.chi == pytest.approx(theirs.chi, rel=0.02)


def test_a_users_weights_are_filled_along_what_is_summed() -> None:
    register()
    net = Net(True)
    plan = unitvar.initialize_(net, torch.zeros(4, 64, 32))
    assert torch.allclose(net.turned.norm(dim=0), torch.full((8,), plan["turned"].scale))
    assert torch.allclose(net.first.weight.norm(dim=1), torch.ones(32))


def test_a_users_words_are_in_the_path() -> None:
    register()
    plan = unitvar.plan(Net(True, norm=True), torch.zeros(4, 64, 32))
    assert plan["q.weight"].path == "gelu → unit"
    assert plan["out.weight"].path == "attend"
    assert {layer.op for layer in plan} >= {"dense", "turned"}


@pytest.mark.parametrize("resets", [False, True])
def test_a_rule_that_resets_ends_the_path_without_a_norm(resets: bool) -> None:
    unitvar.rule("unitvar_tests.unit", resets=resets)(lambda x: x)

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = OPS.unit(F.gelu(layer(x)))
            return x

    plan = unitvar.plan(Deep(), torch.zeros(2, 8))
    assert plan.depth == (0 if resets else 3)


def test_a_rule_that_says_what_pairs_share_is_believed() -> None:
    """A mean over tokens, expanded, is the same for all: a second mean changes nothing. Unsaid, it would divide."""

    class Means(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(OPS.token_mean(self.a(x)).mean(1))

    def once(x: Moments) -> Moments:
        return x.like(second=x.second / 16)

    found = {}
    for said in (False, True):
        pairs = (lambda kind, x: x.second / 16 if kind in ("positions", "neighbours") else 0.0) if said else None
        unitvar.rule("unitvar_tests.token_mean", pairs=pairs)(once)
        found[said] = unitvar.plan(Means(), torch.zeros(4, 16, 8))["b.weight"].second
        del RULES["unitvar_tests.token_mean"]
    assert found == pytest.approx({False: 1 / 256, True: 1 / 16})


@pytest.mark.parametrize("kind", ["positions", "examples"])
def test_replaced_moments_keep_what_a_rule_does_not_say(kind: str) -> None:
    x = Moments(0.0, 1.0, (4, 16, 8), correlation=Correlation(**{kind: 0.5}))
    assert x.like(second=4.0).pair(kind) == pytest.approx(2.0)


def test_a_users_backward_is_the_gradient_of_its_op() -> None:
    register()
    x = torch.randn(64, 16, 32)
    scales = [
        {layer.name: layer.scale for layer in unitvar.plan(Net(own), x, mode="backward")} for own in (True, False)
    ]
    for name in ("out.weight", "turned", "v.weight"):
        assert scales[0][name] == pytest.approx(scales[1][name], rel=0.15), name
