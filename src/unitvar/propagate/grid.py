"""The law of an element, as values on a grid.

Pointwise ops are replayed, as they were recorded, on quadrature nodes of the Gaussian they all go back to, times the
states of whatever noise was multiplied in. The panels end at zero and the integers, where activations have their kinks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Axis", "Field", "bernoulli", "constant", "empirical", "gaussian", "quantiles", "uniform"]

_REACH = 10.0
_NODES = 10  # of Gauss and Legendre, a panel
_OUTER, _INNER = 20, 64  # nodes of what two positions share, and of what is each one's own
_UNIFORM = 1000  # midpoints, so that a threshold at a multiple of 0.001 is exact


@dataclass(eq=False, slots=True)
class Axis:
    """A source of randomness: nodes and their probabilities.

    ``large`` marks the Gaussian ones, of which a field has at most one. Its nodes are followed by those of a pair of
    positions, outer times inner, if ``pair``. ``shared`` marks noise that is the same at all positions; ``keep`` is the
    keep rate of a Bernoulli mask.
    """

    nodes: Tensor
    weights: Tensor
    large: bool = False
    pair: bool = False
    shared: bool = False
    keep: float = 1.0
    origin: Any = None

    def twin(self) -> Axis:
        """Give another source with the same law."""
        return Axis(self.nodes, self.weights, self.large, self.pair, self.shared, self.keep, self.origin)


@lru_cache(maxsize=1)
def _panel() -> tuple[Any, Any]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return (nodes + 1) / 2, weights / 2


@lru_cache(maxsize=1)
def _hermite() -> tuple[Any, Any, Any, Any]:
    outer, wo = np.polynomial.hermite_e.hermegauss(_OUTER)
    # Evenly spaced: maxima need a distribution function without gaps, and kinks may be anywhere.
    inner = (np.arange(_INNER) + 0.5) * (12 / _INNER) - 6
    wi = np.exp(-inner * inner / 2)
    return outer, wo / wo.sum(), inner, wi / wi.sum()


@lru_cache(maxsize=4096)
def _nodes(mean: float, std: float, rho: float) -> tuple[Tensor, Tensor]:
    whole = (np.arange(-8, 9) - mean) / std
    edges = np.unique(np.concatenate([np.linspace(-_REACH, _REACH, 11), whole[np.abs(whole) < _REACH]]))
    u, w = _panel()
    width = np.diff(edges)
    t = (edges[:-1, None] + width[:, None] * u).ravel()
    weights = (width[:, None] * w).ravel() * np.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    if rho > 0:
        outer, _, inner, _ = _hermite()
        pair = math.sqrt(rho) * outer[:, None] + math.sqrt(max(0.0, 1 - rho)) * inner
        t = np.concatenate([t, pair.ravel()])
    return torch.from_numpy(mean + std * t), torch.from_numpy(weights / weights.sum())


def gaussian(mean: float, std: float, rho: float = 0.0, origin: Any = None) -> Axis:
    """Make a Gaussian source; rho is the correlation of two positions."""
    nodes, weights = _nodes(round(mean, 13), float(f"{std:.13g}"), round(min(1.0, max(0.0, rho)), 9))
    leaf = nodes.clone().requires_grad_()
    return Axis(leaf, weights, large=True, pair=nodes.numel() > weights.numel(), origin=origin)


def bernoulli(keep: float, *, shared: bool = False) -> Axis:
    """Make a mask: 1 with probability keep, else 0."""
    weights = torch.tensor([1.0 - keep, keep], dtype=torch.float64, device="cpu")
    return Axis(torch.tensor([0.0, 1.0], dtype=torch.float64, device="cpu"), weights, shared=shared, keep=keep)


def uniform(low: float, high: float, *, shared: bool = False) -> Axis:
    """Make uniform noise."""
    nodes = low + (high - low) * (torch.arange(_UNIFORM, dtype=torch.float64, device="cpu") + 0.5) / _UNIFORM
    return Axis(nodes, torch.full((_UNIFORM,), 1.0 / _UNIFORM, dtype=torch.float64, device="cpu"), shared=shared)


def empirical(values: Tensor, *, shared: bool, count: int = 16) -> Axis:
    """Make a source with the law of the values that a tensor has, in few nodes, with its very mean and variance."""
    flat = values.detach().double().flatten()
    distinct = torch.unique(flat) if flat.numel() <= 4096 else flat[:1]
    if 1 < distinct.numel() <= count:
        _, counts = torch.unique(flat, return_counts=True)
        return Axis(distinct, counts.double() / flat.numel(), shared=shared)
    if flat.numel() > 1 << 16:
        flat = flat[:: flat.numel() >> 16]
    levels = (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) / count
    nodes = flat.quantile(levels)
    spread = nodes.std(unbiased=False)
    if spread > 0:
        nodes = flat.mean() + (nodes - nodes.mean()) * (flat.std(unbiased=False) / spread)
    return Axis(nodes, torch.full((count,), 1.0 / count, dtype=torch.float64, device="cpu"), shared=shared)


@dataclass(eq=False, slots=True)
class Field:
    """Values on the product of some noises and at most one Gaussian, which is the last dimension."""

    values: Tensor
    noises: tuple[Axis, ...]
    large: Axis | None

    def aligned(self, noises: Sequence[Axis]) -> Tensor:
        """Lay the values out on a longer list of noises."""
        where = {id(axis): i for i, axis in enumerate(self.noises)}
        shape = [self.values.shape[where[id(a)]] if id(a) in where else 1 for a in noises]
        # Noises are ordered by when they came in, so that aligning never permutes.
        return self.values.reshape(*shape, self.values.shape[-1])

    def reduced(self, power: int) -> Tensor:
        """Return E v^power."""
        main = self._main()
        v = main if power == 1 else main * main
        return self._over_noises(v @ self.large.weights if self.large is not None else v[..., 0])

    def _main(self) -> Tensor:
        values = self.values.expand(*(len(a.nodes) for a in self.noises), self.values.shape[-1])
        if self.large is None:
            return values
        n = len(self.large.weights)
        return values[..., :n] if values.shape[-1] > 1 else values.expand(*values.shape[:-1], n)

    def _over_noises(self, v: Tensor) -> Tensor:
        for axis in reversed(self.noises):
            v = v @ axis.weights
        return v

    def moments(self) -> tuple[float, float, float | None]:
        """Return E v, E v² and E v_i v_j for two positions; None if those are independent."""
        return float(self.reduced(1).detach()), float(self.reduced(2).detach()), self.cross()

    def cross(self, *, independent: bool = False) -> float | None:
        """Return E v_i v_j for two positions; if independent, of whose Gaussians they share nothing but the noise."""
        paired = self.large is not None and self.large.pair and self.values.shape[-1] > 1 and not independent
        if not paired and not any(a.shared for a in self.noises):
            return None
        values = self.values.detach().expand(*(len(a.nodes) for a in self.noises), self.values.shape[-1])
        if paired:
            _, wo, _, wi = _hermite()
            rest = values[..., len(self.large.weights) :].reshape(*values.shape[:-1], _OUTER, _INNER)  # type: ignore[union-attr]
            given = rest @ torch.from_numpy(wi)
        elif self.large is not None and values.shape[-1] > 1:
            given = (values[..., : len(self.large.weights)] @ self.large.weights).unsqueeze(-1)
            wo = np.ones(1)
        else:
            given, wo = values[..., :1], np.ones(1)
        # What is each position's own is averaged before squaring, what is shared after it.
        for i in reversed(range(len(self.noises))):
            axis = self.noises[i]
            if not axis.shared:
                given = torch.tensordot(given, axis.weights, dims=([i], [0]))
        square = (given * given) @ torch.from_numpy(wo)
        for axis in reversed([a for a in self.noises if a.shared]):
            square = square @ axis.weights
        return float(square)

    def derivative(self) -> Tensor:
        """Return dv/dz on the grid, one row for each state of the noises."""
        if self.large is None or not self.values.requires_grad:
            return torch.zeros(1, dtype=torch.float64, device="cpu")
        rows = self._main().reshape(-1, len(self.large.weights))
        found = [
            torch.autograd.grad(row.sum(), self.large.nodes, retain_graph=True)[0][: len(self.large.weights)]
            for row in rows
        ]
        return torch.stack(found).reshape(*(len(a.nodes) for a in self.noises), -1)

    def slope(self) -> float:
        """Return E (dv/dz)²."""
        if self.large is None or not self.values.requires_grad:
            return 0.0
        d = self.derivative()
        return float(self._over_noises((d * d) @ self.large.weights))

    def growth(self) -> float:
        """Return chi = E[z v v'] / E[v²]: how a relative change of z passes."""
        if self.large is None or not self.values.requires_grad:
            return 0.0
        second = self.reduced(2)
        if float(second.detach()) <= 0:
            return 0.0
        (grad,) = torch.autograd.grad(second, self.large.nodes, retain_graph=True)
        return float((grad * self.large.nodes.detach()).sum() / (2 * second.detach()))

    def law(self) -> tuple[Any, Any]:
        """Return sorted values and their cumulative probability, at the middle of each."""
        main = self._main().detach()
        weights = self.large.weights if self.large is not None else torch.ones(1, dtype=torch.float64, device="cpu")
        for axis in reversed(self.noises):
            weights = axis.weights.reshape(-1, *(1,) * weights.dim()) * weights
        return _sorted(main.numpy().ravel(), weights.expand(main.shape).numpy().ravel())

    def conditional(self) -> list[tuple[float, Any, Any]] | None:
        """Return, for each outer node, its probability and the law given it; None without a pair."""
        if self.large is None or not self.large.pair or self.values.shape[-1] == 1:
            return None
        _, wo, _, wi = _hermite()
        values = self.values.detach().expand(*(len(a.nodes) for a in self.noises), self.values.shape[-1])
        rest = values[..., len(self.large.weights) :].reshape(-1, _OUTER, _INNER)
        weights = torch.ones((), dtype=torch.float64, device="cpu")
        for axis in reversed(self.noises):
            weights = axis.weights.reshape(-1, *(1,) * weights.dim()) * weights
        w = (weights.reshape(-1, 1) * torch.from_numpy(wi)).numpy().ravel()
        return [(float(wo[i]), *_sorted(rest[:, i].reshape(-1).numpy(), w)) for i in range(_OUTER)]


def _sorted(values: Any, weights: Any) -> tuple[Any, Any]:
    order = np.argsort(values, kind="stable")
    weights = weights[order]
    return values[order], np.cumsum(weights) - weights / 2


def quantiles(field: Field, count: int) -> Axis:
    """Compress a field to a noise of few nodes with its mean and variance."""
    values, middle = field.law()
    levels = (np.arange(count) + 0.5) / count
    nodes = np.interp(levels, middle, values)
    first, second, _ = field.moments()
    spread = nodes.std()
    if spread > 0:
        nodes = first + (nodes - nodes.mean()) * math.sqrt(max(0.0, second - first**2)) / spread
    return Axis(torch.from_numpy(nodes), torch.full((count,), 1.0 / count, dtype=torch.float64, device="cpu"))


def constant(value: float) -> Field:
    """Make a field that is a number."""
    return Field(torch.tensor([float(value)], dtype=torch.float64, device="cpu"), (), None)
