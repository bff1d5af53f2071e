"""Rules: each against the op itself on random numbers."""

import math
from collections.abc import Callable
from statistics import mean, stdev

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

import unitvar
from unitvar.rules import RULES, Moments
from unitvar.rules.weights import conv

SHAPE = (64, 8, 12, 12)
OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool2d, padded": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3),
    "mean": lambda x: x.mean((2, 3), keepdim=True).expand_as(x),
    "amax": lambda x: x.amax((2, 3), keepdim=True).expand_as(x),
    "max": lambda x: x.max(3, keepdim=True)[0].expand_as(x),
    "sum of two": lambda x: x.relu() + x.tanh(),
    "product": lambda x: x * x.sigmoid(),
    "pad": lambda x: F.pad(x, (2, 2, 2, 2)),
    "layer_norm": lambda x: F.layer_norm(x, (12,)),
    "group_norm": lambda x: F.group_norm(3 * x + 1, 4),
    "instance_norm": lambda x: F.instance_norm(3 * x + 1),
    "glu": lambda x: F.glu(torch.cat([x, x.roll(1, 0)], 1), 1),
    "softmax": lambda x: x.softmax(-1) * 10,
    "amin": lambda x: x.relu().exp().amin((2, 3), keepdim=True).expand_as(x),
    "upsample": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x + 1, size=(20, 31), mode="bilinear", align_corners=True),
    "bilinear, smaller": lambda x: F.interpolate(x, size=(5, 7), mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=3, mode="bicubic"),
    "bicubic, smaller": lambda x: F.interpolate(x, size=(5, 7), mode="bicubic"),
    "trilinear": lambda x: F.interpolate(x.unsqueeze(2), scale_factor=2, mode="trilinear")[:, :, 0],
    "dropout2d": lambda x: F.dropout2d(x, 0.4),
    "alpha_dropout": lambda x: F.alpha_dropout(F.selu(x), 0.3, True),
    "where": lambda x: torch.where(x > 0.5, x, 0.1 * x),
    "clamp": lambda x: x.clamp(-1, 2),
    "slices": lambda x: x[:, :4] * x[:, 4:],
    "hardswish": F.hardswish,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.3])),
    "norm": lambda x: x.norm(dim=1, keepdim=True).expand_as(x),
    "norm of order 1": lambda x: x.norm(p=1, dim=1, keepdim=True).expand_as(x),
    "largest modulus": lambda x: torch.linalg.vector_norm(x, float("inf"), 1, keepdim=True).expand_as(x),
    "logsumexp": lambda x: (3 * x).logsumexp(1, keepdim=True).expand_as(x),
    "log_softmax": lambda x: (3 * x + 1).log_softmax(1),
    "tril": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(1),
    "std": lambda x: x / x.std((1, 2, 3), keepdim=True),
}


class Before(nn.Module):
    """The op, then a weight that says what reached it."""

    def __init__(self, op: Callable[[Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.op, self.conv = op, nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.op(x))


@pytest.mark.parametrize("name", OPS)
def test_a_rule_gives_what_the_op_does(name: str) -> None:
    torch.manual_seed(0)
    op = OPS[name]
    x = torch.randn(SHAPE)
    y = torch.stack([op(torch.randn(SHAPE)) for _ in range(4)]).double()
    (layer,) = unitvar.plan(Before(op, y.shape[2]), x)
    assert layer.mean == pytest.approx(y.mean().item(), abs=0.02, rel=0.02)
    # A mean over 144 positions leaves 2048 numbers, whose square is known to 3 %.
    assert layer.second == pytest.approx(y.square().mean().item(), rel=0.12 if name == "mean" else 0.04)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(-9, 9))
def test_a_triangle_keeps_its_share(rows: int, columns: int, diagonal: int) -> None:
    x, ones = Moments(0.0, 1.0, (rows, columns)), torch.ones(rows, columns)
    for name in ("tril", "triu"):
        rule, share = RULES[f"aten.{name}"], getattr(ones, name)(diagonal).mean().item()
        assert rule.forward(x, diagonal).second == pytest.approx(share)
        assert rule.backward is not None
        assert rule.backward(x, diagonal) == pytest.approx(share)


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(0, 1))
def test_a_padded_value_is_shared_by_all_positions(level: float, value: float, common: float) -> None:
    """Half of the positions are c + e of their own, half are the value: E y_i y_j = E (c / 2 + value / 2)²."""
    x = Moments(level, level**2 + 1, (1, 1, 4), cross=level**2 + common)
    exact = (level**2 + common + 2 * level * value + value**2) / 4
    assert RULES["aten.constant_pad_nd"].forward(x, [2, 2], value).cross == pytest.approx(exact)


EXTREMES: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.amax(1), lambda x: x.amin(1), lambda x: x.max(1)[0], lambda x: x.min(1, keepdim=True)[0],
]  # fmt: skip


@pytest.mark.parametrize("op", EXTREMES)
def test_one_of_fifty_has_the_gradient_of_the_largest(op: Callable[[Tensor], Tensor]) -> None:
    net = nn.Sequential(nn.Linear(8, 8), Op(op), nn.Linear(8, 8))
    scale = unitvar.plan(net, torch.zeros(4, 50, 8), mode="backward")["2.weight"].scale
    assert scale**2 == pytest.approx(50)


@pytest.mark.parametrize("layer", [nn.AlphaDropout(1.0), nn.FeatureAlphaDropout(1.0)])
def test_an_alpha_dropout_of_everything_leaves_zeros(layer: nn.Module) -> None:
    assert not layer(torch.ones(4, 4, 4)).any()
    for mode in ("forward", "backward"):
        plan = unitvar.plan(nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 4)), torch.zeros(4, 4, 4), mode=mode)
        assert "0 everywhere" in plan.skipped["2.weight"]


@pytest.mark.parametrize(
    ("a", "b"),
    [((90, 70), (70,)), ((70,), (70, 90)), ((6, 50, 70), (70, 40)), ((6, 50, 70), (6, 70, 40)), ((70,), (70,))],
)
def test_a_product_hands_on_the_gradients_that_autograd_does(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    backward = RULES["aten.matmul"].backward
    assert backward is not None
    predicted = backward(Moments(0.0, 4.0, a), Moments(0.0, 9.0, b))
    found = []
    for _ in range(20):
        x, y = (2 * torch.randn(a)).requires_grad_(), (3 * torch.randn(b)).requires_grad_()
        out = x @ y
        grads = torch.autograd.grad(out, (x, y), torch.randn(out.shape))
        found.append([g.square().mean().item() for g in grads])
    for exact, each in zip(predicted, zip(*found, strict=True), strict=True):
        error = stdev(each) / len(each) ** 0.5
        assert mean(each) == pytest.approx(exact, abs=4 * error)


def test_a_sum_of_matrix_products_sums_over_matrices_too() -> None:
    shapes = (40, 50), (6, 40, 30), (6, 30, 50)
    described = [Moments(m, s, shape) for shape, m, s in zip(shapes, (0.0, 1.0, 0.0), (1.0, 5.0, 9.0), strict=True)]
    found = RULES["aten.addbmm"].forward(*described, 2.0, 0.5)
    assert found.shape == (40, 50)
    drawn = []
    for _ in range(20):
        bias, a, b = (torch.randn(shape) for shape in shapes)
        drawn.append(torch.addbmm(bias, 2 * a + 1, 3 * b, beta=2.0, alpha=0.5).square().mean().item())
    assert found.second == pytest.approx(mean(drawn), abs=4 * stdev(drawn) / len(drawn) ** 0.5)


FILTER = torch.linspace(0.1, 3, 65).to(torch.cfloat) * 1j
SPECTRA: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "real part": (lambda x: torch.fft.fft(x, norm="ortho").real, 1 / 2 + 1 / 128),  # two bins have no imaginary part
    "imaginary part": (lambda x: torch.fft.fft(x, norm="ortho").imag, 1 / 2 - 1 / 128),
    "modulus": (lambda x: torch.fft.fft(x, norm="ortho").abs(), 1.0),
    "and back": (lambda x: torch.fft.irfft(torch.fft.rfft(x), n=128), 1.0),
    "filtered": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * FILTER, n=128), FILTER.abs().square().mean().item()),
    "as pairs": (lambda x: torch.view_as_complex(torch.view_as_real(torch.fft.fft(x))).abs(), 128.0),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_a_fourier_transform_keeps_energy_as_parseval_says(name: str) -> None:
    op, exact = SPECTRA[name]
    net = nn.Sequential(nn.Linear(128, 128), Op(op), nn.Linear(128, 4))
    x = torch.randn(32, 128)
    plan = unitvar.plan(net, x)
    assert plan["2.weight"].second == pytest.approx(exact, rel=0.05)  # 4096 draws: 2 %
    assert any("fft" in op for op in plan.unsupported)  # sampled, and said so
    # Transposed, a transform keeps energy, too: 128 outputs of E g² = 1 against 4 weights of E g² = 1 / scale².
    if name in ("and back", "filtered"):
        assert unitvar.plan(net, x, mode="backward")["2.weight"].scale ** 2 * exact == pytest.approx(32.0, rel=0.1)


class Op(nn.Module):
    def __init__(self, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x)


def test_an_op_is_sampled_in_the_dtype_of_its_arguments() -> None:
    """Distances of 8 standard normals from fixed points c: E d² = 8 + E |c|²."""
    points = torch.randn(16, 8)
    net = nn.Sequential(nn.Linear(8, 8), Op(lambda x: torch.cdist(x, points.to(x.dtype))), nn.Linear(16, 2))
    for dtype in (torch.float32, torch.float64):
        found = unitvar.plan(net.to(dtype), torch.zeros(256, 8, dtype=dtype))["2.weight"].second
        assert found == pytest.approx(8 + points.square().sum(1).mean().item(), rel=0.05)


@pytest.mark.parametrize("channels", [5, 9])
def test_a_slope_for_each_channel_is_averaged(channels: int) -> None:
    net = nn.Sequential(nn.Conv2d(3, channels, 1), nn.PReLU(channels), nn.Conv2d(channels, 4, 1))
    slopes = torch.linspace(-1, 2, channels)
    net[1].weight.data = slopes  # type: ignore[assignment]
    layer = unitvar.plan(net, torch.zeros(2, 3, 9, 9))["2.weight"]
    assert layer.second == pytest.approx((1 + slopes.square().mean().item()) / 2)
    assert layer.mean == pytest.approx((1 - slopes.mean().item()) / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("op", [torch.max, torch.min])
def test_the_larger_of_two_independent_tensors_is_clark_s(op: Callable[..., Tensor]) -> None:
    """Clark (1961): for two independent standard normals E max = 1 / √π and E max² = 1; the minimum mirrors it."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(op(self.a(x), self.b(x)))

    for mode in ("forward", "backward"):
        layer = unitvar.plan(Two(), torch.randn(4, 8), mode=mode)["c.weight"]
        assert layer.mean == pytest.approx((1 if op is torch.max else -1) / math.sqrt(math.pi), rel=0.02)
        assert layer.second == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 64, 3), nn.Conv2d(8, 64, 3, padding=1, stride=2), nn.Conv2d(8, 64, 5, padding=4, dilation=2),
        nn.Conv2d(8, 64, 3, groups=4), nn.Conv2d(8, 64, 3, padding="same"), nn.Conv2d(8, 64, 4, padding="same"),
        nn.ConvTranspose2d(8, 64, 4, 2, 1), nn.ConvTranspose2d(8, 64, 3, 2, 1, 1, groups=2), nn.Linear(12, 64),
    ],
    ids=str,
)  # fmt: skip
def test_a_weight_gives_unit_second_moment(layer: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(layer)
    unitvar.initialize_(model, torch.zeros(SHAPE))
    with torch.no_grad():
        assert model(torch.randn(SHAPE)).square().mean().item() == pytest.approx(1.0, rel=0.05)


@given(st.integers(2, 9), st.integers(2, 9), st.integers(1, 5), st.integers(0, 3), st.integers(1, 2))
def test_neighbours_share_the_taps_that_both_see(
    height: int, width: int, kernel: int, padding: int, stride: int
) -> None:
    assume(min(height, width) + 2 * padding >= kernel + stride)
    # An input that is the same everywhere: what two outputs share is what their weights share.
    x = Moments(0.0, 1.0, (1, 1, height, width), cross=1.0, features=1)
    weight = Moments(0.0, 1.0, (1, 1, kernel, kernel))
    out = conv(x, weight, None, (stride, stride), (padding, padding), (1, 1), 1)
    masks = F.unfold(torch.ones(1, 1, height, width), kernel, padding=padding, stride=stride)
    masks = masks.reshape(kernel * kernel, *out.shape[2:])
    along = [(masks[:, :, 1:] * masks[:, :, :-1]), (masks[:, 1:] * masks[:, :-1])]
    expected = sum(both.sum(0).mean().item() for both in along) / 2
    assert out.beside == pytest.approx(expected, rel=1e-5)
    assert out.second == pytest.approx(masks.sum(0).mean().item(), rel=1e-5)


@pytest.mark.usefixtures("untyped")
def test_a_name_without_namespace_is_refused() -> None:
    with pytest.raises(ValueError, match="write it with its namespace"):
        unitvar.rule("relu")
    with pytest.raises(TypeError, match="not a function"):
        unitvar.rule("aten.relu", backward=3)  # type: ignore[arg-type]
