"""Tracing: anything that runs becomes a graph, and the model comes out as it went in."""

import logging
from collections import UserDict, defaultdict
from contextlib import nullcontext
from io import StringIO
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import unitvar
from unitvar.graph import trace


class Wrap(nn.Module):
    """Two linear layers with something in between."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x)))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pragma: no cover
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def in_views(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, :4] = x[:, :4].relu()
    x.view(-1).mul_(2)
    return x


def preallocated(x: Tensor) -> Tensor:
    out = torch.zeros(x.shape)
    for i in range(x.shape[1]):
        out[:, i] = x[:, i].relu()
    return out


def by_value(x: Tensor) -> Tensor:
    return x.relu() if x.sum() > -1e9 else x


def by_gradient(x: Tensor) -> Tensor:
    with torch.enable_grad():
        z = x.detach().clone().requires_grad_()
        (grad,) = torch.autograd.grad((z.relu() ** 2).sum() / 2, z)
    return grad


def reentrant(x: Tensor) -> Tensor:
    return checkpoint(F.relu, x, use_reentrant=True)


RELU = 0.5
BETWEEN: dict[str, tuple[Any, float]] = {
    "functional": (F.relu, RELU),
    "in place": (lambda x: F.relu_(x), RELU),
    "method in place": (lambda x: x.mul_(2).relu_(), 4 * RELU),
    "views": (in_views, 4 * (0.5 * RELU + 0.5)),
    "preallocated": (preallocated, RELU),
    "control flow on shapes": (lambda x: x.relu() if x.shape[1] == 8 else x, RELU),
    "control flow on values": (by_value, RELU),
    "autograd function": (Square.apply, 3.0),
    "checkpoint": (lambda x: checkpoint(F.relu, x, use_reentrant=False), RELU),
    "reentrant checkpoint": (reentrant, RELU),
    "doubled": (lambda x: x + x, 4.0),
    "chunks": (lambda x: torch.cat([a * b for a in x.chunk(2, 1)[:1] for b in x.chunk(2, 1)], 1)[:, :8], 2.0),
    "identity": (lambda x: x.to(x.dtype).contiguous().view(x.shape), 1.0),
    "glu": (lambda x: torch.cat([F.glu(x), F.glu(x)], 1), None),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BETWEEN)
def test_what_lies_between_two_weights_is_followed(name: str) -> None:
    between, expected = BETWEEN[name]
    model = Wrap(between)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    plan = unitvar.plan(model, torch.randn(64, 8))
    assert [layer.name for layer in plan] == ["a.weight", "b.weight"]
    if expected is not None:
        assert plan["b.weight"].second == pytest.approx(expected, rel=0.02 if name in ("chunks", "views") else 1e-6)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.filterwarnings("ignore")
def test_torchscript_and_compiled_parts_are_seen() -> None:
    for part in (
        torch.jit.script(nn.Sequential(nn.ReLU(), nn.Linear(8, 8))),
        torch.compile(nn.ReLU(), backend="eager"),
    ):
        plan = unitvar.plan(Wrap(part), torch.zeros(4, 8))
        assert plan["a.weight"].second == 1.0
        assert "b.weight" in [layer.name for layer in plan]


def test_autograd_inside_forward_works() -> None:
    assert len(unitvar.plan(Wrap(by_gradient), torch.randn(16, 8))) == 2


def test_dicts_tuples_and_nested_inputs_are_fed() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: Tensor, pair: tuple[Tensor, Tensor], *, scale: float = 1.0) -> dict[str, Tensor]:
            return {"y": self.a(x + pair[0] * pair[1]) * scale}

    x = torch.randn(2, 8)
    for example in ((x, (x, x)), {"x": x, "pair": (x, x), "scale": 2.0}):
        graph = trace(Many(), example)
        assert [n.name for n in graph.nodes][:3] == ["aten.mul", "aten.add", "aten.linear"]
        assert len(graph.outputs) == 1


class Untidy(nn.Module):
    """Writes to everything a module can write to."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("count", torch.zeros(1))
        self.plain, self.calls, self.log = torch.zeros(3), 0, []
        self.cache: dict[str, list[Tensor]] = {"keys": []}
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.fail = False

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.log.append(x)
        self.cache["keys"].append(x)
        self.count += 1
        self.plain.add_(1)
        self.last = x
        x = F.dropout(self.spectral(self.norm(self.a(x))), 0.5, self.training)
        if self.fail:
            raise RuntimeError("on purpose")
        return x


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("values", [False, True])
def test_the_model_comes_out_untouched(fail: bool, values: bool) -> None:
    model = Untidy().eval()
    model.a.train()
    model.fail = fail
    if values:  # needs real tensors
        model.register_forward_hook(lambda m, i, o: o * float(o.sum() > 0))
    example = torch.randn(4, 8)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    attributes = {name: dict(vars(m)) for name, m in model.named_modules()}
    flags = [m.training for m in model.modules()]
    hooks = [len(m._forward_hooks) for m in model.modules()]
    random = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="on purpose") if fail else nullcontext():
        trace(model, example)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == flags
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert (model.calls, model.log, model.plain.tolist(), hasattr(model, "last")) == (0, [], [0, 0, 0], False)
    assert model.cache == {"keys": []}
    assert {name: vars(m).keys() for name, m in model.named_modules()} == {n: a.keys() for n, a in attributes.items()}
    assert torch.equal(random, torch.get_rng_state())


class Doubles(nn.Module):
    """Writes to its input, and needs its values."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return x if x.sum() > 1e9 else self.a(x)


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class First(nn.Module):
    """Takes its input out of something else."""

    def __init__(self, key: Any) -> None:
        super().__init__()
        self.key, self.inner = key, Doubles()

    def forward(self, x: Any) -> Tensor:
        return self.inner(x[self.key])


@pytest.mark.parametrize(
    ("model", "wrap"),
    [
        (lambda: nn.Sequential(Doubles(), nn.LazyLinear(2)), lambda x: x),
        (Doubles, lambda x: x),
        (Doubles, lambda x: UserDict(x=x)),
        (Doubles, lambda x: MappingProxyType({"x": x})),
        (lambda: First("k"), lambda x: (defaultdict(list, k=x),)),
        (lambda: First("k"), lambda x: (UserDict(k=x),)),
        (lambda: First(0), lambda x: Pair(x, x)),
        (lambda: First(0), lambda x: ([x],)),
    ],
    ids=["lazy", "tensor", "UserDict", "proxy", "nested defaultdict", "nested UserDict", "named tuple", "nested list"],
)
def test_an_example_that_forward_writes_to_comes_out_as_it_went_in(model: Any, wrap: Any) -> None:
    made, x = model(), torch.full((4, 8), 3.0)
    plan = unitvar.plan(made, wrap(x), inputs="measured")
    unitvar.measure(made, wrap(x), runs=2)
    unitvar.initialize_(made, wrap(x), method="measured")
    assert torch.equal(x, torch.full((4, 8), 3.0))
    assert plan.layers[0].second == pytest.approx(36.0)  # twice what went in, not four times


class MaxNorm(nn.Module):
    """Keeps its tensors small in forward, in place or by assigning to ``.data``, as EEGNet does."""

    def __init__(self, *, assign: bool, values: bool) -> None:
        super().__init__()
        self.a, self.plain = nn.Linear(8, 8), torch.ones(3)
        self.register_buffer("scale", torch.ones(1))
        self.assign, self.values = assign, values

    def forward(self, x: Tensor) -> Tensor:
        for tensor in (self.a.weight, self.scale, self.plain):
            if self.assign:
                tensor.data = torch.renorm(tensor.data.view(len(tensor), -1), 2, 0, 0.1).view_as(tensor)
            else:
                tensor.data.clamp_(-0.01, 0.01)
        if self.values and x.sum() > 1e9:
            return x
        return self.a(x) * self.scale


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("assign", [False, True])
def test_tensors_that_forward_writes_to_keep_memory_and_bits(assign: bool, values: bool) -> None:
    def state(model: MaxNorm) -> list[tuple[int, torch.device, list[float]]]:
        tensors = (model.a.weight, model.a.bias, model.scale, model.plain)
        return [(t.data_ptr(), t.device, t.flatten().tolist()) for t in tensors]

    for run in (
        lambda model, x: unitvar.plan(model, x),
        lambda model, x: unitvar.measure(model, x, runs=1),
        lambda model, x: unitvar.plan(nn.Sequential(model, nn.LazyLinear(2)), x),
    ):
        model = MaxNorm(assign=assign, values=values)
        before = state(model)
        run(model, torch.randn(4, 8))
        assert state(model) == before
        model(torch.randn(4, 8)).sum().backward()  # as good as new
        assert model.a.weight.grad is not None
    if assign:
        weight = model.a.weight
        plan = unitvar.initialize_(model, torch.randn(4, 8))
        assert model.a.weight is weight
        assert torch.allclose(weight.norm(dim=1), torch.full((8,), plan["a.weight"].scale))


def test_what_fails_without_data_is_not_logged() -> None:
    lines, logger = StringIO(), logging.getLogger("torch._subclasses.fake_tensor")
    handler = logging.StreamHandler(lines)
    logger.addHandler(handler)
    try:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            unitvar.plan(nn.Linear(4, 2), torch.randn(3, 5))
        assert lines.getvalue() == ""
        logger.error("as before")
        assert lines.getvalue() == "as before\n"
    finally:
        logger.removeHandler(handler)


def test_train_mode_whatever_the_flag() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).eval()
    assert unitvar.plan(model, torch.zeros(2, 8)).layers[1].second == pytest.approx(2.0)
    assert not model.training


class Positions(nn.Module):
    """Views of buffers and parameters, as transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ids", torch.arange(10).expand(1, -1))
        self.embed, self.token = nn.Embedding(10, 8), nn.Parameter(torch.zeros(1, 1, 8))
        self.a = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.embed(self.ids[:, : x.shape[1]])
        return self.a(torch.cat((self.token.expand(len(x), -1, -1), x), 1))


def test_views_of_parameters_need_no_real_run() -> None:
    model = Positions()
    graph = trace(model, torch.zeros(2, 5, 8))
    assert not graph.real
    assert graph.outputs[0].shape == (2, 6, 8)
    assert unitvar.plan(model, torch.zeros(2, 5, 8)).skipped == {
        "token": "not a weight: used by aten.cat",
        "embed.weight": "embedding",
    }


def test_a_detour_through_numpy_is_reported() -> None:
    model = Wrap(lambda x: torch.from_numpy(2 * x.detach().numpy()))
    plan = unitvar.plan(model, torch.zeros(2, 8))
    assert [layer.name for layer in plan] == ["a.weight"]
    assert "only constants reach it" in plan.skipped["b.weight"]


def test_strict_names_the_module_of_an_op_that_is_taken_apart() -> None:
    class Similar(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * F.cosine_similarity(x, x + 1).unsqueeze(1)

    model = Wrap(Similar())
    assert unitvar.plan(model, torch.zeros(2, 8)).unsupported == {"aten.cosine_similarity": 1}
    with pytest.raises(ValueError, match=r"aten\.cosine_similarity in module 'between' has no rule"):
        unitvar.plan(model, torch.zeros(2, 8), strict=True)
