"""Bad input, strange values and failures: a clear error or right numbers, and no trace in the model."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import unitvar
from unitvar.expectation import gaussian


def test_bad_arguments_are_named() -> None:
    x = torch.ones(2, 4)
    for samples in (-1, True):
        with pytest.raises(ValueError, match="is not an integer of 0 or more"):
            unitvar.expected(nn.Linear(4, 2), samples=samples)
    with pytest.raises(ValueError, match="has no shape yet"):
        unitvar.expect(nn.Sequential(nn.LazyLinear(3), nn.Dropout()), x)
    with pytest.raises(TypeError, match="one tensor of logits"):
        _ = unitvar.expect(nn.LSTM(4, 2), x).probabilities


class Cumulative(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumprod(x, -1)


def test_ops_without_a_rule_are_sampled_and_named() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Dropout(0.1), nn.Linear(64, 3), Cumulative()), torch.randn(2, 64)
    state = torch.get_rng_state()
    few, many = unitvar.expect(model, x), unitvar.expect(model, x, samples=4000)
    assert torch.equal(torch.get_rng_state(), state)
    assert few.sampled == many.sampled == {"aten.cumprod": "2"}
    assert many.methods["cumprod"] == "sampled"
    inner = unitvar.expect(model[:2], x)
    torch.testing.assert_close(many.mean[:, 0], inner.mean[:, 0], rtol=0.05, atol=0.05)
    exact = inner.mean[:, 0] * inner.mean[:, 1]
    torch.testing.assert_close(many.mean[:, 1], exact, rtol=0.1, atol=0.05)
    with pytest.raises(ValueError, match=r"aten.cumprod in '2' has no rule for these arguments, and strict=True"):
        unitvar.expect(model, x, strict=True)


class Rotated(nn.Module):
    """Multiplies pairs of features by complex numbers of size one, as rotary embeddings do."""

    def __init__(self, real: bool = True) -> None:
        super().__init__()
        self.drop, self.mix, self.real = nn.Dropout(0.3), nn.Linear(64, 6), real
        self.register_buffer("turns", torch.tensor([0.3, 1.2, -2.0]))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(self.mix(self.drop(x)).unflatten(-1, (3, 2)))
        turned = pairs * torch.polar(torch.ones_like(self.turns), self.turns)
        return torch.view_as_real(turned) if self.real else turned


def test_complex_numbers_are_sampled_as_one_and_named() -> None:
    """A rotation leaves the sum of both variances; the real part's is cos² of the one and sin² of the other."""
    torch.manual_seed(0)
    model, x = Rotated(), torch.randn(2, 64)
    found = unitvar.expect(model, x, samples=4000)
    before = unitvar.expect(nn.Sequential(model.drop, model.mix), x)
    a, b = before.var.unflatten(-1, (3, 2)).unbind(-1)
    cos, sin = model.turns.cos().square(), model.turns.sin().square()
    torch.testing.assert_close(found.var, torch.stack([cos * a + sin * b, sin * a + cos * b], -1), rtol=0.12, atol=0)
    assert set(found.sampled) == {"aten.view_as_complex", "aten.mul", "aten.view_as_real"}
    with pytest.raises(ValueError, match=r"aten.view_as_complex in 'the model' computes with complex numbers"):
        unitvar.expect(model, x, strict=True)
    with pytest.raises(ValueError, match="returns complex numbers that depend on dropout"):
        unitvar.expect(Rotated(real=False), x)


def test_indices_are_those_of_the_means_and_named() -> None:
    class Choice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.argmax(-1)

    x = torch.randn(5, 4)
    found = unitvar.expect(nn.Sequential(nn.Dropout(0.2), Choice()), x)
    assert torch.equal(found.mean, x.argmax(-1))
    assert found.methods["argmax"] == "at the mean"
    assert found.sampled == {"aten.argmax": "1"}


class LayerDrop(nn.Module):
    def __init__(self, drawn: str) -> None:
        super().__init__()
        self.layer, self.drawn = nn.Linear(4, 4), drawn

    def forward(self, x: Tensor) -> Tensor:
        number = random.random() if self.drawn == "python" else torch.rand([]).item()
        return x if self.training and number < 0.5 else self.layer(x)


@pytest.mark.parametrize("drawn", ["python", "torch"])
def test_layer_drop_is_refused_and_leaves_no_trace(drawn: str) -> None:
    model = nn.Sequential(nn.Dropout(0.1), LayerDrop(drawn), nn.BatchNorm1d(4)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(3, 4)
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="as LayerDrop does"):
        unitvar.expect(model, x)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_failing_forward_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Dropout(0.1), nn.BatchNorm1d(4), nn.Linear(5, 2)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(RuntimeError):
        unitvar.expect(model, torch.randn(3, 4))
    assert all(module.training for module in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_batch_norm_keeps_its_running_statistics() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = unitvar.expect(model, torch.randn(3, 4))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert found.mean.shape == (3, 2)


def test_a_batch_of_one_is_the_first_of_two() -> None:
    """Also where a batch norm has a single value a channel, as in a squeeze-and-excite gate, which training refuses."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Dropout(0.3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3)
    ).eval()
    x = torch.randn(2, 2, 5, 5)
    one, two = unitvar.expect(model, x[:1]), unitvar.expect(model, x)
    torch.testing.assert_close(one.mean, two.mean[:1])
    torch.testing.assert_close(one.var, two.var[:1])


class Reduced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        parts = x.norm(dim=-1), x.amax(-1), x.std(-1), x.logsumexp(-1), x.min(-1)[0]
        return torch.stack(parts, -1)


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-4, 1.0, 1e4, 1e15])
@pytest.mark.parametrize("p", [1e-6, 0.5, 1 - 1e-6, 1.0])
def test_no_negative_variance_and_no_nan(scale: float, p: float) -> None:
    """Zero and huge signals, rates next to 0 and 1, a batch of one."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for activation in (nn.ReLU(), nn.GELU(), nn.ELU(), nn.Tanh(), nn.Hardtanh(), nn.LeakyReLU(), nn.SiLU()):
        layers += [nn.Dropout(p), nn.Linear(6, 6), activation]
    for model in (
        nn.Sequential(*layers),
        nn.Sequential(nn.Dropout(p), nn.LayerNorm(6), nn.Dropout(p), nn.Softmax(-1)),
        nn.Sequential(nn.Dropout(p), nn.Unflatten(1, (2, 3)), nn.MaxPool1d(3, 1, 1), nn.LogSoftmax(-1)),
        nn.Sequential(nn.Dropout(p), Reduced()),
    ):
        found = unitvar.expect(model, scale * torch.randn(1, 6))
        assert found.mean.isfinite().all()
        assert (found.var >= 0).all()
        assert found.var.isfinite().all() or scale == 1e15  # squares of 1e15 / 1e-6 leave float32
        if scale < 1e15:
            probabilities = found.probabilities
            torch.testing.assert_close(probabilities.sum(-1), torch.ones_like(probabilities[..., 0]))
            assert (found.mutual_information >= 0).all()
            assert (found.mutual_information <= found.entropy + 1e-6).all()


@settings(max_examples=60)
@given(mean=st.floats(-50, 50), std=st.floats(0, 50))
def test_relu_against_quadrature(mean: float, std: float) -> None:
    """Left and right of zero by themselves, by the trapezoidal rule on 200,000 points."""
    m, v = torch.tensor([mean]), torch.tensor([std**2])
    found = gaussian.relu(m, v)
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    weight = torch.exp(-z.square() / 2)
    y = (float(m) + float(v.double().sqrt()) * z).clamp_min(0)
    first = (weight * y).sum() / weight.sum()
    second = (weight * (y - first).square()).sum() / weight.sum()
    torch.testing.assert_close(found.mean[0].double(), first, rtol=1e-4, atol=1e-5 * (1 + std))
    torch.testing.assert_close(found.var[0].double(), second, rtol=1e-3, atol=2e-6 * (1 + std**2))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(-8, 8), st.floats(0, 1e6)), min_size=2, max_size=6))
def test_softmax_stays_a_distribution(logits: list[tuple[float, float]]) -> None:
    mean, var = torch.tensor(logits).T
    p, spread, weights = gaussian.softmax(mean, var, -1)
    torch.testing.assert_close(p.sum(), torch.tensor(1.0))
    assert (spread >= 0).all()
    assert (spread <= p * (1 - p) + 1e-6).all()
    assert weights.isfinite().all()


def test_softmax_without_variance_is_softmax() -> None:
    logits = torch.tensor([[3.0, -1.0, 0.5], [-40.0, 0.0, 40.0]])
    p, spread, _ = gaussian.softmax(logits, torch.zeros_like(logits), -1)
    torch.testing.assert_close(p, logits.softmax(-1), rtol=1e-4, atol=1e-6)
    assert not spread.any()


def test_probabilities_are_those_of_many_draws() -> None:
    """Logits of one linear layer have a covariance, which the draws must have."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, 4)), 3 * torch.randn(5, 6)
    found = unitvar.expect(model, x)
    model.train()
    with torch.no_grad():
        p = torch.stack([model(x).softmax(-1) for _ in range(4000)])
    mean = p.mean(0)
    entropy = -(mean * mean.log()).sum(-1)
    torch.testing.assert_close(found.probabilities, mean, rtol=0, atol=0.02)
    torch.testing.assert_close(found.entropy, entropy, rtol=0, atol=0.03)
    information = entropy + torch.special.xlogy(p, p).sum(-1).mean(0)
    torch.testing.assert_close(found.mutual_information, information, rtol=0, atol=0.03)


def test_probabilities_have_gradients_where_the_mean_has() -> None:
    """Also where they are asked for after the call, outside of its no_grad."""
    model, x = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), torch.randn(2, 4)
    with torch.no_grad():
        found = unitvar.expect(model, x)
    assert not found.probabilities.requires_grad
    assert not found.mutual_information.requires_grad
    unitvar.expect(model, x).probabilities[:, 0].sum().backward()
    assert model[1].weight.grad is not None


def test_dropout_that_the_result_does_not_need_is_let_through() -> None:
    class Unused(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            nn.functional.dropout(x, 0.5, self.training)
            return x * 2

    found = unitvar.expect(Unused(), torch.ones(2, 3))
    assert torch.equal(found.mean, torch.full((2, 3), 2.0))
    assert not found.var.any()
