"""activation_moments: exact for every activation and every Gaussian input."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import unitvar
from tests.activations.reference import REFERENCES, Reference, moments
from unitvar.activations import NAMES, ActivationMoments, activation_moments, closed
from unitvar.activations.check import as_function
from unitvar.activations.integrate import integrals

MEANS = st.floats(-3, 3)
STDS = st.floats(0.05, 5)


def tolerance(value: float, mean: float, std: float) -> float:
    return 1e-8 * max(abs(value), 1e-3 * max(1, mean**2 + std**2))


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda r: str(r.fn))
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-3.0, 0.05), (0.31, 0.07), (3.0, 0.7), (-1.5, 5.0)])
def test_equals_thirty_digit_arithmetic(reference: Reference, mean: float, std: float) -> None:
    found = activation_moments(reference.fn, mean, std)
    for ours, exact in zip((found.mean, found.second, found.slope), moments(reference, mean, std), strict=True):
        assert abs(ours - exact) <= tolerance(exact, mean, std)


@given(MEANS, STDS, st.sampled_from([n for n, fn in NAMES.items() if closed.pieces(fn) and n != "hardsigmoid"]))
def test_closed_form_equals_quadrature(mean: float, std: float, name: str) -> None:
    # Not hardsigmoid: PyTorch divides by a float32 six in its backward, 6e-8 off.
    fn = NAMES[name]
    pieces = closed.pieces(fn)
    assert pieces is not None
    by_quadrature = integrals(as_function(fn), mean, std)
    for ours, other in zip(closed.integrals(pieces, mean, std), by_quadrature, strict=True):
        assert ours == pytest.approx(other, rel=1e-8, abs=1e-11 * max(1, mean**2 + std**2))


def test_torch_hardsigmoid_slope_is_only_single_precision() -> None:
    """The reason hardsigmoid is left out above; if it fails, PyTorch has mended it."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    F.hardsigmoid(x).sum().backward()
    assert x.grad is not None
    assert 1e-9 < abs(x.grad.item() - 1 / 6) < 1e-7


@given(st.floats(-4, 4), MEANS, STDS)
def test_a_jump_anywhere_is_found(at: float, mean: float, std: float) -> None:
    found = activation_moments(lambda x: torch.where(x > at, x + 2, 0.1 * x), mean, std)
    pieces = [(-math.inf, at, {(1, 0.0): 0.1}), (at, math.inf, {(1, 0.0): 1.0, (0, 0.0): 2.0})]
    for ours, exact in zip(
        (found.mean, found.second, found.slope), closed.integrals(pieces, mean, std)[:3], strict=True
    ):
        assert abs(ours - exact) <= tolerance(exact, mean, std)


@given(st.floats(-2, 2), st.floats(1e-6, 3e-2))
def test_a_small_step_on_a_slope_is_found(at: float, height: float) -> None:
    found = activation_moments(lambda x: 10 * x + height * (x > at).to(x))
    above = math.erfc(at / math.sqrt(2)) / 2
    assert found.mean == pytest.approx(height * above, rel=1e-8, abs=1e-11)


@given(MEANS, STDS, st.floats(0.01, 100), st.sampled_from(["tanh", "gelu", "elu", "softplus"]))
def test_scaling_the_function_scales_its_moments(mean: float, std: float, a: float, name: str) -> None:
    base = activation_moments(name, mean, std)
    fn = NAMES[name]
    scaled = activation_moments(lambda x: a * fn(x), mean, std)
    assert scaled.mean == pytest.approx(a * base.mean, rel=1e-8, abs=1e-11)
    assert scaled.second == pytest.approx(a * a * base.second, rel=1e-8, abs=1e-11)
    assert scaled.slope == pytest.approx(a * a * base.slope, rel=1e-8, abs=1e-11)


@given(MEANS, STDS, st.sampled_from(["tanh", "gelu", "elu", "relu", "sin"]))
def test_shifting_the_function_shifts_its_input(mean: float, std: float, name: str) -> None:
    fn = NAMES[name]
    shifted = activation_moments(lambda x: fn(std * x + mean))
    direct = activation_moments(name, mean, std)
    assert shifted.second == pytest.approx(direct.second, rel=1e-8, abs=1e-11)
    assert shifted.slope == pytest.approx(std**2 * direct.slope, rel=1e-8, abs=1e-11)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_monte_carlo_agrees(name: str) -> None:
    mean, std = 0.4, 1.3
    z = mean + std * torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z.requires_grad_()
    y = NAMES[name](z)
    (slope,) = torch.autograd.grad(y.sum(), z)
    found = activation_moments(name, mean, std)
    for value, sample in ((found.mean, y), (found.second, y**2), (found.slope, slope**2)):
        standard_error = sample.std().item() / math.sqrt(len(z))
        assert abs(sample.mean().item() - value) < 5 * standard_error + 1e-7


@given(st.floats(0.2, 3.0), st.sampled_from(["relu", "gelu", "silu", "tanh", "elu", "mish", "hardswish", "sin"]))
def test_chi_is_the_logarithmic_derivative_of_the_second_moment(std: float, name: str) -> None:
    h = 1e-4
    above, below = (math.log(activation_moments(name, std=std * math.exp(s)).second) for s in (h, -h))
    assert activation_moments(name, std=std).chi == pytest.approx((above - below) / (4 * h), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "chi"),
    list(
        zip(
            ["relu", "leaky_relu", "elu", "selu", "tanh", "mish", "gelu", "silu", "hardswish"],
            [1.0, 1.0, 0.891, 0.783, 0.461, 1.076, 1.144, 1.173, 1.224],
            strict=True,
        )
    ),
)
def test_chi_has_the_known_values(name: str, chi: float) -> None:
    assert activation_moments(name).chi == pytest.approx(chi, abs=5e-4)


def test_known_closed_forms() -> None:
    assert activation_moments("sin", std=0.7).second == pytest.approx((1 - math.exp(-2 * 0.49)) / 2, rel=1e-12)
    gelu = activation_moments("gelu")
    assert gelu.mean == pytest.approx(1 / (2 * math.sqrt(math.pi)), rel=1e-12)
    assert gelu.second == pytest.approx(1 / 3 + 1 / (2 * math.pi * math.sqrt(3)), rel=1e-12)
    assert activation_moments("erf").second == pytest.approx(2 / math.pi * math.asin(2 / 3), rel=1e-12)


@pytest.mark.parametrize("fn", [None, "relu", "tanh", nn.ELU(0.5), torch.sigmoid], ids=range(5))
def test_is_frozen_and_consistent(fn: object) -> None:
    found = activation_moments(fn, 0.5, 2.0)  # type: ignore[arg-type]
    assert found.var == pytest.approx(found.second - found.mean**2)
    with pytest.raises(AttributeError):
        found.mean = 0.0  # type: ignore[misc]


def test_unknown_activation_halves_the_second_moment() -> None:
    assert activation_moments(None) == ActivationMoments(0.0, 0.5, 0.5, chi=1.0)
    assert activation_moments(None, 1.0, 2.0).second == 2.5


@pytest.mark.parametrize("name", sorted(NAMES))
def test_zero_std_is_the_value_at_the_mean(name: str) -> None:
    x = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    y = NAMES[name](x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    found = activation_moments(name, 0.7, 0.0)
    assert (found.mean, found.second, found.slope) == pytest.approx((y.item(), y.item() ** 2, slope.item() ** 2))


class Cubic(torch.autograd.Function):
    """A user's own function, with a backward of its own."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return 3 * x**2 * grad[0]


class Float32Only(nn.Module):
    """A module with float32 parameters and buffers and a counter that it writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return F.prelu(x, self.scale)


@pytest.mark.parametrize(
    ("fn", "same_as"),
    [
        (Cubic.apply, lambda x: x**3),
        (Cubic, lambda x: x**3),
        (nn.ReLU(inplace=True), "relu"),
        (F.silu, "swish"),
        (torch.Tensor.tanh, "tanh"),
        ("LeakyReLU", nn.LeakyReLU()),
        ("hard-swish", nn.Hardswish()),
        (nn.RReLU().eval(), nn.LeakyReLU((1 / 8 + 1 / 3) / 2)),
        (nn.Dropout(0.5).eval(), "identity"),
        (nn.Sequential(nn.Tanh(), nn.ReLU()), lambda x: F.relu(torch.tanh(x))),
        (Float32Only(), nn.LeakyReLU(2.0)),
    ],
    ids=range(11),
)
def test_accepts_whatever_is_an_activation(fn: object, same_as: object) -> None:
    ours, other = activation_moments(fn, 0.2, 1.1), activation_moments(same_as, 0.2, 1.1)  # type: ignore[arg-type]
    assert (ours.mean, ours.second, ours.slope) == pytest.approx((other.mean, other.second, other.slope), rel=1e-9)


def test_a_module_is_left_as_it_was() -> None:
    module = Float32Only()
    activation_moments(module)
    assert module.calls == 0
    assert module.scale.dtype == torch.float32
    assert module.scale.grad is None


def test_a_step_has_no_slope() -> None:
    assert activation_moments(lambda x: (x > 0.3).double()).slope == 0


def test_single_precision_callables_are_good_to_single_precision() -> None:
    assert activation_moments(lambda x: F.gelu(x.float())).second == pytest.approx(
        activation_moments("gelu").second, rel=1e-6
    )


def test_growing_functions_reach_beyond_ten_sigma() -> None:
    found = activation_moments(torch.exp, std=5.0)
    assert found.mean == pytest.approx(math.exp(12.5), rel=1e-10)
    assert found.second == pytest.approx(math.exp(50.0), rel=1e-10)


def test_works_inside_no_grad_and_inference_mode() -> None:
    expected = activation_moments(lambda x: torch.tanh(x)).slope
    with torch.no_grad():
        assert activation_moments(lambda x: torch.tanh(x)).slope == expected
    with torch.inference_mode():
        assert activation_moments(lambda x: torch.tanh(x)).slope == expected


@pytest.mark.usefixtures("untyped")  # beartype draws from Python's generator
def test_global_state_is_untouched() -> None:
    state, python_state = torch.get_rng_state(), random.getstate()
    torch.set_default_dtype(torch.float16)
    try:
        activation_moments(lambda x: x * torch.sigmoid(x))
        with pytest.raises(ValueError, match="random"):
            activation_moments(lambda x: F.dropout(x, 0.5))
        assert torch.get_default_dtype() == torch.float16
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state


def test_names_are_remembered_and_changing_modules_are_not() -> None:
    assert activation_moments("gelu", 0.123) is activation_moments(F.gelu, 0.123)
    prelu = nn.PReLU()
    before = activation_moments(prelu)
    with torch.no_grad():
        prelu.weight.fill_(1.0)
    assert activation_moments(prelu).second == pytest.approx(1.0) != before.second


BAD: list[tuple[object, type[Exception], str]] = [
    ("rleu", ValueError, "did you mean 'relu'"),
    ("softmax", ValueError, "not elementwise"),
    ("rrelu", ValueError, "random"),
    ("qqqqqqq", ValueError, "no name is similar"),
    (lambda x: torch.softmax(x, 0), ValueError, "not elementwise"),
    (lambda x: x.sort().values, ValueError, "not elementwise"),
    (lambda x: x - x.mean(), ValueError, "not elementwise"),
    (lambda x: x / x.abs().max(), ValueError, "not elementwise"),
    (lambda x: x.cumsum(0), ValueError, "not elementwise"),
    (lambda x: x * torch.arange(len(x)), ValueError, "not elementwise"),
    (lambda x: F.layer_norm(x, x.shape), ValueError, "not elementwise"),
    (nn.Softmax(dim=0), ValueError, "not elementwise"),
    (nn.RReLU(), ValueError, "random"),
    (nn.Dropout(0.01), ValueError, r"random.*\.eval\(\)"),
    (lambda x: x * random.random(), ValueError, "random"),
    (nn.PReLU(8), ValueError, "one slope per channel"),
    (nn.BatchNorm1d(64), ValueError, "failed on a 1-D float64 tensor"),
    (nn.GLU(dim=0), ValueError, r"shape \(64,\) into \(32,\)"),
    (torch.log, ValueError, "not finite"),
    (lambda x: x / 0, ValueError, "not finite"),
    (lambda x: torch.exp(x * x), ValueError, "not integrable"),
    (lambda x: x.abs().sqrt(), ValueError, "cannot be integrated"),
    (lambda x: x.long(), TypeError, "int64"),
    (lambda x: x > 0, TypeError, "bool"),
    (lambda x: 1.0, TypeError, "float, not a tensor"),
    (nn.ReLU, TypeError, r"pass an instance, ReLU\(\)"),
    (3, TypeError, "not an activation"),
]


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(("fn", "error", "message"), BAD, ids=[f"{i}-{b[2]}" for i, b in enumerate(BAD)])
def test_bad_activations_are_named(fn: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        activation_moments(fn)  # type: ignore[arg-type]


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("mean", "std", "error", "message"),
    [
        (0.0, -1.0, ValueError, "std=-1.0 is negative"),
        (0.0, math.nan, ValueError, "std=nan is not finite"),
        (math.inf, 1.0, ValueError, "mean=inf is not finite"),
        ("wide", 1.0, TypeError, "mean='wide' is not a number"),
    ],
)
def test_bad_inputs_are_named(mean: float, std: float, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        activation_moments("relu", mean, std)


def test_is_public() -> None:
    assert unitvar.activation_moments is activation_moments
    assert unitvar.ActivationMoments is ActivationMoments
