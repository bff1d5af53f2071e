"""Small models, and what the tests of moments read from them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import unitvar


class Body(nn.Module):
    """Something, then a weight that says what reaches it."""

    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(features, 4)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.head(self.body(*inputs))


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def reaching(function: Callable[..., Tensor], **layers: nn.Module) -> tuple[float, float]:
    """Return mean and second moment that a plan says a function of the input has."""
    head = unitvar.plan(Body(Calls(function, **layers), 16), torch.zeros(4, 16))["head.weight"]
    return head.mean, head.second


def linear() -> nn.Linear:
    return nn.Linear(16, 16)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(64, 4, batch_first=True, dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x, need_weights=False)[0]


class Output(nn.Module):
    def __init__(self, layer: nn.Module, reduce: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.layer, self.reduce = layer, reduce

    def forward(self, x: Tensor) -> Tensor:
        return self.reduce(self.layer(x))


def outcomes(make: Callable[[], nn.Module], features: int, example: Callable[[], Any], runs: int = 16) -> Tensor:
    """Return measured over predicted second moment of what a body gives, for some draws of its weights."""
    ratios = []
    for seed in range(runs):
        torch.manual_seed(seed)
        model = Body(make(), features)
        layer = unitvar.initialize_(model, example())["head.weight"]
        with torch.no_grad():
            ratios.append(model.body(example()).square().mean().item() / layer.second)
    return torch.tensor(ratios)


class Op(nn.Module):
    def __init__(self, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x)
