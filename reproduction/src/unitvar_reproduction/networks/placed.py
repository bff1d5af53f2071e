"""A small ResNet and a small DenseNet whose dropout stands before BatchNorm, after it, or only before the head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["NETWORKS", "PLACES", "placed"]

BEFORE, AFTER, HEAD = PLACES = ("before BatchNorm", "after BatchNorm", "before the head")


class _ResidualBlock(nn.Module):
    """He et al.'s basic block; dropout between convolution and BatchNorm, or after the inner ReLU."""

    def __init__(self, before: int, width: int, stride: int, place: str, rate: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.drop1, self.inside, self.drop2 = (
            _drop(place, BEFORE, rate),
            _drop(place, AFTER, rate),
            _drop(place, BEFORE, rate),
        )
        conv = nn.Conv2d(before, width, 1, stride, bias=False)
        self.skip = nn.Sequential(conv, nn.BatchNorm2d(width)) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        branch = self.inside(F.relu(self.norm1(self.drop1(self.conv1(x)))))
        return F.relu(self.skip(x) + self.norm2(self.drop2(self.conv2(branch))))


class _DenseLayer(nn.Module):
    """BN-ReLU-conv, its output appended to its input; dropout after the convolution, or before it."""

    def __init__(self, channels: int, growth: int, place: str, rate: float) -> None:
        super().__init__()
        conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)
        inside, last = _drop(place, AFTER, rate), _drop(place, BEFORE, rate)
        self.layers = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), inside, conv, last)

    def forward(self, x: Tensor) -> Tensor:
        """Append what the layer makes of x to x."""
        return torch.cat([x, self.layers(x)], dim=1)


def placed(network: str, place: str, rate: float, *, channels: int = 1, classes: int = 10) -> nn.Sequential:
    """Build a network for 8x8 images with its dropout in one place.

    Args:
        network: ``"resnet"``, three stages of one block, or ``"densenet"``, three blocks of two layers.
        place: one of ``PLACES``.
        rate: drop probability.
        channels: of the images.
        classes: of the labels.

    Returns:
        The network.
    """
    for name, value, allowed in (("network", network, NETWORKS), ("place", place, PLACES)):
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}.")
    layers, width = NETWORKS[network](channels, place, rate)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), _drop(place, HEAD, rate), nn.Linear(width, classes)]
    return nn.Sequential(*layers, *head)


def _resnet(channels: int, place: str, rate: float) -> tuple[list[nn.Module], int]:
    width = 8
    first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    layers = [first, _drop(place, BEFORE, rate), nn.BatchNorm2d(width), nn.ReLU()]
    for stage in range(3):
        layers.append(_ResidualBlock(width, 8 * 2**stage, 2 if stage else 1, place, rate))
        width = 8 * 2**stage
    return layers, width


def _densenet(channels: int, place: str, rate: float) -> tuple[list[nn.Module], int]:
    width = 16
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
    for block in range(3):
        for _ in range(2):
            layers.append(_DenseLayer(width, 8, place, rate))
            width += 8
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        if block < 2:
            conv = nn.Conv2d(width, width, 1, bias=False)
            layers += [_drop(place, AFTER, rate), conv, _drop(place, BEFORE, rate), nn.AvgPool2d(2)]
    return layers, width


NETWORKS = {"resnet": _resnet, "densenet": _densenet}


def _drop(place: str, here: str, rate: float) -> nn.Module:
    return nn.Dropout(rate) if place == here else nn.Identity()
