"""Models of the shapes that torchinfo and fvcore test themselves on: odd arguments, odd outputs, odd uses of layers."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

__all__ = ["SHAPES"]

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
Pair = namedtuple("Pair", ["x", "y"])


class Of(nn.Module):
    """A model made of layers and a function of itself and its arguments."""

    def __init__(self, run: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def _dense(inputs: int = 6, outputs: int = 6) -> nn.Linear:
    return nn.Linear(inputs, outputs)


class Boxed:
    """An object of somebody's own with a tensor in it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Indexed(int):
    """A number that can be indexed."""

    def __getitem__(self, at: int) -> int:
        return at


class Recursive(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = _dense()

    def forward(self, x: Tensor, left: int = 3) -> Tensor:
        return self.layer(x) if left == 0 else self(x, left - 1)


class Late(nn.Module):
    """A parameter that is made when it is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.UninitializedParameter()

    def forward(self, x: Tensor) -> Tensor:
        self.weight = nn.Parameter(torch.ones(6, 6) / 6)
        return x @ self.weight


def _packed(model: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    packed = pack_padded_sequence(model.embedding(tokens), lengths, enforce_sorted=False)
    return model.out(model.lstm(packed)[1][0][-1])


def _unpooled(model: Any, x: Tensor) -> Tensor:
    pooled, places = F.max_pool2d(model.down(x).relu(), 2, return_indices=True)
    return model.up(F.max_unpool2d(pooled, places, 2))


def _shared() -> nn.Module:
    layer = _dense()
    return Of(lambda m, x: m.a(x) + m.b[0](x), a=layer, b=nn.Sequential(layer))


def _with_none() -> nn.Module:
    layers = nn.ModuleList([_dense(), _dense()])
    layers.append(None)  # type: ignore[arg-type]
    return Of(lambda m, x: [x := layer(x) for layer in m.layers if layer is not None][-1], layers=layers)


def _jumps(model: Any, x: Tensor) -> Tensor:
    return model.a(x) if float(model.b(x).sum().item()) < 0 else model.a(x) + 2


def _named_parameter() -> nn.Module:
    model = Of(lambda m, x: m.outer * (x @ m.inner))
    model.register_parameter("inner", nn.Parameter(torch.randn(6, 6)))
    model.register_parameter("outer", nn.Parameter(torch.randn(6)))
    return model


def _half_frozen() -> nn.Module:
    model = nn.Sequential(_dense(), nn.ReLU(), _dense())
    model[0].requires_grad_(False)
    return model


def _own_error(model: Any, x: Tensor) -> Tensor:
    model.first(x)
    raise LookupError("the model's own")


# What it is, how it is made, and what it is called with. In the order of the peers' files.
SHAPES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "nothing but an identity": (lambda: nn.Sequential(nn.Identity()), X),
    "a parameter made in forward": (Late, X),
    "two inputs of different dtypes": (
        lambda: Of(lambda m, x, y: torch.cat((m.a(x), m.b(y.float()))), a=_dense(), b=_dense()), (X, X.long()),
    ),
    "a number that picks a branch": (
        lambda: Of(lambda m, x, n: m.a(x) if n == 5 else m.b(x), a=_dense(), b=_dense()), (X, 5.0),
    ),
    "an embedding and an LSTM that gives its state": (
        lambda: Of(lambda m, t: m.lstm(m.table(t)), table=nn.Embedding(9, 6), lstm=nn.LSTM(6, 5, 2)),
        torch.arange(12).reshape(4, 3) % 9,
    ),
    "one layer six times": (lambda: Of(lambda m, x: [x := m.a(x) for _ in range(6)][-1], a=_dense()), X),
    "a parameter for an output": (lambda: Of(lambda m, x: m.a.weight, a=_dense()), X),
    "parameters that are not used": (
        lambda: Of(lambda m, x: x, a=nn.ParameterList([torch.ones(2, 3), torch.ones(3)])), X,
    ),
    "two inputs, one tower": (
        lambda: Of(lambda m, x, y: m.b((m.a(x).relu() - m.a(y).relu()).abs()), a=_dense(), b=_dense(6, 1)), (X, X + 1),
    ),
    "a dict for an output": (
        lambda: Of(lambda m, x: {"hidden": (h := m.a(x)), "out": m.b(h)}, a=_dense(), b=_dense()), X,
    ),
    "a dict with numbers for keys": (
        lambda: Of(lambda m, d, scale: m.a(scale * (d[1] + d[2][0])), a=_dense()), ({1: X, 2: [X]}, 2),
    ),
    "layers chosen by a word": (
        lambda: Of(lambda m, x, which: m.choices[which](x), choices=nn.ModuleDict({"a": _dense(), "b": nn.PReLU()})),
        (X, "a"),
    ),
    "an object deep in the output": (lambda: Of(lambda m, x: {"a": ({"b": [Boxed(m.a(x))]},)}, a=_dense()), X),
    "a number that can be indexed for an output": (
        lambda: Of(lambda m, x: {"a": Indexed(m.a(x).shape[0])}, a=_dense()), X,
    ),
    "named tuples": (lambda: Of(lambda m, pair: Pair(m.a(pair.x), m.a(pair.y)), a=_dense()), (Pair(X, X),)),
    "an array": (lambda: Of(lambda m, x: m.a(torch.from_numpy(x)), a=_dense()), (np.ones((4, 6), np.float32),)),
    "an array for an output": (lambda: Of(lambda m, x: m.a(x).detach().numpy(), a=_dense()), X),
    "a word for an output": (lambda: Of(lambda m, x: "done" if m.a(x) is not None else "", a=_dense()), X),
    "a class for an output": (lambda: Of(lambda m, x: Boxed, a=_dense()), X),
    "an error of its own": (lambda: Of(_own_error, first=_dense()), X),
    "packed sequences": (
        lambda: Of(_packed, embedding=nn.Embedding(9, 6), lstm=nn.LSTM(6, 5), out=_dense(5, 2)),
        (torch.arange(12).reshape(4, 3) % 9, torch.tensor([4, 2, 3])),
    ),
    "a list of layers with None in it": (_with_none, X),
    "no argument": (lambda: Of(lambda m: m.a(torch.ones(4, 6)), a=_dense()), ()),
    "unpooling": (lambda: Of(_unpooled, down=nn.Conv2d(3, 4, 3, padding=1), up=nn.Conv2d(4, 3, 3, padding=1)), IMAGES),
    "parameters of its own": (_named_parameter, X),
    "some layers frozen": (_half_frozen, X),
    "a layer that is never called": (lambda: Of(lambda m, x: m.a(x), a=_dense(), b=_dense(20, 20)), X),
    "a layer used past its module": (
        lambda: Of(lambda m, x: m.inner[0](m.a(x)), a=_dense(), inner=nn.Sequential(_dense())), X,
    ),
    "one layer under two names": (_shared, X),
    "a module that calls itself": (Recursive, X),
    "a branch on a value": (lambda: Of(_jumps, a=_dense(), b=_dense()), X),
    "a keyword argument": (lambda: Of(lambda m, *, x, scale: m.a(x) * scale, a=_dense()), {"x": X, "scale": 2.0}),
    "no example but one": (lambda: nn.Sequential(_dense(), nn.BatchNorm1d(6)), X[:1]),
}  # fmt: skip
