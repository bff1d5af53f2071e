"""Small models, and what the tests of planning read from them."""

import torch
from torch import Tensor, nn

import unitvar

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU, "selu": nn.SELU}


def mlp(
    *, inputs: int = 32, depth: int = 3, width: int = 64, act: type[nn.Module] = nn.ReLU, dropout: float = 0.5
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(inputs, width)]
    for _ in range(depth - 1):
        layers += [act(), nn.Dropout(dropout), nn.Linear(width, width)]
    return nn.Sequential(*layers)


def squares(plan: unitvar.Plan) -> list[float]:
    return [layer.scale**2 for layer in plan]


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


class Conv1D(nn.Module):
    """A linear layer whose weight stands second in a product."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(fan_in, fan_out)), nn.Parameter(torch.ones(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.cumsum(1)).cumsum(1)
