"""Single ops after dropout, against brute force; and what they say of themselves."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from tests.expectation.sampling import errors, runs

IMAGES, ROWS = (3, 4, 8, 8), (3, 5, 12)


class Then(nn.Module):
    """Dropout in front of a function, after a wide layer that makes what reaches it nearly Gaussian."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = 12) -> None:
        super().__init__()
        self.drop, self.mix = nn.Dropout(0.3), nn.Linear(200, width)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.mix(self.drop(x)))


ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "relu": (F.relu, "closed form"),
    "leaky_relu": (F.leaky_relu, "closed form"),
    "relu6": (lambda x: F.relu6(4 * x), "closed form"),
    "hardtanh": (F.hardtanh, "closed form"),
    "clamp": (lambda x: x.clamp(max=0.2), "closed form"),
    "hardsigmoid": (lambda x: F.hardsigmoid(4 * x), "closed form"),
    "elu": (F.elu, "closed form"),
    "celu": (lambda x: F.celu(x, 0.3), "closed form"),
    "selu": (F.selu, "closed form"),
    "abs": (torch.abs, "closed form"),
    "square": (torch.square, "closed form"),
    "exp": (torch.exp, "closed form"),
    "gelu": (F.gelu, "closed form and quadrature"),
    "silu": (F.silu, "quadrature"),
    "tanh": (torch.tanh, "quadrature"),
    "sigmoid": (torch.sigmoid, "quadrature"),
    "softplus": (F.softplus, "quadrature"),
    "mish": (F.mish, "quadrature"),
    "hardswish": (lambda x: F.hardswish(2 * x), "quadrature"),
    "sin": (torch.sin, "quadrature"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_nearly_gaussian_signals(name: str) -> None:
    """The 200 inputs of a unit are not quite a Gaussian: the bound leaves 3 % of a deviation for that."""
    torch.manual_seed(0)
    function, method = ACTIVATIONS[name]
    model, x = Then(function), torch.randn(4, 200)
    with torch.no_grad():
        found, samples = unitvar.expect(model, x), runs(model, x, 10_000)
    spread = samples.var(0)
    assert ((found.mean - samples.mean(0)).square().mean() / spread.mean()).sqrt() < 0.03
    torch.testing.assert_close(found.var, spread, rtol=0.12, atol=0.02 * float(spread.mean()))
    assert method in found.methods.values()
    assert not found.sampled


def test_an_activation_written_by_hand_is_one_function() -> None:
    """x · sigmoid(1.702 x) is no product of independent factors; neither are x + x and x · x."""
    torch.manual_seed(0)
    x = torch.randn(4, 200)
    for by_hand, whole in (
        (lambda z: z * torch.sigmoid(z), F.silu),
        (lambda z: 0.5 * z * (1 + torch.erf(z / 2**0.5)), F.gelu),
        (lambda z: z + z, lambda z: 2 * z),
        (lambda z: z * z, torch.square),
        (lambda z: torch.where(z > 0, z, 0.01 * z), F.leaky_relu),
    ):
        model = Then(by_hand)
        ours = unitvar.expect(model, x)
        model.function = whole
        theirs = unitvar.expect(model, x)
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=0.02, atol=0.01)
        torch.testing.assert_close(ours.var, theirs.var, rtol=0.06, atol=0.004)


def test_dropout_just_before_an_activation_is_a_mixture() -> None:
    """With certain inputs there is nothing to approximate: the unit is f(x / keep) or f(0)."""
    x = torch.randn(50, 8, dtype=torch.float64)
    norm = nn.BatchNorm1d(8).double().eval()
    norm.running_mean.normal_()
    functions = (torch.relu, torch.tanh, F.elu, F.gelu, lambda z: z * torch.sigmoid(3 * z))
    for f, drop in itertools.product(functions, (nn.Dropout(0.4), nn.Dropout1d(0.4))):
        for between in (nn.Identity(), norm):
            model = nn.Sequential(drop, between, _Function(f)).eval()
            found = unitvar.expect(model, x)
            kept, dropped = f(between(x / 0.6)), f(between(torch.zeros_like(x)))
            mean = 0.6 * kept + 0.4 * dropped
            torch.testing.assert_close(found.mean, mean)
            torch.testing.assert_close(found.var, 0.24 * (kept - dropped).square())


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


LINEAR: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2), IMAGES),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), IMAGES),
    "same": (lambda: nn.Conv2d(4, 6, 3, padding="same"), IMAGES),
    "circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), IMAGES),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), IMAGES),
    "conv1d": (lambda: nn.Conv1d(5, 4, 3), ROWS),
    "avgpool": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), IMAGES),
    "divisor": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=4), IMAGES),
    "padded": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), IMAGES),
    "adaptive": (lambda: nn.AdaptiveAvgPool2d((3, 5)), IMAGES),
    "bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGES),
    "nearest": (lambda: nn.Upsample(scale_factor=2), IMAGES),
    "resized": (lambda: nn.Upsample(size=(5, 6), mode="bilinear", align_corners=True), IMAGES),
    "factor": (lambda: nn.Upsample(scale_factor=1.7, mode="bilinear"), IMAGES),
    "antialiased": (lambda: _Function(lambda x: F.interpolate(x, (3, 5), mode="bilinear", antialias=True)), IMAGES),
    "bicubic": (lambda: _Function(lambda x: F.interpolate(x, (5, 3), mode="bicubic", antialias=True)), IMAGES),
    "fold": (lambda: nn.Fold((4, 6), 2), (3, 8, 15)),
    "index_add": (lambda: _Function(lambda x: x.new_ones(2, 12).index_add(0, torch.tensor([1, 0, 1]), x[:, 0])), ROWS),
    "scatter_add": (
        lambda: _Function(lambda x: x.new_zeros(x.shape).scatter_add(1, torch.arange(180).view(ROWS) % 3, x)), ROWS,
    ),
    "einsum": (lambda: _Function(lambda x: torch.einsum("btc,cd->bdt", x, torch.arange(36.0).view(12, 3))), ROWS),
    "sum": (lambda: _Function(lambda x: x.sum((1, 2))), ROWS),
    "mean": (lambda: _Function(lambda x: x.mean(1, keepdim=True) + 1), ROWS),
    "views": (lambda: _Function(lambda x: torch.cat([x[:, 1:].flip(1), x[:, :1] * 2], 1).permute(2, 0, 1)[3:]), ROWS),
    "baddbmm": (lambda: _Function(lambda x: torch.baddbmm(x, x.new_ones(3, 5, 5), x.detach() * 0 + 1.0)), ROWS),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_linear_ops_are_exact_after_dropout(name: str) -> None:
    """Against the Jacobian: Var y = Σ (∂y/∂x)² Var x for independent x."""
    torch.manual_seed(0)
    build, shape = LINEAR[name]
    op, x = build().double() if name != "einsum" else build(), torch.randn(shape)
    x = x if name == "einsum" else x.double()
    model = nn.Sequential(nn.Dropout(0.3), op)
    found = unitvar.expect(model, x)
    jacobian = torch.autograd.functional.jacobian(op, x).reshape(found.mean.numel(), -1)
    var = jacobian.square() @ (x.square() * 3 / 7).flatten()
    torch.testing.assert_close(found.mean, op(x))
    torch.testing.assert_close(found.var.flatten(), var)
    assert not found.sampled


FIRST_ORDER: dict[str, Callable[[], nn.Module]] = {
    "layer_norm": lambda: nn.LayerNorm(12),
    "rms_norm": lambda: nn.RMSNorm(12),
    "group_norm": lambda: nn.Sequential(nn.Flatten(1), nn.Unflatten(1, (6, 10)), nn.GroupNorm(2, 6)),
    "batch_statistics": lambda: nn.BatchNorm1d(5, track_running_stats=False),
    "softmax": lambda: nn.Softmax(-1),
    "log_softmax": lambda: nn.LogSoftmax(-1),
    "logsumexp": lambda: _Function(lambda x: x.logsumexp((1, 2))),
    "norm": lambda: _Function(lambda x: x.norm(dim=-1, keepdim=True)),
    "var": lambda: _Function(lambda x: x.var(1)),
    "std": lambda: _Function(lambda x: x.std((-1, 1), correction=0)),
}


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_small_noise_goes_by_the_jacobian(name: str) -> None:
    """At a dropout of 1e-4 the first order is all there is."""
    torch.manual_seed(0)
    op, x = FIRST_ORDER[name]().double(), torch.randn(*ROWS, dtype=torch.float64)
    found = unitvar.expect(nn.Sequential(nn.Dropout(1e-4), op), x)
    jacobian = torch.autograd.functional.jacobian(op, x).reshape(found.mean.numel(), -1)
    var = jacobian.square() @ (x.square() * 1e-4 / (1 - 1e-4)).flatten()
    torch.testing.assert_close(found.mean, op(x), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.var.flatten(), var, rtol=0.01, atol=1e-9)
    assert "first order" in found.methods.values()


def test_max_pooling_of_two_is_exact_for_gaussians() -> None:
    torch.manual_seed(0)
    model, x = Then(lambda z: F.max_pool1d(z, 2)), torch.randn(4, 200)
    found, samples = unitvar.expect(model, x), runs(model, x, 10_000)
    mean_errors, _ = errors(samples, found.mean, found.var)
    assert mean_errors.max() < 5
    torch.testing.assert_close(found.var, samples.var(0), rtol=0.1, atol=0)


def test_the_largest_of_two_is_exact_for_gaussians_however_it_is_written() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 200)
    model = Then(lambda z: F.max_pool1d(z, 2))
    pooled = unitvar.expect(model, x)
    for function in (
        lambda z: z.unflatten(1, (6, 2)).amax(-1),
        lambda z: z.unflatten(1, (6, 2)).max(-1)[0],
        lambda z: -(-z).unflatten(1, (6, 2)).amin(2),
        lambda z: -(-z).unflatten(1, (6, 2)).min(2).values,
    ):
        model.function = function
        found = unitvar.expect(model, x)
        torch.testing.assert_close(found.mean, pooled.mean)
        torch.testing.assert_close(found.var, pooled.var)
        assert "max_pool1d" not in found.methods
        assert set(found.sampled) == set()


@pytest.mark.parametrize(
    ("function", "bound"),
    [(lambda z: z.amax((1, 2)), 0.3), (lambda z: z.norm(dim=(1, 2)), 0.15), (lambda z: z.var((1, 2)), 0.15)],
    ids=["amax", "norm", "var"],
)
def test_reductions_that_are_not_linear_of_gaussians(function: Callable[[Tensor], Tensor], bound: float) -> None:
    """15 independent Gaussians: each sees 400 inputs of its own. Of the largest, the variance is an approximation."""
    torch.manual_seed(0)
    weight = torch.randn(15, 400) / 20

    class Separate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.3)

        def forward(self, x: Tensor) -> Tensor:
            return function((self.drop(x) * weight).sum(-1).unflatten(1, (3, 5)))

    model, x = Separate(), torch.randn(6, 15, 400)
    found, samples = unitvar.expect(model, x), runs(model, x, 4000, at_once=100)
    assert not found.sampled
    spread = samples.var(0)
    assert ((found.mean - samples.mean(0)).square() / spread).mean().sqrt() < 0.06
    torch.testing.assert_close(found.var, spread, rtol=bound, atol=0)
    torch.testing.assert_close(found.var.mean(), spread.mean(), rtol=0.15, atol=0)


def test_max_pooling_with_indices_is_max_pooling() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 8, 8)
    front = [nn.Dropout(0.3), nn.Conv2d(4, 4, 3)]
    found = unitvar.expect(nn.Sequential(*front, nn.MaxPool2d(2, return_indices=True)), x)
    plain = unitvar.expect(nn.Sequential(*front, nn.MaxPool2d(2)), x)
    assert torch.equal(found.mean[0], plain.mean)
    assert torch.equal(found.var[0], plain.var)
    assert not found.sampled


def test_channel_dropout_without_a_batch_is_that_with_one() -> None:
    """``Dropout1d`` on [channels, length] drops whole rows, which a linear layer then sees as a whole."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Dropout1d(0.3), nn.Linear(12, 4)), torch.randn(5, 12)
    torch.testing.assert_close(unitvar.expect(model, x).var, unitvar.expect(model, x[None]).var[0])


def test_a_dropped_embedding_is_a_dropped_row() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.table = nn.Dropout(0.2), nn.Embedding(7, 3)

        def forward(self, index: Tensor) -> Tensor:
            return F.embedding(index, self.drop(self.table.weight))

    model, index = Dropped(), torch.tensor([[0, 6], [3, 3]])
    found = unitvar.expect(model, index)
    torch.testing.assert_close(found.mean, model.table(index))
    torch.testing.assert_close(found.var, model.table(index).square() * 0.25)


@pytest.mark.parametrize("way", ["module", "by hand", "flash"])
def test_attention_is_one_function_however_it_is_written(way: str) -> None:
    """The same weights through nn.MultiheadAttention, a softmax by hand and scaled_dot_product_attention."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, 3, dropout=0.2, batch_first=True)
    drop = nn.Dropout(0.2)
    x = torch.randn(4, 5, 12)

    class By(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = layer, drop

        def forward(self, x: Tensor) -> Tensor:
            x = self.drop(x)
            if way == "module":
                return self.layer(x, x, x, need_weights=False)[0]
            packed = F.linear(x, self.layer.in_proj_weight, self.layer.in_proj_bias)
            q, k, v = packed.unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
            if way == "flash":
                mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if self.training else 0.0)
            else:
                mixed = self.drop((q @ k.transpose(-2, -1) / 2).softmax(-1)) @ v
            return self.layer.out_proj(mixed.transpose(1, 2).flatten(2))

    found, samples = unitvar.expect(By(), x), runs(By(), x, 10_000)
    assert not found.sampled
    spread = samples.var(0).mean()
    assert ((found.mean - samples.mean(0)).square().mean() / spread).sqrt() < 0.1
    torch.testing.assert_close(found.var.mean(), spread, rtol=0.15, atol=0)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrences_with_dropout_between_layers(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind(8, 32, 2, dropout=0.4, batch_first=True, bidirectional=True)
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        found, samples = unitvar.expect(model, x), runs(model, x, 4000)
        off = model(x)[0]
    spread = samples.var(0).mean()
    assert ((found.mean[0] - samples.mean(0)).square().mean() / spread).sqrt() < 0.05
    torch.testing.assert_close(found.var[0].mean(), spread, rtol=0.08, atol=0)
    assert (found.mean[0] - samples.mean(0)).square().mean() < (off - samples.mean(0)).square().mean()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_that_no_noise_has_reached_is_evaluation_to_the_bit(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = kind(8, 16, 2, dropout=0.4, bidirectional=True), torch.randn(5, 3, 8)
    with torch.no_grad():
        found, off = unitvar.expect(model, x), model.eval()(x)
    for mean, var, plain in zip(
        *((s if isinstance(s, tuple) else (s,)) for s in (found.mean[1], found.var[1], off[1])), strict=True
    ):
        assert torch.equal(mean[:2], plain[:2])
        assert not var[:2].any()
        assert (var[2:] > 0).all()


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.ELU(), nn.SiLU(), nn.LeakyReLU(), nn.PReLU(4)])
def test_an_activation_of_many_elements_is_that_of_each(activation: nn.Module) -> None:
    """Large tensors are cut into blocks, which nobody may see: 250 examples at once, and 25."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.3), nn.Conv2d(2, 4, 3), activation, nn.Dropout2d(0.1), nn.Tanh())
    x = torch.randn(250, 2, 14, 14)
    with torch.no_grad():
        whole, parts = unitvar.expect(model, x), [unitvar.expect(model, part) for part in x.split(25)]
    torch.testing.assert_close(whole.mean, torch.cat([p.mean for p in parts]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole.var, torch.cat([p.var for p in parts]), rtol=1e-5, atol=1e-6)


class _Random(nn.Module):
    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(x) if self.training else x


@pytest.mark.parametrize(
    ("draw", "var"),
    [
        (lambda x: x * (torch.rand_like(x) < 0.8) / 0.8, lambda x: x.square() * 0.25),
        (lambda x: x.div(0.8) * (0.8 + torch.rand(len(x), 1)).floor_(), lambda x: x.square() * 0.25),
        (lambda x: x * torch.empty_like(x).bernoulli_(0.8).div_(0.8), lambda x: x.square() * 0.25),
        (lambda x: x * torch.rand_like(x).lt_(0.8).to(x.dtype).div_(0.8), lambda x: x.square() * 0.25),
        (lambda x: x * (1 + 0.5 * torch.randn_like(x)), lambda x: x.square() * 0.25),
        (lambda x: x + 0.5 * torch.randn_like(x), lambda x: torch.full_like(x, 0.25)),
        (lambda x: F.alpha_dropout(x, 0.5, True) * 0 + F.dropout(x, 0.2), lambda x: x.square() * 0.25),
    ],
    ids=["rand", "floor", "bernoulli", "in place", "gaussian", "added", "functional"],
)
def test_masks_that_a_model_draws_itself(draw: Callable[[Tensor], Tensor], var: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 6)
    found = unitvar.expect(_Random(draw), x)
    torch.testing.assert_close(found.mean, x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.var, var(x), rtol=2e-3, atol=1e-4)
    assert not found.sampled


def test_comparisons_in_place_keep_the_dtype_that_they_write_to() -> None:
    """``x.gt_(0)`` writes zeros and ones as numbers: two of them add up, where booleans would not."""
    x = torch.randn(4, 200)
    model = Then(lambda z: 10 * z.gt_(0.0) + x[:, :12].clone().gt_(0.0) + x[:, :12].clone().gt_(-1.0))
    found, samples = unitvar.expect(model, x), runs(model, x, 4000, at_once=1)
    assert found.mean.dtype == x.dtype
    torch.testing.assert_close(found.mean, samples.mean(0), rtol=0, atol=1.6)  # a step, on 16 nodes
    assert not found.sampled
