"""The initialisers behave as torch.nn.init does: in place, any dtype, errors that change nothing."""

import copy
import inspect
import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.init.fills import INITIALISERS, each, generator
from unitvar import init
from unitvar.init import filling


@each
def test_signature_is_that_of_the_design(fill_: Callable[..., Tensor]) -> None:
    parameters = inspect.signature(fill_).parameters
    names = "weight nonlinearity dropout mode gain transposed groups stride generator next_nonlinearity next_dropout"
    assert " ".join(parameters) == names
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[3:])


@each
def test_fills_in_place_and_returns_the_tensor(fill_: Callable[..., Tensor]) -> None:
    layer = nn.Linear(5, 7)
    before = layer.weight.clone()
    assert fill_(layer.weight) is layer.weight
    assert not torch.equal(layer.weight, before)
    assert layer.weight.requires_grad
    assert layer.weight.is_leaf


@each
def test_generator_decides_and_the_global_rng_is_untouched(fill_: Callable[..., Tensor]) -> None:
    state = torch.get_rng_state()
    a = fill_(torch.empty(9, 4), generator=generator(3))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(10)
    assert torch.equal(a, fill_(torch.empty(9, 4), generator=generator(3)))
    torch.manual_seed(3)
    assert torch.equal(a, fill_(torch.empty(9, 4)))


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
def test_any_float_dtype(fill_: Callable[..., Tensor], dtype: torch.dtype) -> None:
    w = fill_(torch.empty(64, 48, dtype=dtype), generator=generator())
    assert w.dtype == dtype
    mean_square = w.double().square().sum(dim=1).mean().item()
    noise = 5 * math.sqrt(2 / w.numel()) if fill_ in (init.normal_, init.uniform_) else 0.0
    assert mean_square == pytest.approx(2.0, rel=noise + max(1e-6, torch.finfo(dtype).eps))
    if dtype in (torch.bfloat16, torch.float16):  # computed in float32, rounded once
        single = fill_(torch.empty(64, 48), generator=generator())
        assert torch.equal(w, single.to(dtype))


@each
def test_memory_layout_does_not_matter(fill_: Callable[..., Tensor]) -> None:
    for w in (torch.empty(40, 12, 5, 5).to(memory_format=torch.channels_last), torch.empty(300, 40).T):
        strides = w.stride()
        fill_(w, generator=generator())
        assert w.stride() == strides
        noise = 5 * math.sqrt(2 / w.numel()) if fill_ in (init.normal_, init.uniform_) else 1e-6
        assert w.flatten(1).square().sum(dim=1).mean().item() == pytest.approx(2.0, rel=noise)


@each
def test_meta_and_empty_are_no_ops(fill_: Callable[..., Tensor]) -> None:
    meta = torch.empty(3, 4, device="meta")
    assert fill_(meta) is meta
    for shape in ((0, 4), (4, 0), (2, 2, 0)):
        empty = torch.empty(shape)
        with pytest.warns(UserWarning, match="no-op"):
            assert fill_(empty) is empty


@each
def test_given_gain_is_the_radius_and_the_rest_is_unused(fill_: Callable[..., Tensor]) -> None:
    w = fill_(torch.empty(200, 300), "tanh", 0.3, gain=2.0, generator=generator())
    assert w.square().sum(dim=1).mean().item() == pytest.approx(4, rel=0.05)
    assert torch.count_nonzero(fill_(torch.empty(3, 3), gain=0.0)) == 0


@pytest.mark.usefixtures("untyped")
def test_numbers_may_be_numpys() -> None:
    assert init.gain("relu", np.float32(0.5)) == init.gain("relu", 0.5)


@each
@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("weight", "kwargs", "error", "message"),
    [
        (torch.ones(5), {}, ValueError, r"shape \(5,\) has no fan-in"),
        (torch.ones(5, 5, dtype=torch.long), {}, TypeError, "int64"),
        (torch.ones(5, 5, dtype=torch.complex64), {}, TypeError, "complex64"),
        (torch.ones(4, 4), {"groups": 3}, ValueError, "groups=3 does not divide"),
        (torch.ones(4, 4), {"stride": (2, 2)}, ValueError, r"stride=\(2, 2\) does not fit"),
        (torch.ones(4, 4, 3), {"stride": 0}, ValueError, "stride=0"),
        (torch.ones(4, 4, 3), {"stride": 2.0}, ValueError, "stride=2.0 .* integers ≥ 1"),
        ([[1.0]], {}, TypeError, "weight is a list, not a tensor"),
        (torch.ones(4, 4), {"mode": "up"}, ValueError, "mode='up'"),
        (torch.ones(4, 4), {"gain": math.nan}, ValueError, "gain=nan"),
        (torch.ones(4, 4), {"gain": "big"}, TypeError, "gain='big'"),
        (torch.ones(4, 4), {"dropout": 2}, ValueError, "dropout=2"),
        (torch.ones(4, 4), {"nonlinearity": "softmax"}, ValueError, "'softmax'"),
    ],
)
def test_bad_calls_change_nothing(
    fill_: Callable[..., Tensor], weight: Tensor, kwargs: dict[str, object], error: type[Exception], message: str
) -> None:
    before, state = copy.deepcopy(weight), torch.get_rng_state()
    with pytest.raises(error, match=message):
        fill_(weight, **kwargs)
    assert torch.equal(torch.as_tensor(weight), torch.as_tensor(before))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("fill_", [init.sphere_, init.normal_, init.uniform_], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_needs_no_temporary_of_the_weights_size(fill_: Callable[..., Tensor], dtype: torch.dtype) -> None:
    weight = torch.empty(512, 512, dtype=dtype)
    fill_(weight)
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        fill_(weight)
    live = peak = 0
    for event in profile.events():  # an allocation counts to its op, a release stands by itself
        live += event.self_cpu_memory_usage
        peak = max(peak, live)
    block = 4 * filling._BLOCK * (dtype != torch.float32)  # a quarter of the weight
    assert block <= peak <= block + 100_000


def test_no_warning_in_ordinary_use() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fill_ in INITIALISERS:
            fill_(torch.empty(3, 4))
