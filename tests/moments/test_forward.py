"""Signals through whole networks: what tokens share, devices, depth."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar
from tests.moments.models import Attention, Body, Calls


class Tokens(nn.Module):
    """Mix tokens by a weight, and add."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.first = nn.Linear(12, 12, bias=False), nn.Linear(64, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x))
        return x + self.mix(x.transpose(1, 2)).transpose(1, 2)


class Twice(nn.Sequential):
    """Positions are looked at one by one, and then together."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        return super().forward(x.flatten(0, 1)).view(*shape[:-1], -1)


MIXERS: dict[str, Callable[[], nn.Module]] = {
    "tokens": Tokens,
    "attention": Attention,
    "attention twice": lambda: nn.Sequential(Attention(), nn.GELU(), Attention()),
    "flat for a moment": lambda: nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), Twice(nn.Linear(64, 64), nn.Dropout(0.2)), nn.Linear(64, 64)
    ),
    "a transposed convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 4)),
        Permuted(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(64, 64, 4, 2, 1)),
        nn.Flatten(1, 2),
    ),
}  # fmt: skip


class Permuted(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


@pytest.mark.parametrize("name", MIXERS)
def test_what_tokens_share_is_known(name: str) -> None:
    """The mean over tokens has second moment (E x² + (n - 1) E x x') / n."""
    ratios = []
    for seed in range(24):
        torch.manual_seed(seed)
        body = MIXERS[name]()
        model = Body(Calls(lambda m, x: m.body(x).mean(1), body=body), 64)
        layer = unitvar.initialize_(model, torch.randn(16, 12, 64))["head.weight"]
        with torch.no_grad():
            ratios.append(model.body(torch.randn(16, 12, 64)).square().mean().item() / layer.second)
    found = torch.tensor(ratios)
    # Five standard errors, and what 64 features and 12 tokens leave of formulas for many of them: 1 / 12.
    assert found.mean().item() == pytest.approx(1.0, abs=5 * found.std().item() / math.sqrt(24) + 1 / 12)


def test_another_default_device_changes_nothing() -> None:
    norm = nn.LayerNorm(64)
    nn.init.normal_(norm.weight)  # a law of its own
    net = nn.Sequential(
        nn.Linear(64, 64), norm, nn.PReLU(5), nn.Dropout(0.3), Attention(), nn.RReLU(), Cumulated(),
        nn.Unflatten(2, (8, 8)), nn.Upsample(scale_factor=2), nn.Flatten(2), nn.LSTM(256, 8, num_layers=2, dropout=0.1),
    )  # fmt: skip
    x = torch.randn(4, 5, 64)
    with torch.device("meta"):  # first, so that nothing is known from before
        elsewhere = unitvar.plan(net, x, mode="backward").rows
    assert elsewhere == unitvar.plan(net, x, mode="backward").rows


class Cumulated(nn.Module):
    """An op without a rule, which is sampled."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


DEEP = [("relu", 0.3), ("relu", 0.5), *itertools.product(("elu", "tanh"), (0.1, 0.3, 0.5))]


def plain_cnn(act: type[nn.Module], dropout: float, depth: int = 50, width: int = 64) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth - 1):
        layers += [act(), nn.Dropout(dropout), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers)


def seconds(model: nn.Sequential, x: Tensor) -> list[float]:
    found = []
    with torch.no_grad():
        for module in model:
            x = module(x)
            if isinstance(module, nn.Conv2d):
                found.append(x.square().mean().item())
    return found


@pytest.mark.parametrize(("name", "dropout"), DEEP)
def test_fifty_plain_convolutions_stay_near_one(name: str, dropout: float) -> None:
    torch.manual_seed(0)
    model, x = plain_cnn({"relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh}[name], dropout), torch.randn(16, 3, 8, 8)
    unitvar.initialize_(model, x)
    found = seconds(model, x)
    assert 0.25 < min(found) <= max(found) < 4
    for module in model:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    if name != "tanh":  # which no variance can leave: it saturates
        assert max(seconds(model, x)) > 4


@pytest.mark.parametrize("act", [nn.GELU, nn.SiLU])
def test_where_depth_amplifies_the_plan_says_so(act: type[nn.Module]) -> None:
    plan = unitvar.plan(plain_cnn(act, 0.3, width=4), torch.zeros(2, 3, 8, 8))
    assert plan.depth == 49
    assert plan.chi == pytest.approx(unitvar.activation_moments(act()).chi, rel=1e-6)
    said = " ".join(str(plan).split())
    assert f"deviations grow {plan.chi**49:.3g}-fold in total" in said
    assert 'Put norms between the layers, or use method="measured".' in said
