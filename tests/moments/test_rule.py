"""Rules: built in, registered and of one call."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from tests.moments.models import Calls, linear
from unitvar.graph import trace
from unitvar.moments import RULES, Moments, propagate
from unitvar.moments.reverse import gradients


@pytest.mark.usefixtures("untyped")
def test_a_name_without_namespace_is_refused() -> None:
    with pytest.raises(ValueError, match="write it with its namespace"):
        unitvar.rule("relu")
    with pytest.raises(TypeError, match="not a function"):
        unitvar.rule("aten.relu", backward=3)  # type: ignore[arg-type]


class Between(nn.Module):
    def __init__(self, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.op, self.a, self.b = op, nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.op(self.a(x)))


def squared(op: Callable[[Tensor], Tensor], **options: Any) -> float:
    """Return 1 / (E g² factor of the op): with as many rows as columns, the squared scale of the weight after it."""
    example = torch.zeros(256, 16)
    return unitvar.plan(Between(op), example, mode="backward", **options)["b.weight"].scale ** 2


def test_a_rule_without_backward_has_its_factor_from_samples() -> None:
    exact = 17 / 2  # of cumsum over 16: an input reaches 16, 15, ..., 1 outputs
    assert 1 / squared(lambda x: x.cumsum(1)) == pytest.approx(exact, rel=0.1)  # unknown: sampled altogether

    @unitvar.rule("aten.cumsum")
    def cumsum(x: Moments, dim: int, *_: Any) -> Moments:
        return x

    try:
        assert 1 / squared(lambda x: x.cumsum(1)) == pytest.approx(exact, rel=0.1)
    finally:
        del RULES["aten.cumsum"]


def test_a_rule_for_one_call_keeps_the_factor_of_its_op_or_brings_its_own() -> None:
    def pooled(x: Tensor) -> Tensor:
        return F.avg_pool1d(x, 2).repeat(1, 2)

    name = "aten.avg_pool1d"
    usual = squared(pooled)
    assert squared(pooled, rules={name: lambda x, *_: x.like(shape=(256, 8))}) == pytest.approx(usual)
    halved = squared(pooled, rules={name: (lambda x, *_: x.like(shape=(256, 8)), lambda x, *_: 0.5)})
    assert halved == pytest.approx(usual / 2)  # an average of two passes a quarter


@pytest.fixture
def rules() -> Iterator[None]:
    """Give the rules back as they were."""
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


@pytest.mark.usefixtures("rules")
def test_a_registered_rule_does_what_one_for_a_call_does() -> None:
    net, x = nn.Sequential(linear(), nn.ReLU(), nn.Dropout(0.75), linear()), torch.zeros(2, 16)
    usual = unitvar.plan(net, x)
    for name, own, times in [
        ("aten.linear", RULES["aten.linear"].forward, 1.0),
        ("aten.dropout", lambda x, *_: x, 0.25),
    ]:
        once = unitvar.plan(net, x, rules={name: own})
        unitvar.rule(name)(own)
        always = unitvar.plan(net, x)
        assert [layer.second for layer in always] == [layer.second for layer in once]
        # Without its dropout ReLU halves: 1/2 instead of 1/2 over the keep rate.
        assert [layer.second for layer in always] == pytest.approx([1.0, usual["3.weight"].second * times])
        assert usual["3.weight"].second == pytest.approx(0.5 / 0.25)


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("name", ["aten.dropout", "aten.dropout.default"])
def test_a_registered_rule_brings_its_own_backward(name: str) -> None:
    unitvar.rule(name, backward=lambda x, *_: 5.0)(lambda x, *_: x)
    assert 1 / squared(lambda x: F.dropout(x, 0.5)) == pytest.approx(5.0)
    graph = trace(nn.Dropout(0.5), torch.zeros(2, 16))
    found = propagate(graph, [Moments(0.0, 1.0)], lambda weighing: None)
    assert gradients(graph, found, [1.0])[id(graph.inputs[0])].second == pytest.approx(5.0)


@pytest.mark.usefixtures("rules")
def test_a_rule_for_all_overloads_goes_before_those_of_single_ones() -> None:
    unitvar.rule("aten.max")(lambda x, *_: x.like(mean=0.0, second=7.0, shape=x.shape[:1]))
    assert unitvar.plan(Calls(lambda m, x: m.l(x.max(1)[0]), l=linear()), torch.zeros(16, 2))["l.weight"].second == 7.0


@pytest.mark.usefixtures("untyped")
def test_a_rule_that_is_no_function_is_named() -> None:
    with pytest.raises(TypeError, match="not a function of the op's arguments, nor a pair"):
        unitvar.plan(linear(), torch.zeros(2, 16), rules={"aten.relu": (1, 2)})  # type: ignore[dict-item]
