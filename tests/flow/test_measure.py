"""measure: what flows is what theory says, forward and backward."""

import json
import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import unitvar

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "elu": nn.ELU}


def mlp(depth: int, width: int, drop: float, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), activation(), nn.Dropout(drop)]
    return nn.Sequential(*layers, nn.Linear(width, width))


def initialised(model: nn.Module, how: str) -> nn.Module:
    draw = {"he": nn.init.kaiming_normal_, "xavier": nn.init.xavier_uniform_}[how]
    for p in model.parameters():
        _ = draw(p, nonlinearity="relu") if how == "he" and p.dim() > 1 else draw(p) if p.dim() > 1 else p.data.zero_()
    return model


@given(
    st.integers(2, 5),
    st.sampled_from(sorted(ACTIVATIONS)),
    st.floats(0.0, 0.6, allow_subnormal=False),
    st.floats(0.3, 2.0, allow_subnormal=False),
    st.integers(0, 99),
)
@settings(max_examples=15)
def test_gradients_agree_with_the_prediction_within_monte_carlo_error(
    depth: int, name: str, drop: float, scale: float, seed: int
) -> None:
    """Over draws of the weights: the prediction is for their law, and one draw deviates from it by chance."""
    torch.manual_seed(seed)
    ratios = []
    for _ in range(6):
        model = mlp(depth, 96, drop, ACTIVATIONS[name])
        for p in model.parameters():
            nn.init.normal_(p, std=scale / math.sqrt(96)) if p.dim() > 1 else nn.init.zeros_(p)
        report = unitvar.measure(model, torch.randn(128, 96), runs=2)
        ratios.append([math.log(x.gradient / x.predicted_gradient) for x in report])
        ratios[-1] += [math.log(x.variance / x.predicted_variance) for x in report]
    found = torch.tensor(ratios, dtype=torch.float64)
    error = found.std(0) / math.sqrt(len(found))
    assert (found.mean(0).abs() < 5 * error + 0.08).all(), (found.mean(0), error)


def test_backward_mode_keeps_the_gradient_at_one_whatever_the_widths() -> None:
    """ReLU's slope does not depend on the scale of the signal, so that what is aimed at is what autograd measures."""
    torch.manual_seed(0)
    widths, found = (64, 256, 128, 192, 96, 160), []
    for _ in range(8):
        layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.3))]
        model = nn.Sequential(*layers[:-2])
        unitvar.initialize_(model, torch.zeros(1, 64), mode="backward")
        found.append([layer.gradient for layer in unitvar.measure(model, torch.randn(256, 64), runs=1)])
    gradients = torch.tensor(found, dtype=torch.float64)
    assert ((gradients.mean(0) - 1).abs() < 4 * gradients.std(0) / math.sqrt(8) + 0.02).all(), gradients.mean(0)


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_a_unit_variance_network_is_flat(name: str) -> None:
    torch.manual_seed(0)
    model = mlp(20, 256, 0.4, ACTIVATIONS[name])
    unitvar.initialize_(model, torch.zeros(1, 256))
    report = unitvar.measure(model, torch.randn(256, 256))
    assert all(0.5 < layer.variance < 2 for layer in report)
    assert all(layer.variance == pytest.approx(layer.predicted_variance, rel=0.25) for layer in report)
    assert report.verdict.count("steady") == 2
    assert report.healthy
    # Of tanh E f'² is not E f²: a forward scale changes the gradient by the ratio, layer after layer.
    norms = [layer.gradient * layer.size for layer in report]
    moments = unitvar.activation_moments(name)
    assert norms[1] / norms[-2] == pytest.approx((moments.slope / moments.second) ** 17, rel=0.7)


@pytest.mark.parametrize(
    ("how", "dropout", "word", "other"),
    [("he", 0.5, "exploding", "vanishing"), ("xavier", 0.0, "vanishing", "exploding")],
)
def test_he_explodes_with_dropout_and_xavier_vanishes_without(how: str, dropout: float, word: str, other: str) -> None:
    torch.manual_seed(0)
    report = unitvar.measure(initialised(mlp(20, 256, dropout), how), torch.randn(256, 256))
    assert report.verdict.count(word) == 2
    assert other not in str(report)
    assert "steady" not in str(report)
    assert not report.healthy
    # 1 / keep a layer for He; half of that for Xavier, whose weights have half his variance.
    rate = (1 if how == "he" else 0.5) / (1 - dropout)
    steps = [b.predicted_variance / a.predicted_variance for a, b in pairwise(report.layers[1:])]
    assert sum(steps) / len(steps) == pytest.approx(rate, rel=0.02)
    assert report.layers[-1].variance / report.layers[1].variance == pytest.approx(rate**18, rel=0.7)


def test_values_and_gradients_are_those_of_hooks_by_hand() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    images = torch.randn(16, 3, 8, 8)
    report = unitvar.measure(model, images, loss=lambda y: y.square().mean(), runs=1)
    z = model[0](images)
    z.retain_grad()
    y = model[3](model[2](model[1](z)))
    y.retain_grad()
    y.square().mean().backward()
    for layer, value in zip(report, (z, y), strict=True):
        assert layer.mean == pytest.approx(value.mean().item(), rel=1e-4, abs=1e-6)
        assert layer.variance == pytest.approx(value.square().mean().item(), rel=1e-5)
        assert layer.gradient == pytest.approx(value.grad.square().mean().item(), rel=1e-5)
        assert layer.size == value.numel()


def test_the_prediction_starts_from_the_gradient_of_the_loss() -> None:
    """The last pre-activation is the output: what the loss gives back to it is no prediction, but must be its start."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    report = unitvar.measure(model, torch.randn(64, 16), loss=lambda y: 5 * y.sum())
    assert report["2.weight"].gradient == pytest.approx(25.0)
    assert report["2.weight"].predicted_gradient == pytest.approx(25.0)
    for layer in (
        unitvar.measure(model, torch.randn(64, 16), loss=loss)["2.weight"]
        for loss in (lambda y: y.square().mean(), lambda y: y[:, 0].exp().sum())
    ):
        assert layer.predicted_gradient == pytest.approx(layer.gradient, rel=1e-5)


def test_a_size_is_that_of_one_run_and_a_mean_that_of_the_bias() -> None:
    layer = nn.Linear(16, 8)
    nn.init.constant_(layer.bias, 3.0)
    x = torch.randn(32, 16)
    (found,) = unitvar.measure(layer, torch.cat([x, -x]), runs=4)  # inputs of mean 0
    assert found.size == 64 * 8
    assert found.mean == pytest.approx(3.0, rel=1e-5)
    assert found.predicted_mean == pytest.approx(3.0, rel=1e-5)


def test_a_bias_belongs_to_the_pre_activation() -> None:
    """Attention gives its projection strided inputs, for which torch adds the bias in an op of its own."""
    torch.manual_seed(0)
    layer = nn.Linear(16, 16)
    layer.bias.data.fill_(3.0)

    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.transpose(0, 1)).transpose(0, 1)

    x = torch.randn(4, 8, 16)
    (found,) = unitvar.measure(Strided(), x, runs=1)
    assert found.variance == pytest.approx(layer(x).square().mean().item(), rel=1e-5)
    assert found.gradient == pytest.approx(1.0)


def test_dead_units_are_those_that_get_no_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 4))
    with torch.no_grad():
        model[0].bias[:3] = -100.0
    report = unitvar.measure(model, torch.randn(64, 8))
    assert [layer.dead for layer in report] == pytest.approx([0.3, 0.0])
    convolution = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    with torch.no_grad():
        convolution[1].weight[0], convolution[1].bias[0] = 1e-3, -1.0
    assert unitvar.measure(convolution, torch.randn(4, 1, 8, 8))["0.weight"].dead == pytest.approx(0.25)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(F.relu(self.a(x)))))


def test_a_layer_used_twice_has_two_rows() -> None:
    torch.manual_seed(0)
    report = unitvar.measure(Shared(), torch.randn(256, 64))
    assert [layer.label for layer in report] == ["a.weight", "a.weight #2", "b.weight"]
    assert report["a.weight"].variance > 2 * report["a.weight #2"].variance
    for layer in report:
        assert layer.variance == pytest.approx(layer.predicted_variance, rel=0.35)
        assert layer.gradient == pytest.approx(layer.predicted_gradient, rel=0.35)


def test_dropout_widens_the_train_eval_gap_of_a_batch_norm_by_one_over_keep() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(32), nn.Linear(32, 32), nn.BatchNorm1d(32))
    report = unitvar.measure(model, torch.randn(4096, 32), runs=4)
    first, second = report.norms
    # Dropout before it doubles the second moment; the first norm takes that away from the second one.
    assert (first.name, second.name) == ("1", "3")
    assert first.gap == pytest.approx(2.0, rel=0.02)
    assert second.gap == pytest.approx(1.0, rel=0.02)
    assert first.off == pytest.approx(1.0, rel=0.05)
    assert first.running == 1.0
    assert "train/eval gap of batch norms: up to 2" in str(report)


class Louder(nn.Module):
    """Noise without chance: in training the first of two channels has four times its variance."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tensor([2.0, 1.0]) if self.training else x


def test_the_gap_of_a_batch_norm_is_the_geometric_mean_over_channels() -> None:
    model = nn.Sequential(Louder(), nn.BatchNorm1d(2))
    (norm,) = unitvar.measure(model, torch.randn(64, 2)).norms
    assert norm.gap == pytest.approx(math.sqrt(4 * 1))


def test_rows_are_json() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    model[2].weight.data.fill_(math.inf)
    report = unitvar.measure(model, torch.randn(8, 8))
    rows = json.loads(json.dumps([*report.rows, *report.norm_rows], allow_nan=False))
    assert {"name", "use", "variance", "predicted_variance", "gradient", "predicted_gradient", "dead"} <= set(rows[0])
    assert {"name", "on", "off", "running", "gap"} <= set(rows[-1])
    assert "exploding" in report.verdict


def test_a_layer_can_be_looked_up() -> None:
    report = unitvar.measure(nn.Sequential(nn.Linear(8, 8)), torch.randn(8, 8))
    assert len(report) == 1
    with pytest.raises(KeyError, match=r"'1.weight' is not one of '0.weight'"):
        report["1.weight"]


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"runs": 0}, ValueError, "runs=0 is not 1 or more"),
        ({"runs": 1.5}, TypeError, "runs=1.5 is not a whole number"),
        ({"loss": 3}, TypeError, "loss=3 is not a function"),
        ({"loss": lambda y: y}, ValueError, r"loss\(output\) has shape \(8, 8\): return a scalar"),
        ({"loss": lambda y: 0.0}, TypeError, r"loss\(output\) returned a float"),
    ],
)
def test_errors_name_the_value(options: dict, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        unitvar.measure(nn.Linear(8, 8), torch.randn(8, 8), **options)


def test_an_example_that_is_no_input_is_explained() -> None:
    with pytest.raises(TypeError, match=r"pass batch\[0\]"):
        unitvar.measure(nn.Linear(8, 8), (torch.randn(8, 8), torch.zeros(8)))
    with pytest.raises(TypeError, match=r"pass batch\[0\]"):
        unitvar.measure(nn.Linear(8, 8), [torch.randn(8, 8)])
    with pytest.raises(ValueError, match="on the meta device"):
        unitvar.measure(nn.Linear(8, 8, device="meta"), torch.zeros(1, 8))
