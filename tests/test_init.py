"""init: gains, fans and the four distributions."""

import copy
import inspect
import itertools
import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from torch import Tensor, nn

from unitvar import activation_moments, init

INITIALISERS = [init.sphere_, init.orthonormal_, init.normal_, init.uniform_]
each = pytest.mark.parametrize("fill_", INITIALISERS, ids=lambda f: f.__name__)
RATES = st.floats(0, 0.95)
NAMES = st.sampled_from(["relu", "tanh", "elu", "gelu", "selu", "identity"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# gain


@given(RATES)
def test_relu_gain_is_hes_times_the_square_root_of_keep(dropout: float) -> None:
    assert init.gain("relu", dropout) == pytest.approx(math.sqrt(2 * (1 - dropout)))


def test_selu_forward_gain_is_one() -> None:
    assert init.gain("selu") == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", ["linear", "relu", "leaky_relu"])
def test_gain_extends_torchs(name: str) -> None:
    assert init.gain(name) == pytest.approx(nn.init.calculate_gain(name))


@given(NAMES, RATES, st.floats(0.1, 10))
def test_gains_are_those_of_the_design(name: str, dropout: float, ratio: float) -> None:
    m, keep = activation_moments(name), 1 - dropout
    forward, backward, mean, paper = (
        init.gain(name, dropout, mode=mode, fan_ratio=ratio) ** 2 for mode in ("forward", "backward", "mean", "paper")
    )
    assert forward == pytest.approx(keep / m.second)
    assert backward == pytest.approx(keep / (ratio * m.slope))
    assert mean == pytest.approx(2 / (1 / forward + 1 / backward))
    assert paper == pytest.approx(1 / (m.second / keep + ratio * keep * m.slope))


@given(NAMES, NAMES, RATES, RATES)
def test_paper_gain_takes_the_slope_from_the_next_layer(
    before: str, after: str, drop: float, drop_after: float
) -> None:
    s = init.gain(before, drop, mode="paper", next_nonlinearity=after, next_dropout=drop_after)
    loss = activation_moments(before).second / (1 - drop) + (1 - drop_after) * activation_moments(after).slope
    assert s**-2 == pytest.approx(loss)


def test_unknown_nonlinearity_without_dropout_is_the_bare_sphere() -> None:
    assert init.gain(None, mode="paper") == 1.0
    torch.testing.assert_close(init.sphere_(torch.empty(300, 20), None, mode="paper").norm(dim=1), torch.ones(300))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"mode": "fwd"}, ValueError, "mode='fwd' is not one of 'forward', 'backward', 'mean', 'paper'"),
        ({"dropout": 1.0}, ValueError, r"dropout=1.0 is not in \[0, 1\)"),
        ({"dropout": -0.1}, ValueError, "dropout=-0.1"),
        ({"dropout": math.nan}, ValueError, "dropout=nan"),
        ({"dropout": nn.Dropout(0.5)}, TypeError, r"pass the drop probability, as in nn.Dropout\(p\)"),
        ({"mode": "paper", "next_dropout": 1.5}, ValueError, "next_dropout=1.5"),
        ({"next_dropout": 0.5}, ValueError, "belong to mode='paper'"),
        ({"next_nonlinearity": None}, ValueError, "belong to mode='paper'"),
        ({"fan_ratio": 0.0}, ValueError, "fan_ratio=0.0"),
        ({"fan_ratio": "wide"}, TypeError, "fan_ratio='wide' is not a number"),
        ({"nonlinearity": "rleu"}, ValueError, "did you mean 'relu'"),
        ({"nonlinearity": torch.zeros_like}, ValueError, "has value 0 everywhere"),
        ({"nonlinearity": torch.ones_like, "mode": "backward"}, ValueError, "has slope 0 everywhere"),
    ],
)
def test_bad_gains_are_named(kwargs: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        init.gain(**kwargs)  # type: ignore[arg-type]


# the distributions


@given(st.integers(1, 40), st.integers(1, 40), RATES, NAMES, st.integers(0, 1000))
def test_rows_of_the_sphere_have_exactly_the_norm(out: int, fan_in: int, dropout: float, name: str, seed: int) -> None:
    w = init.sphere_(torch.empty(out, fan_in), name, dropout, generator=generator(seed))
    torch.testing.assert_close(w.norm(dim=1), torch.full((out,), init.gain(name, dropout)), rtol=1e-6, atol=0)


def test_rows_of_the_sphere_have_no_preferred_direction() -> None:
    w = init.sphere_(torch.empty(100_000, 3, dtype=torch.float64), gain=1.0, generator=generator())
    # On the sphere in three dimensions each coordinate is uniform on [-1, 1] (Archimedes).
    uniform = torch.rand(100_000, generator=generator(1)) * 2 - 1
    for column in w.T:
        assert ks_2samp(column.numpy(), uniform.numpy()).pvalue > 1e-3


def test_a_row_of_zeros_becomes_a_row_of_the_norm() -> None:
    """A normal draw in float32 is exactly zero now and then; a row of one such must not become NaN."""
    w = torch.tensor([[0.0], [2.0]])
    init._normalise_(w, (1,), 3.0)
    assert w.tolist() == [[3.0], [3.0]]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 1000))
def test_orthonormal_has_orthogonal_rows_or_columns_and_unit_mean_square_norm(
    rows: int, columns: int, seed: int
) -> None:
    gain = 1.3
    w = init.orthonormal_(torch.empty(rows, columns, dtype=torch.float64), gain=gain, generator=generator(seed))
    assert (w**2).sum(dim=1).mean().item() == pytest.approx(gain**2)
    product = w @ w.T if rows <= columns else w.T @ w
    scale = gain**2 * max(1, rows / columns)
    torch.testing.assert_close(product, scale * torch.eye(len(product), dtype=torch.float64))


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_orthonormal_is_haar(shape: tuple[int, int]) -> None:
    """Signs of QR left as they come would make the trace of a square matrix biased."""
    rows, columns = shape
    many = init.orthonormal_(torch.empty(4000 * rows, columns), gain=1.0, groups=4000, generator=generator())
    entries = many.view(4000, rows, columns)
    standard_error = entries.std(dim=0) / math.sqrt(len(entries))
    assert (entries.mean(dim=0).abs() < 5 * standard_error).all()


def test_normal_forward_relu_is_he() -> None:
    ours = init.normal_(torch.empty(400, 200), generator=generator(1))
    he = nn.init.kaiming_normal_(torch.empty(400, 200), nonlinearity="relu", generator=generator(2))
    assert ks_2samp(ours.flatten().numpy(), he.flatten().numpy()).pvalue > 1e-3


def test_uniform_paper_unknown_is_xavier() -> None:
    ours = init.uniform_(torch.empty(400, 200), None, mode="paper", generator=generator(1))
    xavier = nn.init.xavier_uniform_(torch.empty(400, 200), generator=generator(2))
    assert ks_2samp(ours.flatten().numpy(), xavier.flatten().numpy()).pvalue > 1e-3
    assert ours.abs().max().item() <= math.sqrt(6 / 600) * (1 + 1e-6)


def test_normal_and_uniform_in_paper_mode_weigh_the_backward_term_with_the_fans() -> None:
    w = init.normal_(torch.empty(1000, 250), "tanh", 0.5, mode="paper", generator=generator())
    m = activation_moments("tanh")
    expected = 1 / (250 / 0.5 * m.second + 0.5 * 1000 * m.slope)  # the paper's Discussion, over three
    assert w.var().item() == pytest.approx(expected, rel=5 * math.sqrt(2 / w.numel()))
    sphere = init.sphere_(torch.empty(1000, 250), "tanh", 0.5, mode="paper")
    assert sphere[0].norm().item() ** 2 == pytest.approx(1 / (m.second / 0.5 + 0.5 * m.slope))


# fans, by brute force: the variance of the real layer on Gaussian input


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(40, 60),
    "conv1d": lambda: nn.Conv1d(8, 12, 5),
    "conv2d": lambda: nn.Conv2d(8, 16, 3),
    "conv2d-stride": lambda: nn.Conv2d(8, 16, 3, stride=2),
    "conv2d-grouped": lambda: nn.Conv2d(8, 16, 3, groups=4),
    "conv2d-depthwise": lambda: nn.Conv2d(64, 64, 3, groups=64),
    "conv3d": lambda: nn.Conv3d(4, 6, 3),
    "transposed": lambda: nn.ConvTranspose2d(8, 16, 3),
    "transposed-2-2": lambda: nn.ConvTranspose2d(16, 8, 2, stride=2),
    "transposed-3-2": lambda: nn.ConvTranspose2d(16, 8, 3, stride=2),
    "transposed-4-2-grouped": lambda: nn.ConvTranspose2d(16, 8, 4, stride=2, groups=4),
    "transposed-1-2": lambda: nn.ConvTranspose2d(16, 8, 1, stride=2),
    "transposed1d-5-(3)": lambda: nn.ConvTranspose1d(16, 8, 5, stride=3),
}


def layer_options(layer: nn.Module) -> dict[str, object]:
    if isinstance(layer, nn.Linear):
        return {}
    transposed = isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d))
    return {"transposed": transposed, "groups": layer.groups, "stride": layer.stride}


def interior(layer: nn.Module, y: Tensor) -> Tensor:
    """Cut the border off, where padding or the edge takes connections away, at a multiple of the stride."""
    if isinstance(layer, nn.Linear):
        return y
    border = 6
    for dim, step in enumerate(layer.stride, start=2):
        length = (y.shape[dim] - 2 * border) // step * step
        y = y.narrow(dim, border, length)
    return y


def variances(fill_: Callable[..., Tensor], layer: nn.Module, mode: str) -> tuple[float, float]:
    """Mean squares of the output and of the input's gradient, for unit-variance input and output gradient."""
    forward, backward = [], []
    for seed in range(12):
        fill_(layer.weight, "identity", mode=mode, generator=generator(seed), **layer_options(layer))
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        shape = {nn.Linear: (200, 40), nn.Conv3d: (2, 4, 18, 18, 18)}.get(type(layer))
        if shape is None:
            dims = layer.weight.dim() - 2  # type: ignore[operator, union-attr]
            shape = (40 if dims == 1 else 4, layer.in_channels, *[30] * dims)  # type: ignore[arg-type]
        x = torch.randn(shape, generator=generator(100 + seed), requires_grad=True)
        y = layer(x)
        (grad,) = torch.autograd.grad(y, x, torch.randn(y.shape, generator=generator(200 + seed)))
        forward.append(interior(layer, y.detach()).square().mean().item())
        margin = (slice(None), slice(None)) + (slice(6, -6),) * (x.dim() - 2)
        backward.append(grad[margin].square().mean().item())
    return sum(forward) / len(forward), sum(backward) / len(backward)


@each
@pytest.mark.parametrize("name", LAYERS)
def test_the_real_layer_keeps_its_variance(fill_: Callable[..., Tensor], name: str) -> None:
    layer = LAYERS[name]()
    assert variances(fill_, layer, "forward")[0] == pytest.approx(1, rel=0.12)
    assert variances(fill_, layer, "backward")[1] == pytest.approx(1, rel=0.12)


def test_fans_count_the_connections_that_exist() -> None:
    depthwise = init.fans(torch.empty(32, 1, 3, 3), groups=32)
    assert (depthwise.fan_in, depthwise.fan_out) == (9, 9)
    doubling = init.fans(torch.empty(16, 8, 2, 2), transposed=True, stride=2)
    assert (doubling.fan_in, doubling.fan_out) == (16, 32)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(1, 5))
def test_fans_equal_the_counted_connections(
    inputs: int, outputs: int, groups: int, stride: int, transposed: bool, kernel: int
) -> None:
    make = nn.ConvTranspose1d if transposed else nn.Conv1d
    layer = make(inputs * groups, outputs * groups, kernel, stride=stride, groups=groups, bias=False)
    nn.init.ones_(layer.weight)
    # A ring, so that there is no border: 12 positions of one input at a time; the sum of the outputs counts its edges.
    ring = torch.ones(1, inputs * groups, 60)
    edges = layer(ring).sum().item()
    fan = init.fans(layer.weight, transposed=transposed, groups=groups, stride=stride)
    if transposed:
        assert edges == ring.numel() * fan.fan_out
        assert fan.fan_in * outputs * stride == pytest.approx(fan.fan_out * inputs)
    else:
        assert edges == layer(ring).numel() * fan.fan_in
        assert fan.fan_out * inputs * stride == pytest.approx(fan.fan_in * outputs)


def test_no_output_of_a_transposed_convolution_is_louder_than_another() -> None:
    layer = nn.ConvTranspose2d(32, 16, 3, stride=2, bias=False)
    init.sphere_(layer.weight, "identity", transposed=True, stride=2)
    y = layer(torch.randn(64, 32, 12, 12)).detach()[:, :, 6:18, 6:18]
    phases = torch.stack([y[:, :, i::2, j::2].square().mean() for i in (0, 1) for j in (0, 1)])
    torch.testing.assert_close(phases, torch.ones(4), rtol=0.1, atol=0)


def test_orthonormal_groups_are_orthogonal_each() -> None:
    w = init.orthonormal_(torch.empty(12, 4, 3), gain=1.0, groups=3)
    for group in w.flatten(1).split(4):
        torch.testing.assert_close(group @ group.T, torch.eye(4))


# like torch.nn.init


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
        (torch.ones(4, 4, 3), {"stride": 2.0}, ValueError, "stride=2.0 .* one whole step"),
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
    block = 4 * init._BLOCK * (dtype != torch.float32)  # a quarter of the weight
    assert block <= peak <= block + 100_000


# depth


def deep(fill_mode: str, name: str, keep: float, seed: int) -> tuple[list[float], list[float]]:
    """Mean squares of the pre-activations and of their gradients in the paper's network: 15 x 500, then 250."""
    g = generator(seed)
    torch.manual_seed(seed)
    widths = [500] * 16 + [250] * 5
    h = torch.randn(500, widths[0], generator=g)
    zs = []
    for i, (n, m) in enumerate(itertools.pairwise(widths)):
        before, dropout = ("identity", 0.0) if i == 0 else (name, 1 - keep)
        w = init.sphere_(torch.empty(m, n), before, dropout, mode=fill_mode, generator=g)
        zs.append((h @ w.T).requires_grad_())
        zs[-1].retain_grad()
        fn = getattr(F, name, None) or getattr(torch, name)
        h = F.dropout(fn(zs[-1]), 1 - keep)
    (zs[-1] * torch.randn(zs[-1].shape, generator=g)).sum().backward()
    return [z.square().mean().item() for z in zs], [z.grad.square().mean().item() for z in zs]  # type: ignore[union-attr]


@pytest.mark.parametrize("keep", [1.0, 0.8, 0.6, 0.3])
@pytest.mark.parametrize("name", ["relu", "tanh", "elu"])
def test_twenty_layers_keep_the_forward_variance(name: str, keep: float) -> None:
    for seed in range(3):
        forward, _ = deep("forward", name, keep, seed)
        assert min(forward) > 0.4
        assert max(forward) < 2.5


@pytest.mark.parametrize("keep", [1.0, 0.8, 0.6, 0.3])
@pytest.mark.parametrize("name", ["relu", "elu"])
def test_twenty_layers_keep_the_gradient_variance(name: str, keep: float) -> None:
    for seed in range(3):
        _, backward = deep("backward", name, keep, seed)
        assert min(backward) > 0.4
        assert max(backward) < 2.5


def test_the_papers_backward_term_explodes_under_autograd() -> None:
    """Erratum 2: scaled by the bare-mask factor p E f'², 19 steps at p = 0.6 multiply the gradient by p^-38 or so."""
    g = generator()
    keep, grads = 0.6, []
    h = torch.randn(500, 400, generator=g)
    for i in range(20):
        radius = 1.0 if i == 0 else 1 / math.sqrt(keep * activation_moments("relu").slope)
        z = (h @ init.sphere_(torch.empty(400, 400), gain=radius, generator=g).T).requires_grad_()
        z.retain_grad()
        grads.append(z)
        h = F.dropout(F.relu(z), 1 - keep)
    grads[-1].backward(torch.randn(z.shape, generator=g))
    growth = grads[0].grad.square().mean() / grads[-1].grad.square().mean()  # type: ignore[union-attr]
    assert keep**-38 / 3 < growth.item() < keep**-38 * 3
    assert growth.item() > 1e8 / 3


def test_no_warning_in_ordinary_use() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fill_ in INITIALISERS:
            fill_(torch.empty(3, 4))
