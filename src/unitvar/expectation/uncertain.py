"""Uncertain tensors: what dropout leaves of a value is a mean and a variance for each element."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "LARGEST",
    "Atom",
    "Common",
    "Source",
    "Uncertain",
    "Weights",
    "ensured",
    "example_size",
    "forget",
    "independent",
    "mean_of",
    "var_of",
    "wide",
]

LARGEST = 1e30  # of a variance: float32 ends at 3e38, and layers multiply and add


class Common(NamedTuple):
    """Noise that several elements of an example share: element i gets ``size[i] * u`` with one unit-variance u a block.

    Channel dropout and DropPath cause it. Elements of an example, in memory order, are cut into blocks of equal length;
    each block has a u of its own. A block as long as an example is what DropPath makes.

    Attributes:
        size: the standard deviation that each element takes from u, with its sign.
        block: the length of a block.
        key: which op drew u; two values with the same key share it.
    """

    size: Tensor
    block: int
    key: int


class Source(NamedTuple):
    """Independent noise that reached a value through dense linear maps: the value's part of it is ``matrix @ noise``.

    Attributes:
        key: which value the noise entered at; two values with the same key share it.
        var: the variance of the noise, features last.
        matrix: the map from there to here, [out, in]; None for the identity.
    """

    key: int
    var: Tensor
    matrix: Tensor | None


class Atom(NamedTuple):
    """What dropout does to an element just before a nonlinearity: it is a Gaussian or one fixed number.

    Attributes:
        keep: the probability of the Gaussian.
        mean: its mean.
        var: its variance.
        value: the number otherwise.
    """

    keep: float
    mean: Tensor
    var: Tensor
    value: Tensor


class Weights(NamedTuple):
    """What a weighted mean needs to know of softmax weights: they sum to one, so their errors are not independent.

    Attributes:
        spread: p² times the variance of the logits.
        extra: what dropout adds to the variance of each weight, independently; None if there is no dropout.
    """

    spread: Tensor
    extra: Tensor | None


class Uncertain(NamedTuple):
    """The mean and the variance of each element of a tensor, and what is known of the covariance.

    An op may ignore the last four: the variance is always the whole variance.

    Attributes:
        mean: the mean, in the dtype of the tensor.
        var: the variance; float32 where the tensor is in half precision.
        common: noise that elements share.
        sources: the independent noises that make up the variance; none if the elements themselves are independent.
        atom: the element's distribution, if it is not taken as Gaussian.
        weights: what is known of softmax weights.
    """

    mean: Tensor
    var: Tensor
    common: Common | None = None
    sources: tuple[Source, ...] = ()
    atom: Atom | None = None
    weights: Weights | None = None

    @property
    def rest(self) -> Tensor:
        """Return the variance without the common noise."""
        return self.var if self.common is None else (self.var - self.common.size.square()).clamp_min(0)


def mean_of(x: Any) -> Any:
    """Return the mean of a tensor; what is certain is its own mean."""
    return x.mean if isinstance(x, Uncertain) else x


def var_of(x: Tensor | Uncertain) -> Tensor:
    """Return the variance of a tensor, zero where it is certain."""
    return x.var if isinstance(x, Uncertain) else torch.zeros_like(wide(x))


def wide(x: Tensor) -> Tensor:
    """Return a tensor in the dtype in which variances are held: squares of half precision under- and overflow."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def independent(x: Uncertain) -> Uncertain:
    """Return the same means and variances, with independent elements."""
    return Uncertain(x.mean, x.var)


def forget(x: Uncertain) -> Uncertain:
    """Drop the sources: no linear layer will ask for them."""
    return x._replace(sources=())


def example_size(x: Tensor) -> int:
    """Count the elements of one example."""
    return math.prod(x.shape[1:])


def ensured(x: Any) -> Uncertain:
    """Return an uncertain tensor, without variance if it is certain."""
    return x if isinstance(x, Uncertain) else Uncertain(x, var_of(x))
