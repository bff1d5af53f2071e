"""The paper's synthetic network: random inputs through twenty random layers, and random errors back through them.

As in the authors' notebook: 1,000 standard normal inputs of 500, 15 layers of 500 and then layers of 250, 21 in all,
counted from 0; layers 5, 10, 15 and 20 are shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from unitvar import activation_moments
from unitvar.activations import NAMES
from unitvar.init import sphere_

__all__ = ["INPUTS", "SHOWN", "SIZES", "Histogram", "Layer", "bare_mask", "errors", "feed", "growth", "weights"]

INPUTS = 1000
SIZES = (500,) * 15 + (250,) * 6
SHOWN = (5, 10, 15, 20)


@dataclass(frozen=True)
class Histogram:
    """The density of some values in equal bins."""

    low: float
    high: float
    density: tuple[float, ...]

    @classmethod
    def of(cls, values: Tensor, bins: int = 50) -> Histogram:
        """Count values that are finite; there may be none."""
        finite = values[values.isfinite()].double().numpy()
        if not len(finite):
            return cls(0.0, 0.0, ())
        density, edges = np.histogram(finite, bins=bins, density=True)
        return cls(float(edges[0]), float(edges[-1]), tuple(float(f"{d:.4g}") for d in density))

    def steps(self) -> tuple[list[float], list[float]]:
        """Return the outline, to be drawn as a line."""
        edges = np.linspace(self.low, self.high, len(self.density) + 1)
        return np.repeat(edges, 2).tolist(), [0.0, *np.repeat(self.density, 2).tolist(), 0.0]


@dataclass(frozen=True)
class Layer:
    """What is before an activation, what comes out of its dropout, and what dropout keeps."""

    z: Tensor
    out: Tensor
    kept: Tensor


def weights(init: str, activation: str, keep: float, generator: torch.Generator) -> Iterator[Tensor]:
    """Draw the weights, layer by layer.

    ``forward`` and ``backward`` are :func:`unitvar.init.sphere_` in that mode, after an identity in the first layer;
    ``paper-backward`` is the paper's backward correction, 1 / sqrt(p E f'²) on rows of norm one. ``he`` corrects for
    nothing but ReLU, as in the notebook.
    """
    fan_in = SIZES[0]
    for i, fan_out in enumerate(SIZES):
        weight = torch.empty(fan_out, fan_in)
        before, dropout = ("identity", 0.0) if i == 0 else (activation, 1 - keep)
        if init in ("forward", "backward"):
            sphere_(weight, before, dropout, mode=init, generator=generator)
        elif init == "paper-backward":
            slope = activation_moments(activation).slope
            sphere_(weight, gain=1 / math.sqrt(keep * slope), generator=generator)
        elif init == "xavier":
            nn.init.xavier_uniform_(weight, generator=generator)
        elif init == "he":
            nn.init.normal_(weight, 0.0, math.sqrt((2 if activation == "relu" else 1) / fan_in), generator=generator)
        else:
            raise ValueError(f"init={init!r} is not one of 'forward', 'backward', 'paper-backward', 'xavier', 'he'.")
        yield weight
        fan_in = fan_out


def feed(init: str, activation: str, keep: float, seed: int) -> list[Layer]:
    """Feed standard normal inputs forward, with inverted dropout after every activation."""
    generator = torch.Generator().manual_seed(seed)
    function = NAMES[activation]
    h = torch.randn(INPUTS, SIZES[0], generator=generator).requires_grad_()
    layers = []
    for weight in weights(init, activation, keep, generator):
        z = h @ weight.T
        kept = torch.rand(z.shape, generator=generator) < keep
        h = function(z) * (kept / keep)
        layers.append(Layer(z, h, kept))
    return layers


def errors(layers: Sequence[Layer], seed: int, scale: float = 0.01) -> list[Tensor]:
    """Feed normal errors back from the last layer's input, by autograd; return those at the input of every layer."""
    generator = torch.Generator().manual_seed(seed + 1_000_000)
    last = layers[-1].z
    top = torch.randn(last.shape, generator=generator) * scale
    return list(torch.autograd.grad(last, [layer.z for layer in layers], top))


def bare_mask(flown: Sequence[Tensor], keep: float) -> list[Tensor]:
    """Turn errors under autograd into those of the paper, which are multiplied by the mask and not by mask / keep."""
    return [error * keep ** (len(flown) - 1 - i) for i, error in enumerate(flown)]


def growth(values: Sequence[Tensor]) -> list[float]:
    """Return the second moment of each."""
    return [value.detach().double().square().mean().item() for value in values]
