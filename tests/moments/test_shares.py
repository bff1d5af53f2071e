"""Signal shares: predicted = measured = drawn by hand, and the horizons of the literature come out."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from tests.planning.models import mlp


def by_hand(model: nn.Module, x: Tensor) -> dict[str, tuple[float, float]]:
    """Run a model twice on one batch, with hooks, and split E z² of every linear layer and convolution."""
    seen: list[dict[str, Tensor]] = [{}, {}]
    for store in seen:
        hooks = [
            m.register_forward_hook(lambda m, i, z, n=n, s=store: s.__setitem__(f"{n}.weight", z.detach().double()))
            for n, m in model.named_modules()
            if isinstance(m, (nn.Linear, nn.Conv2d))
        ]
        model(x)
        for hook in hooks:
            hook.remove()
    found = {}
    for name, a in seen[0].items():
        b, n = seen[1][name], len(a)
        second = float((a.square() + b.square()).mean()) / 2
        products = torch.einsum("i...,j...->ij", a, b) / a[0].numel()
        kept = float(products.diagonal().mean())
        common = float(products.sum() - products.diagonal().sum()) / (n * (n - 1))
        found[name] = (kept - common) / second, 1 - kept / second
    return found


def cnn(dropout: float) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(3):
        layers += [nn.GELU(), nn.Dropout(dropout), nn.Conv2d(32, 32, 3, padding=1)]
    return nn.Sequential(*layers)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ReLU": (lambda: mlp(depth=5, width=192, dropout=0.4), (128, 32)),
    "tanh": (lambda: mlp(depth=5, width=192, dropout=0.2, act=nn.Tanh), (128, 32)),
    "CNN": (lambda: cnn(0.3), (32, 3, 8, 8)),
    "max pooling": (
        lambda: nn.Sequential(
            *cnn(0.3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 10),
        ),
        (32, 3, 8, 8),
    ),
    "feature dropout": (
        lambda: nn.Sequential(*cnn(0.0), nn.ReLU(), nn.Dropout2d(0.5), nn.Conv2d(32, 8, 1)),
        (32, 3, 8, 8),
    ),
    "residual": (
        lambda: nn.Sequential(nn.Linear(32, 192), *(Residual() for _ in range(3)), nn.Linear(192, 10)),
        (128, 32),
    ),
}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(192, 192), nn.Linear(192, 192), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.drop(self.a(x).relu()))


@pytest.mark.parametrize("name", NETWORKS)
def test_predicted_is_measured_is_drawn(name: str) -> None:
    build, shape = NETWORKS[name]
    drawn: dict[str, list[tuple[float, ...]]] = {}
    plan = None
    for seed in range(6):
        torch.manual_seed(seed)
        model, x = build(), torch.randn(shape)
        plan = unitvar.initialize_(model, x, inputs="standard")
        report = unitvar.measure(model, x, runs=3)
        for label, pair in by_hand(model, x).items():
            flow = report[label]
            assert flow.signal is not None
            assert flow.noise is not None
            drawn.setdefault(label, []).append((*pair, flow.signal, flow.noise))
    assert plan is not None
    for layer in plan:
        values = torch.tensor(drawn[layer.name])
        error = values.std(0) / math.sqrt(len(values))
        expected = torch.tensor([layer.signal, layer.noise] * 2)
        # What finite width adds to the shares is of the order of one over it.
        assert ((values.mean(0) - expected).abs() < 0.02 + 4 * error).all(), (layer.name, values.mean(0), expected)


def test_without_dropout_there_is_no_noise() -> None:
    model, x = mlp(depth=4, width=64, dropout=0.0), torch.randn(64, 32)
    assert all(layer.noise == pytest.approx(0, abs=1e-9) for layer in unitvar.initialize_(model, x))
    report = unitvar.measure(model, x, runs=2)
    for layer in report:
        assert layer.noise == pytest.approx(0, abs=1e-6)
        assert layer.predicted_noise == pytest.approx(0, abs=1e-9)
    assert all(layer.signal is None for layer in unitvar.measure(model, x, runs=1))


@pytest.mark.parametrize("dropout", [0.1, 0.3, 0.5])
def test_relu_networks_have_the_published_horizon(dropout: float) -> None:
    """Pretorius et al. (2018): critical weights have variance 2 p / fan-in, and correlations follow c' = p κ(c).

    κ is the arc-cosine kernel; near the fixed point c* the example's share falls by p κ'(c*) a layer: the depth scale
    of Schoenholz et al. (2017).
    """
    keep = 1 - dropout

    def kernel(c: float) -> float:
        return (math.sqrt(1 - c * c) + c * (math.pi - math.acos(c))) / math.pi

    plan = unitvar.plan(mlp(depth=24, width=256, dropout=dropout), torch.zeros(1, 32)).layers
    assert plan[10].scale ** 2 == pytest.approx(2 * keep, rel=1e-3)
    c, own = 0.0, 1.0  # of two examples; of one example under two masks
    for layer in plan:
        assert 1 - layer.signal - layer.noise == pytest.approx(c, abs=1e-3)
        assert 1 - layer.noise == pytest.approx(own, abs=1e-3)
        c, own = keep * kernel(c), keep * kernel(own)
    fixed = c
    slope = keep * (math.pi - math.acos(fixed)) / math.pi
    assert plan[14].signal / plan[13].signal == pytest.approx(slope, rel=0.03)


def test_little_signal_gets_advice_and_skips_take_it_away() -> None:
    x = torch.zeros(4, 32)
    deep = unitvar.plan(mlp(depth=12, width=64, dropout=0.4), x)
    assert "tells examples apart" in " ".join(deep.advice)
    assert "less dropout" in str(deep).replace("\n  ", " ")
    assert "(72 % and <0.1 % of E z² at 33.weight)" in deep.advice[0]
    assert deep.advice[0].endswith("with SGD, try gain=0.7, with AdamW gain=0.5")
    lighter = unitvar.plan(mlp(depth=15, width=64, dropout=0.2), x).advice
    assert lighter[0].endswith("with SGD, try gain=0.8")  # nothing is known in favour of 0.5 with AdamW
    shallow = unitvar.plan(mlp(depth=4, width=64, dropout=0.5), x)
    assert shallow.advice[0].endswith("with SGD, try gain=0.4, with AdamW gain=0.5")
    quieter = unitvar.plan(mlp(depth=24, width=64, dropout=0.1), x).advice
    assert quieter[0].endswith("with SGD, try gain=0.86")
    for fine in (mlp(depth=12, width=64, dropout=0.02), mlp(depth=3, width=64, dropout=0.4)):
        assert unitvar.plan(fine, x).advice == ()
    skips = nn.Sequential(nn.Linear(32, 192), *(Residual() for _ in range(6)), nn.Linear(192, 10))
    assert unitvar.plan(skips, x).advice == ()


class Narrow(nn.Module):
    """Self-attention over more tokens than heads have features: an average leans to where its query points."""

    def __init__(self, spelling: str, dropout: float) -> None:
        super().__init__()
        self.spelling, self.dropout = spelling, dropout
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32, bias=False) for _ in range(4))
        self.packed = nn.MultiheadAttention(32, 4, dropout, bias=False, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.spelling in ("packed", "packed, with weights"):
            return self.packed(x, x, x, need_weights=self.spelling != "packed")[0]  # type: ignore[no-any-return]
        q, k, v = (part(x).unflatten(-1, (4, 8)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.spelling == "fused":
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        else:
            y = F.dropout((q @ k.mT / 8**0.5).softmax(-1), self.dropout) @ v
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


ATTENTION = ("packed", "packed, with weights", "fused", "written")


@pytest.mark.parametrize("spelling", ATTENTION)
def test_attention_without_dropout_adds_no_noise(spelling: str) -> None:
    *_, last = unitvar.plan(Narrow(spelling, 0.0), torch.zeros(8, 24, 32), inputs="standard")
    assert last.noise == pytest.approx(0, abs=1e-12)
    assert last.signal == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_narrow_attention_is_as_predicted_in_every_spelling(dropout: float) -> None:
    plans = [unitvar.plan(Narrow(s, dropout), torch.zeros(8, 24, 32), inputs="standard") for s in ATTENTION]
    *_, first = plans[0]
    for plan in plans:
        *_, last = plan
        for name in ("second", "signal", "noise"):
            assert getattr(last, name) == pytest.approx(getattr(first, name), rel=1e-6, abs=1e-9), name
    found = []
    for seed in range(12):
        torch.manual_seed(seed)
        model = Narrow("written", dropout)
        unitvar.initialize_(model, torch.zeros(8, 24, 32), inputs="standard")
        x = torch.randn(64, 24, 32)
        with torch.no_grad():
            z = model(x)
            found.append((float(z.square().mean()), *by_hand(model, x)["out.weight"]))
    second, signal, noise = torch.tensor(found).mean(0).tolist()
    assert second == pytest.approx(1, rel=0.04)
    assert signal == pytest.approx(first.signal, rel=0.04)
    assert noise == pytest.approx(first.noise, rel=0.15, abs=0.005)


class Masked(nn.Module):
    """Attention in which masks make queries, or all tokens, noisy."""

    def __init__(self, everything: bool, dropout: float) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32, bias=False) for _ in range(4))
        self.everything, self.dropout = everything, dropout

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.dropout(x, self.dropout)
        y = x if self.everything else y
        q, k, v = (f(t).unflatten(-1, (4, 8)).transpose(1, 2) for f, t in ((self.q, x), (self.k, y), (self.v, y)))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("dropout", [0.1, 0.3])
@pytest.mark.parametrize("everything", [False, True], ids=["queries", "all tokens"])
def test_noise_of_queries_moves_attention(everything: bool, dropout: float) -> None:
    """Two masks make two queries, which attend to tokens of their own: a tenth of E z² before was none."""
    found = []
    for seed in range(10):
        torch.manual_seed(seed)
        model, batch = Masked(everything, dropout), (torch.randn(32, 24, 32), torch.randn(32, 24, 32))
        plan = unitvar.initialize_(model, batch, inputs="standard")
        with torch.no_grad():
            one, two = (model(*batch) for _ in range(2))
        found.append(1 - float((one * two).mean() / (one.square() + two.square()).mean() * 2))
    values = torch.tensor(found)
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - plan["out.weight"].noise) < 4 * error + 0.03, values


@pytest.mark.parametrize(("var", "count", "tolerance"), [(1, 4, 0.02), (1, 24, 0.02), (4, 24, 0.09), (4, 100, 0.15)])
@pytest.mark.parametrize("rho", [0.2, 0.5, 0.9])
def test_two_softmaxes_have_in_common_what_their_scores_have(
    rho: float, var: float, count: int, tolerance: float
) -> None:
    """E Σ a a' = (n E Σ a²)^ρ / n, nearly: of scores that differ more, a little less."""
    torch.manual_seed(0)
    z, other = torch.randn(2, 50_000, count) * math.sqrt(var)
    a, b = (t.softmax(1) for t in (z, rho * z + math.sqrt(1 - rho**2) * other))
    squares = float(a.square().sum(1).mean())
    assert float((a * b).sum(1).mean()) == pytest.approx((count * squares) ** rho / count, rel=tolerance)


def test_measure_knows_how_few_features_tokens_have() -> None:
    """Tokens of 6 features in 32 channels: a query finds tokens like it, and attention gives twice as much."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.attention = nn.Linear(6, 32, bias=False), Narrow("fused", 0.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(self.first(x))  # type: ignore[no-any-return]

    found = []
    for seed in range(12):
        torch.manual_seed(seed)
        model = Wide()
        for weight in model.parameters():
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        layer = unitvar.measure(model, torch.randn(16, 24, 6), runs=1)["attention.out.weight"]
        assert layer.variance is not None
        assert layer.predicted_variance is not None
        found.append(layer.variance / layer.predicted_variance)
    values = torch.tensor(found)
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - 1) < 4 * error + 0.05, values
