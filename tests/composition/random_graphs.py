"""Random networks: graphs of the ops that people train, on images or tokens.

A network is written down as a list of steps, so that a failing one prints as text; :class:`Graph` runs it. Each step
takes earlier values by number. What chooses the steps is given: hypothesis in the suite, so that failures shrink, and
a seeded generator in ``make fuzz``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

__all__ = ["Description", "Graph", "described", "descriptions", "seeded"]

BATCH = 8
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "elu": nn.ELU, "leaky": nn.LeakyReLU,
    "hardswish": nn.Hardswish, "mish": nn.Mish,
}  # fmt: skip


class Pick(Protocol):
    """Chooses one of some values."""

    def __call__(self, values: Sequence[Any], /) -> Any:
        """Return one of them."""


@dataclass(frozen=True)
class Step:
    """One op: its name, the numbers of the values it takes, and its options."""

    op: str
    sources: tuple[int, ...]
    options: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Description:
    """A network: the shape of one example, the steps, and how it ends."""

    shape: tuple[int, ...]
    steps: tuple[Step, ...]
    end: str


Shape = tuple[int, ...]
WEIGHTS = {"conv", "grouped", "transposed", "linear", "attention", "module_attention", "mixer", "glu"}

# op → what may follow an image (channels, height, width) or tokens (number, width).
IMAGE = (
    "conv", "conv", "conv", "grouped", "transposed", "batch_norm", "group_norm", "activation", "activation",
    "activation", "dropout", "dropout2d", "max_pool", "avg_pool", "add", "add", "cat", "mul", "gate", "excite",
    "tokens",
)  # fmt: skip
TOKENS = (
    "linear", "linear", "linear", "layer_norm", "rms_norm", "activation", "activation", "activation", "dropout", "add",
    "add", "cat", "mul", "gate", "glu", "attention", "attention", "module_attention", "mixer", "context", "image",
)  # fmt: skip


def _possible(op: str, shapes: list[Shape], at: int) -> bool:
    shape = shapes[at]
    if op in ("add", "mul", "gate", "cat"):
        return len(_partners(op, shapes, at)) > 0 and (op != "cat" or shape[0 if len(shape) == 3 else 1] <= 64)
    if op in ("max_pool", "avg_pool"):
        return min(shape[1:]) >= 4
    if op == "transposed":
        return max(shape[1:]) <= 8
    if op == "image":
        return shape[0] in (16, 64)
    return True


def _partners(op: str, shapes: list[Shape], at: int) -> list[int]:
    """Give the values that can be joined with one: other values of its shape, or of its positions."""
    shape = shapes[at]
    if op == "cat":
        fits = [s[1:] == shape[1:] if len(s) == len(shape) == 3 else s[:1] == shape[:1] for s in shapes]
        return [i for i, s in enumerate(shapes) if len(s) == len(shape) and fits[i] and max(s[0], s[-1]) <= 64]
    return [i for i, s in enumerate(shapes) if s == shape and i != at]


def _step(op: str, at: int, shapes: list[Shape], roots: list[set[int]], pick: Pick) -> tuple[Step, Shape]:
    """Choose the options of an op; return it with the shape that it gives.

    Two values are joined that have a weight between them, as in networks that people train; but one time in four any.
    """
    shape = shapes[at]
    image = len(shape) == 3
    width = shape[0] if image else shape[1]
    if op in ("add", "mul", "gate", "cat"):
        partners = _partners(op, shapes, at)
        apart = [i for i in partners if not roots[i] & roots[at]]
        other = pick(apart if apart and pick([True, True, True, False]) else partners)
        if op != "cat":
            return Step(op, (at, other)), shape
        total = width + (shapes[other][0] if image else shapes[other][1])
        return Step(op, (at, other)), (total, *shape[1:]) if image else (shape[0], total)
    if op == "conv":
        out, kernel, stride = pick([32, 48, 64]), pick([1, 3, 3]), pick([1, 1, 2] if min(shape[1:]) >= 4 else [1])
        sides = ((n - 1) // stride + 1 for n in shape[1:])
        return Step(op, (at,), (width, out, kernel, stride)), (out, *sides)
    if op == "grouped":
        return Step(op, (at,), (width, pick([4, width]))), shape
    if op == "transposed":
        out = pick([32, 48])
        return Step(op, (at,), (width, out)), (out, 2 * shape[1], 2 * shape[2])
    if op == "linear":
        out = pick([32, 64, 96])
        return Step(op, (at,), (width, out)), (shape[0], out)
    if op in ("max_pool", "avg_pool"):
        return Step(op, (at,)), (width, shape[1] // 2, shape[2] // 2)
    if op == "activation":
        return Step(op, (at,), (pick(sorted(ACTIVATIONS)),)), shape
    if op in ("dropout", "dropout2d"):
        return Step(op, (at,), (pick([0.1, 0.3, 0.5]),)), shape
    if op in ("attention", "module_attention"):
        return Step(op, (at,), (width, pick([0.0, 0.2]), pick([False, True]))), shape
    if op == "tokens":
        return Step(op, (at,)), (shape[1] * shape[2], width)
    if op == "image":
        side = int(shape[0] ** 0.5)
        return Step(op, (at,), (side,)), (width, side, side)
    if op == "mixer":
        return Step(op, (at,), (shape[0],)), shape
    return Step(op, (at,), (width,)), shape


def described(pick: Pick, longest: int = 12) -> Description:
    """Choose a network.

    Args:
        pick: chooses one of some values.
        longest: the largest number of steps.
    """
    shape: Shape = pick([(32, 8, 8), (16, 64)])
    first = Step("conv", (0,), (32, 32, 3, 1)) if len(shape) == 3 else Step("linear", (0,), (64, 64))
    shapes, steps = [shape, shape], [first]
    roots: list[set[int]] = [{0}, {1}]  # the weights that a value last came from
    for _ in range(pick(range(3, longest + 1))):
        # Mostly the newest value: a long path. Sometimes another: a branch.
        at = pick([len(shapes) - 1] * 5 + list(range(1, len(shapes))))
        ops = [op for op in (IMAGE if len(shapes[at]) == 3 else TOKENS) if _possible(op, shapes, at)]
        step, made = _step(pick(ops), at, shapes, roots, pick)
        steps.append(step)
        shapes.append(made)
        roots.append({len(steps)} if step.op in WEIGHTS else set.union(*(roots[i] for i in step.sources)))
    end = pick(["pool", "positions"] + (["flatten"] if shapes[-1][-1] <= 64 else []))
    return Description(shape, tuple(steps), end)


@st.composite
def descriptions(draw: st.DrawFn, longest: int = 12) -> Description:
    """Draw networks by hypothesis."""
    return described(lambda values: draw(st.sampled_from(list(values))), longest)


def seeded(seed: int, longest: int = 12) -> Description:
    """Return the network of a seed."""
    return described(random.Random(seed).choice, longest)


class Attention(nn.Module):
    """Attention of four heads, written out or fused."""

    def __init__(self, width: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout, self.fused = dropout, fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        else:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            y = F.dropout(scores.softmax(-1), self.dropout, self.training) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Packed(nn.Module):
    """nn.MultiheadAttention on one input."""

    def __init__(self, width: int, dropout: float, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, dropout=dropout, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


class Excite(nn.Module):
    """A squeeze-and-excite gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.excite(self.squeeze(x.mean((2, 3))).relu()).sigmoid()
        return x * gate[:, :, None, None]


class Context(nn.Module):
    """A linear layer of the tokens' average, added to each of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x.mean(1, keepdim=True))


class Mixer(nn.Module):
    """A linear layer across tokens."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.linear = nn.Linear(tokens, tokens)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mT).mT


class Halves(nn.Module):
    """A linear layer and a gate by its second half."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.linear(x), -1)


MODULES: dict[str, Callable[..., nn.Module]] = {
    "conv": lambda a, b, kernel, stride: nn.Conv2d(a, b, kernel, stride, kernel // 2),
    "grouped": lambda width, groups: nn.Conv2d(width, width, 3, padding=1, groups=groups),
    "transposed": lambda a, b: nn.ConvTranspose2d(a, b, 2, stride=2),
    "batch_norm": nn.BatchNorm2d,
    "group_norm": lambda width: nn.GroupNorm(4, width),
    "layer_norm": nn.LayerNorm,
    "rms_norm": nn.RMSNorm,
    "activation": lambda name: ACTIVATIONS[name](),
    "dropout": nn.Dropout,
    "dropout2d": nn.Dropout2d,
    "linear": nn.Linear,
    "attention": Attention,
    "module_attention": Packed,
    "excite": Excite,
    "context": Context,
    "mixer": Mixer,
    "glu": Halves,
    "max_pool": lambda: nn.MaxPool2d(2),
    "avg_pool": lambda: nn.AvgPool2d(2),
}
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "gate": lambda x, y: x * torch.sigmoid(y),
    "cat": lambda x, y: torch.cat((x, y), 1 if x.dim() == 4 else -1),
    "tokens": lambda x: x.flatten(2).mT,
    "image": lambda x, side: x.mT.unflatten(-1, (side, side)),
}


class Graph(nn.Module):
    """The network of a description, with two linear layers at its end."""

    def __init__(self, description: Description) -> None:
        super().__init__()
        self.description = description
        self.steps = nn.ModuleList(
            MODULES[step.op](*step.options) if step.op in MODULES else nn.Identity() for step in description.steps
        )
        with torch.no_grad():
            width = self._body(torch.zeros(2, *description.shape)).shape[-1]
        self.head, self.last = nn.Linear(width, 64), nn.Linear(64, 32)

    def _body(self, x: Tensor) -> Tensor:
        values = [x]
        for step, module in zip(self.description.steps, self.steps, strict=True):
            taken = [values[i] for i in step.sources]
            known = FUNCTIONS.get(step.op)
            values.append(module(*taken) if known is None else known(*taken, *step.options))
        x, end = values[-1], self.description.end
        if x.dim() == 4:
            return x.mean((2, 3)) if end == "pool" else x.flatten(1) if end == "flatten" else x.movedim(1, -1)
        return x.mean(1) if end == "pool" else x.flatten(1) if end == "flatten" else x

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.head(self._body(x)).relu())
