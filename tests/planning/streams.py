"""Networks with residual streams of all kinds, for the tests of planning."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

WIDTH = 64


class Branch(nn.Sequential):
    """Linear, GELU, dropout, linear."""

    def __init__(self, *after: nn.Module) -> None:
        super().__init__(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.2), nn.Linear(2 * WIDTH, WIDTH), *after)


class Stream(nn.Module):
    """An input layer, some blocks, a head; a block is a function of the stream and of its module."""

    def __init__(self, block: Callable[[nn.Module, Tensor], Tensor], parts: Callable[[], nn.Module], n: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        self.blocks = nn.ModuleList(parts() for _ in range(n))
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for parts in self.blocks:
            x = self.block(parts, x)
        return self.head(x)


class DropPath(nn.Module):
    """Drop whole examples."""

    def forward(self, x: Tensor) -> Tensor:
        keep = 0.8
        return x * torch.empty(x.shape[0], 1, device=x.device).bernoulli_(keep) / keep


class LayerScale(nn.Module):
    """Multiply by a parameter."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((WIDTH,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Joined(nn.Module):
    """Two halves of a branch, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH // 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.a(x).relu(), self.b(x).tanh()), -1)


class Nested(nn.Module):
    """A branch with a stream of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(WIDTH, WIDTH), nn.ModuleList(Branch() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        for branch in self.inner:
            y = y + branch(y)
        return y


def pair(*parts: nn.Module) -> nn.ModuleList:
    return nn.ModuleList(parts)


def norm() -> nn.LayerNorm:
    return nn.LayerNorm(WIDTH)


def by_hand(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


# name → the model, and how many branches its blocks add to one stream
SCALABLE: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "no norm": (lambda: Stream(lambda b, x: x + b(x), Branch, 5), 5),
    "in place": (lambda: Stream(lambda b, x: b(x).add_(x), Branch, 3), 3),
    "pre-norm": (lambda: Stream(lambda b, x: x + b(x), lambda: nn.Sequential(norm(), *Branch()), 4), 4),
    "post-norm": (lambda: Stream(lambda b, x: b[1](x + b[0](x)), lambda: pair(Branch(), norm()), 4), 4),  # type: ignore[index]
    "post-norm by hand": (lambda: Stream(lambda b, x: by_hand(x + b(x)), Branch, 4), 4),
    "activation on the stream": (lambda: Stream(lambda b, x: (x + b(x)).relu(), Branch, 3), 3),
    "dropout after": (lambda: Stream(lambda b, x: x + b(x), lambda: Branch(nn.Dropout(0.3)), 4), 4),
    "DropPath": (lambda: Stream(lambda b, x: x + b(x), lambda: Branch(DropPath()), 4), 4),
    "half steps": (lambda: Stream(lambda b, x: x + 0.9 * b(x), Branch, 4), 4),
    "ReLU at the end": (lambda: Stream(lambda b, x: x + b(x), lambda: Branch(nn.ReLU()), 4), 4),
    "side by side": (lambda: Stream(lambda b, x: x + (b[0](x) + b[1](x)), lambda: pair(Branch(), Branch()), 3), 6),  # type: ignore[index]
    "one after the other": (lambda: Stream(lambda b, x: x + b[0](x) + b[1](x), lambda: pair(Branch(), Branch()), 3), 6),  # type: ignore[index]
    "joined": (lambda: Stream(lambda b, x: x + b(x), Joined, 4), 4),
    "nested": (lambda: Stream(lambda b, x: x + b(x), Nested, 2), 2),
}
