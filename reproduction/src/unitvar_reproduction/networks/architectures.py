"""The networks of the experiments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

__all__ = ["ACTIVATIONS", "DenseNet", "Dropout", "drop_", "evaluating", "layers_a_block", "mlp", "quicken_", "vgg"]

Module = TypeVar("Module", bound=nn.Module)
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU}


class DenseLayer(nn.Module):
    """BN-ReLU-conv-dropout, its output appended to its input."""

    def __init__(self, channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)
        self.layers = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), conv, nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        """Append what the layer makes of x to x."""
        return torch.cat([x, self.layers(x)], dim=1)


class DenseNet(nn.Sequential):
    """The DenseNet of the paper's §3: three blocks, no bottlenecks, dropout after every convolution but the first.

    Args:
        depth: layers L = 3 n + 4, n in each block.
        growth: channels k that a layer adds.
        dropout: drop probability.
        channels: of the images.
        classes: of the labels.
    """

    def __init__(self, depth: int, growth: int, dropout: float, *, channels: int = 3, classes: int = 10) -> None:
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False)]
        width = 16
        for block in range(3):
            for _ in range(layers_a_block(depth)):
                layers.append(DenseLayer(width, growth, dropout))
                width += growth
            if block < 2:
                conv = nn.Conv2d(width, width, 1, bias=False)
                layers += [nn.BatchNorm2d(width), nn.ReLU(), conv, nn.Dropout(dropout), nn.AvgPool2d(2)]
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
        super().__init__(*layers)


def layers_a_block(depth: int) -> int:
    """Return n, of a DenseNet's L = 3 n + 4 layers."""
    if depth < 7 or (depth - 4) % 3:
        raise ValueError(f"depth={depth} is not 3 n + 4 with n ≥ 1, such as 22, 40 or 100.")
    return (depth - 4) // 3


def vgg(width: int = 64, *, classes: int = 10, padding: Literal["zeros", "circular"] = "zeros") -> nn.Sequential:
    """Build the VGG of the paper's §2.3.2 for 32x32 images, with its dropout.

    Args:
        width: channels of the first stack; 64 in the paper.
        classes: of the labels.
        padding: what a convolution sees beyond the borders.
    """
    rates = {1: 0.3} | dict.fromkeys((3, 5, 6, 8, 9, 11, 12), 0.4)
    layers: list[nn.Module] = []
    channels, index = 3, 0
    for stage, convolutions in enumerate((2, 2, 3, 3, 3)):
        size = width * 2 ** min(stage, 3)
        for _ in range(convolutions):
            index += 1
            layers += [nn.Conv2d(channels, size, 3, padding=1, padding_mode=padding), nn.ReLU()]
            layers += [nn.Dropout(rates[index])] if index in rates else []
            channels = size
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Dropout(0.5), nn.Linear(channels, channels), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, *head, nn.Linear(channels, classes))


class Dropout(nn.Dropout):
    """Inverted dropout that compares uniform numbers with the keep rate.

    On a CPU, torch's own spends a third of a small network's training step on drawing Bernoulli variables.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Drop and scale in training, else return x."""
        if not self.training or self.p == 0:
            return x
        keep = 1 - self.p
        # In single precision whatever x has: uniform numbers of 8 bits are below 0.7 too often.
        return x * torch.rand_like(x, dtype=torch.float32).lt_(keep).to(x.dtype).div_(keep)


def quicken_(model: Module) -> Module:
    """Put the quicker dropout in place of torch's; return the model."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))
    return model


def drop_(model: nn.Module) -> nn.Module:
    """Switch dropout on, whatever else is in evaluation mode; return the model."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.training = True
    return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Switch every module to evaluation, and put each flag back, whatever happens."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        yield model.eval()
    finally:
        for module, flag in flags:
            module.training = flag


def mlp(
    inputs: int,
    dropout: float,
    *,
    activation: str = "relu",
    batchnorm: bool = True,
    width: int = 128,
    hidden: int = 4,
    classes: int = 10,
) -> nn.Sequential:
    """Build linear-(BN)-activation-dropout layers and a classifier."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} is not one of {', '.join(map(repr, ACTIVATIONS))}.")
    layers: list[nn.Module] = [nn.Flatten()]
    for i in range(hidden):
        norm = [nn.BatchNorm1d(width)] if batchnorm else []
        linear = nn.Linear(inputs if i == 0 else width, width)
        layers += [linear, *norm, ACTIVATIONS[activation](), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width, classes))
