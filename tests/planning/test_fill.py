"""Filling keeps no copy of a model, and an interrupt leaves all of it filled or nothing."""

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import unitvar
from unitvar import init
from unitvar.planning import fill

DRAWS = 6  # of small(): four weights, of which one has three experts, drawn one at a time
DISTRIBUTIONS = ["sphere", "orthonormal", "normal", "uniform"]


class Heads(nn.Module):
    """Weights with rows and columns in other places than the first and the last."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(3, 24, 40))  # batch, columns, rows
        self.split = nn.Parameter(torch.randn(5, 40, 8))  # rows on either side of the columns

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("ebi,eio->ebo", x.repeat(3, 1, 1), self.experts).relu()
        return torch.einsum("ebo,hok->ebhk", y, self.split)


def small() -> tuple[nn.Module, Tensor]:
    """Build a model with every way that a weight is drawn."""
    conv = nn.Conv2d(3, 24, 3, padding=1).to(memory_format=torch.channels_last)
    up = nn.ConvTranspose2d(24, 24, 2, stride=2)
    model = nn.Sequential(
        conv, nn.ReLU(), up, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), Heads()
    )
    return model, torch.randn(4, 3, 8, 8)


def interrupting(draw: Callable[..., Tensor], at: int, inside: bool) -> Callable[..., Tensor]:
    """Interrupt the at-th draw: before it, or in the middle, when numbers have been drawn and some written."""
    calls: list[int] = []

    def drawn(weight: Tensor, **arguments: Any) -> Tensor:
        calls.append(len(calls))
        if calls[-1] == at:
            if inside:
                weight[: len(weight) // 2].normal_(generator=arguments["generator"])
            raise KeyboardInterrupt
        return draw(weight, **arguments)

    return drawn


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("inside", [False, True], ids=["before a draw", "inside a draw"])
@pytest.mark.parametrize("own", [False, True], ids=["global", "generator"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_an_interrupt_leaves_what_no_interrupt_leaves(
    distribution: str, own: bool, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, example = small()

    def initialised(target: nn.Module) -> Tensor:
        """Fill the model, and return what the random state is afterwards."""
        generator = torch.Generator().manual_seed(3) if own else None
        torch.manual_seed(3)
        try:
            unitvar.initialize_(target, example, distribution=distribution, generator=generator)
        finally:
            state = generator.get_state() if generator else torch.get_rng_state()
        return state

    plain = copy.deepcopy(model)
    after = initialised(plain)
    assert not same(plain, model)
    for at in range(DRAWS):
        other = copy.deepcopy(model)
        draw = fill._FILL[distribution]
        monkeypatch.setitem(fill._FILL, distribution, interrupting(draw, at, inside))
        with pytest.raises(KeyboardInterrupt):
            initialised(other)
        monkeypatch.setitem(fill._FILL, distribution, draw)
        assert same(plain, other)
        assert torch.equal(torch.get_rng_state() if not own else after, after)


def test_interrupts_at_every_weight_are_held_until_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = small()
    plain, draw, calls = copy.deepcopy(model), fill._FILL["sphere"], []

    def drawn(weight: Tensor, **arguments: Any) -> Tensor:
        draw(weight, **arguments)
        calls.append(weight.shape)
        if len(calls) in (1, 3, 5, 7, 10, 14):  # once after every draw; a weight begins again with its first expert
            raise KeyboardInterrupt
        return weight

    torch.manual_seed(1)
    unitvar.initialize_(plain, example)
    monkeypatch.setitem(fill._FILL, "sphere", drawn)
    torch.manual_seed(1)
    with pytest.raises(KeyboardInterrupt) as caught:
        unitvar.initialize_(model, example)
    assert len(calls) == 15
    assert same(plain, model)
    assert not hasattr(caught.value, "__notes__")


def test_a_user_who_insists_is_told_what_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    draw = fill._FILL["sphere"]
    last = model[4].weight.detach().clone()

    def drawn(weight: Tensor, **arguments: Any) -> Tensor:
        if weight.data_ptr() == model[2].weight.data_ptr():
            raise KeyboardInterrupt
        return draw(weight, **arguments)

    monkeypatch.setitem(fill._FILL, "sphere", drawn)
    with pytest.raises(KeyboardInterrupt) as caught:
        unitvar.initialize_(model, torch.zeros(2, 8))
    (note,) = caught.value.__notes__
    assert note.startswith(
        "1 of 3 weights are filled, up to '0.weight'; '2.weight' may be partly written; those from '4."
    )
    assert torch.equal(model[4].weight, last)


def test_an_error_in_the_middle_names_what_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    draw, calls = fill._FILL["sphere"], []

    def drawn(weight: Tensor, **arguments: Any) -> Tensor:
        calls.append(weight)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no memory left")
        return draw(weight, **arguments)

    monkeypatch.setitem(fill._FILL, "sphere", drawn)
    with pytest.raises(torch.OutOfMemoryError, match="no memory left") as caught:
        unitvar.initialize_(model, torch.zeros(2, 8))
    (note,) = caught.value.__notes__
    assert note.startswith("1 of 2 weights are filled, up to '0.weight'; '2.weight' may be partly written. Fill")
    assert model[0].weight.norm(dim=1).allclose(torch.ones(8))


def test_an_interrupt_while_measuring_leaves_every_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    before, random = copy.deepcopy(model), torch.get_rng_state()
    monkeypatch.setitem(fill._FILL, "sphere", interrupting(fill._FILL["sphere"], 1, True))
    example = torch.ones(4, 8)
    with pytest.raises(KeyboardInterrupt):
        unitvar.initialize_(model, example, method="measured")
    assert same(before, model)
    assert torch.equal(random, torch.get_rng_state())


def test_lazy_layers_that_were_filled_stay_so_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 8))
    monkeypatch.setitem(fill._FILL, "sphere", interrupting(fill._FILL["sphere"], 1, False))
    with pytest.raises(KeyboardInterrupt):
        unitvar.initialize_(model, torch.zeros(4, 16))
    assert model[0].weight.norm(dim=1).allclose(torch.ones(8))
    assert model[2].weight.norm(dim=1).allclose(torch.full((8,), 2**0.5))


def expanded() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = nn.Parameter(torch.randn(1, 8).expand(8, 8))
    return model


def in_inference_mode() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    with torch.inference_mode():
        model[2].bias = nn.Parameter(torch.randn(8), requires_grad=False)
        model[2].weight = nn.Parameter(torch.randn(8, 8))
    return model


@pytest.mark.parametrize(
    ("build", "message"), [(expanded, "'2.weight' is expanded"), (in_inference_mode, "inference_mode")]
)
def test_what_cannot_be_written_is_refused_before_anything_is_drawn(
    build: Callable[[], nn.Module], message: str
) -> None:
    model, example = build(), torch.randn(4, 8)
    before, random = [p.clone() for p in model.parameters()], torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        unitvar.initialize_(model, example)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert torch.equal(random, torch.get_rng_state())


# Memory ---------------------------------------------------------------------------------------------------------------


class Allocations(TorchDispatchMode):
    """Count the bytes of storages that ops make, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        old = {id_of(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.device.type == "cpu" and (key := id_of(tensor)) not in old:
                storage = tensor.untyped_storage()
                if key not in self.alive:
                    self.alive[key] = storage.nbytes()
                    weakref.finalize(storage, self.alive.pop, key, None)
        self.peak = max(self.peak, sum(self.alive.values()))
        return out


def id_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def wide(dtype: torch.dtype, channels_last: bool) -> tuple[nn.Module, Tensor]:
    """Build a model whose largest weight is a third of it."""
    model = nn.Sequential(
        nn.Conv2d(3, 256, 3), nn.ReLU(), nn.Conv2d(256, 512, 3), nn.ReLU(), nn.Conv2d(512, 512, 3), nn.ReLU(),
        nn.Conv2d(512, 512, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 2000),
    )  # fmt: skip
    model = model.to(dtype)
    return model.to(memory_format=torch.channels_last) if channels_last else model, torch.zeros(1, 3, 12, 12).to(dtype)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("distribution", ["sphere", "normal", "uniform"])
def test_filling_takes_a_twentieth_of_the_weights(distribution: str, dtype: torch.dtype, channels_last: bool) -> None:
    model, example = wide(dtype, channels_last)
    plan = unitvar.plan(model, example, distribution=distribution)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    with Allocations() as counted:
        fill.fill(model, plan, None)
    assert counted.peak <= weights / 20


def test_the_count_of_allocations_sees_a_copy() -> None:
    weight = torch.empty(1000, 1000)
    with Allocations() as counted:
        kept = weight.clone()
        del kept
        weight[:500].clone()
    assert counted.peak == 4_000_000
    assert sum(counted.alive.values()) == 0


# Numbers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3), (100, 7), (1000, 77), (17, 8192), (40, 12, 5, 5), (33, 3000)])
@pytest.mark.parametrize("name", ["sphere_", "normal_", "uniform_"])
def test_numbers_do_not_depend_on_dtype_or_layout(name: str, shape: tuple[int, ...]) -> None:
    draw = getattr(init, name)

    def drawn(weight: Tensor) -> Tensor:
        return draw(weight, generator=torch.Generator().manual_seed(7))

    plain = drawn(torch.empty(shape))
    assert torch.equal(drawn(torch.empty(shape, dtype=torch.bfloat16)), plain.bfloat16())
    assert torch.equal(drawn(torch.empty(shape[::-1]).permute(*range(len(shape))[::-1])), plain)


def test_numbers_of_a_plain_weight_are_torchs_own() -> None:
    """The stream that earlier versions drew from: one call over the whole weight."""
    weight = init.sphere_(torch.empty(300, 70), gain=1.0, generator=torch.Generator().manual_seed(7))
    plain = torch.empty(300, 70).normal_(generator=torch.Generator().manual_seed(7))
    assert torch.allclose(weight, plain / plain.norm(dim=1, keepdim=True), rtol=1e-6)
