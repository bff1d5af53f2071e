"""The law of an element, as values on a grid.

Pointwise ops are replayed, as they were recorded, on quadrature nodes of the Gaussian they all go back to, times the
states of whatever noise was multiplied in. The panels end at zero and the integers, where activations have their kinks.

What two elements have in common follows from the same values. If their Gaussians have correlation rho, then
E v_1 v_2 = Σ a_k² rho^k, where a_k are the coefficients of v in Hermite's polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unitvar.moments.correlation import KINDS, UNRELATED, Correlation

__all__ = ["NODES", "Axis", "Field", "bernoulli", "constant", "empirical", "gaussian", "mapped", "quantiles", "uniform"]

_REACH = 10.0
NODES = 10  # of Gauss and Legendre, a panel
_TERMS = 24  # of the Hermite series; what lies beyond counts with the next power
_OUTER, _INNER = 20, 64  # nodes of what the elements of a window share, and of what is each one's own
_UNIFORM = 1000  # midpoints, so that a threshold at a multiple of 0.001 is exact
_LEVELS = 512  # quantiles of a maximum


@dataclass(eq=False, slots=True)
class Axis:
    """A source of randomness: nodes and their probabilities.

    Attributes:
        nodes: its values.
        weights: their probabilities.
        shared: the kinds of pairs whose two elements meet the same draw, as those of a channel meet one scale.
        keep: the keep rate of a Bernoulli mask.
        correlation: of a Gaussian source, of its elements.
        origin: of a Gaussian source, what it belongs to; see :class:`unitvar.moments.signal.Origin`.
        mean: of a Gaussian source.
        std: of a Gaussian source.
        key: tells sources apart. Another part of a tensor has the same nodes and another key.
    """

    nodes: Tensor
    weights: Tensor
    shared: frozenset[str] = frozenset()
    keep: float = 1.0
    correlation: Correlation = UNRELATED
    origin: Any = None
    mean: float = 0.0
    std: float = 1.0
    key: object = field(default_factory=object)


@lru_cache(maxsize=1)
def _panel() -> tuple[Any, Any]:
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return (nodes + 1) / 2, weights / 2


@lru_cache(maxsize=1)
def _split() -> tuple[Any, Any, Any, Any]:
    outer, wo = np.polynomial.hermite_e.hermegauss(_OUTER)
    # Evenly spaced: maxima need a distribution function without gaps, and kinks may be anywhere.
    inner = (np.arange(_INNER) + 0.5) * (12 / _INNER) - 6
    wi = np.exp(-inner * inner / 2)
    return outer, wo / wo.sum(), inner, wi / wi.sum()


@lru_cache(maxsize=4096)
def _nodes(mean: float, std: float) -> tuple[Tensor, Tensor, Any]:
    """Return the nodes of a Gaussian, their weights, and the Hermite polynomials there, times the weights."""
    whole = (np.arange(-8, 9) - mean) / std
    edges = np.unique(np.concatenate([np.linspace(-_REACH, _REACH, 11), whole[np.abs(whole) < _REACH]]))
    u, w = _panel()
    width = np.diff(edges)
    t = (edges[:-1, None] + width[:, None] * u).ravel()
    weights = (width[:, None] * w).ravel() * np.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    weights /= weights.sum()
    before, h = np.zeros_like(t), np.ones_like(t)
    rows = []
    for k in range(_TERMS):
        rows.append(h * weights)
        before, h = h, (t * h - k**0.5 * before) / (k + 1) ** 0.5
    return torch.from_numpy(mean + std * t), torch.from_numpy(weights), np.stack(rows)


def gaussian(mean: float, std: float, correlation: Correlation = UNRELATED, origin: Any = None) -> Axis:
    """Make a Gaussian source."""
    mean, std = round(mean, 13), float(f"{std:.13g}")
    nodes, weights, _ = _nodes(mean, std)
    leaf = nodes.clone().requires_grad_()
    return Axis(leaf, weights, correlation=correlation, origin=origin, mean=mean, std=std)


def bernoulli(keep: float, shared: frozenset[str] = frozenset()) -> Axis:
    """Make a mask: 1 with probability keep, else 0."""
    return Axis(_float64([0.0, 1.0]), _float64([1.0 - keep, keep]), shared, keep)


def uniform(low: float, high: float, shared: frozenset[str] = frozenset()) -> Axis:
    """Make uniform noise."""
    nodes = low + (high - low) * (torch.arange(_UNIFORM, dtype=torch.float64, device="cpu") + 0.5) / _UNIFORM
    return Axis(nodes, torch.full((_UNIFORM,), 1.0 / _UNIFORM, dtype=torch.float64, device="cpu"), shared)


def empirical(values: Tensor, shared: frozenset[str], count: int = 16) -> Axis:
    """Make a source with the law of the values that a tensor has, in few nodes, with its very mean and variance."""
    flat = values.detach().double().flatten()
    distinct = torch.unique(flat) if flat.numel() <= 4096 else flat[:1]
    if 1 < distinct.numel() <= count:
        _, counts = torch.unique(flat, return_counts=True)
        return Axis(distinct, counts.double() / flat.numel(), shared)
    if flat.numel() > 1 << 16:
        flat = flat[:: flat.numel() >> 16]
    levels = (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) / count
    nodes = flat.quantile(levels)
    spread = nodes.std(unbiased=False)
    if spread > 0:
        nodes = flat.mean() + (nodes - nodes.mean()) * (flat.std(unbiased=False) / spread)
    return Axis(nodes, torch.full((count,), 1.0 / count, dtype=torch.float64, device="cpu"), shared)


def mapped(values: Tensor, correlation: Correlation) -> Field:
    """Give the law of the values that a tensor has, as the increasing function of a Gaussian that has their quantiles.

    Args:
        values: of the tensor.
        correlation: of two of them, for each kind of pair.
    """
    axis = gaussian(0.0, 1.0, correlation)
    flat = values.detach().double().flatten()
    known = flat[:: max(1, flat.numel() >> 16)].sort().values.numpy()
    levels = torch.special.ndtr(axis.nodes.detach()).numpy()
    return Field(torch.from_numpy(np.interp(levels, (np.arange(len(known)) + 0.5) / len(known), known)), (), axis)


def _float64(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


@dataclass(eq=False, slots=True)
class Field:
    """Values on the product of some noises and at most one Gaussian, which is the last dimension."""

    values: Tensor
    noises: tuple[Axis, ...]
    large: Axis | None
    _full: Tensor | None = field(default=None, repr=False)
    _known: dict[tuple[bool, ...], tuple[Any, Any]] = field(default_factory=dict, repr=False)

    def aligned(self, noises: Sequence[Axis]) -> Tensor:
        """Lay the values out on a longer list of noises."""
        wanted = [i for a in noises for i, own in enumerate(self.noises) if own.key is a.key]
        values = self.values if wanted == sorted(wanted) else self.values.permute(*wanted, -1)
        own = {id(a.key): values.shape[i] for i, a in enumerate(self.noises[j] for j in wanted)}
        return values.reshape(*(own.get(id(a.key), 1) for a in noises), values.shape[-1])

    @property
    def full(self) -> Tensor:
        """Return the values on the whole product."""
        if self._full is None:
            last = 1 if self.large is None else len(self.large.weights)
            self._full = self.values.expand(*(len(a.nodes) for a in self.noises), last)
        return self._full

    def expected(self, v: Tensor) -> Tensor:
        """Average numbers on the whole product."""
        v = v @ self.large.weights if self.large is not None else v[..., 0]
        for axis in reversed(self.noises):
            v = v @ axis.weights
        return v

    def moments(self) -> tuple[float, float]:
        """Return E v and E v²."""
        v = self.full.detach()
        return float(self.expected(v)), float(self.expected(v * v))

    def correlation(self, mean: float, second: float) -> Correlation:
        """Return the correlations of pairs of elements."""
        var = second - mean**2
        if var <= 1e-12 * second:
            return UNRELATED
        rho = self.large.correlation if self.large is not None else UNRELATED
        pairs = self._paired(self._coefficients, rho)
        return Correlation(*(max(-1.0, min(1.0, (pair - mean**2) / var)) for pair in pairs))

    def pairs(self, v: Tensor, rho: Correlation) -> list[float]:
        """Return E v_1 v_2 of each kind of pair, for Gaussians with these correlations."""
        known: dict[tuple[bool, ...], tuple[Any, Any]] = {}

        def coefficients(pattern: tuple[bool, ...]) -> tuple[Any, Any]:
            if pattern not in known:
                known[pattern] = self._series(v, pattern)
            return known[pattern]

        return self._paired(coefficients, rho)

    def _coefficients(self, pattern: tuple[bool, ...]) -> tuple[Any, Any]:
        """Return the series of the values, computed once."""
        if pattern not in self._known:
            self._known[pattern] = self._series(self.full.detach(), pattern)
        return self._known[pattern]

    def _paired(self, coefficients: Callable[[tuple[bool, ...]], tuple[Any, Any]], rho: Correlation) -> list[float]:
        powers = np.power.outer(rho, np.arange(_TERMS + 1 if self.large is not None else 1))
        found = []
        for kind, power in zip(KINDS, powers, strict=True):
            probability, squares = coefficients(tuple(kind in axis.shared for axis in self.noises))
            found.append(float(probability @ (squares @ power)))
        return found

    def _series(self, v: Tensor, pattern: tuple[bool, ...]) -> tuple[Any, Any]:
        """Return the states of the shared noises: their probabilities, and for each the squared coefficients."""
        probability = np.ones(1)
        # What is each element's own is averaged before squaring, what is shared after it.
        for i in reversed(range(len(pattern))):
            if not pattern[i]:
                v = torch.tensordot(v, self.noises[i].weights, dims=([i], [0]))
        for axis, kept in zip(self.noises, pattern, strict=True):
            if kept:
                probability = np.multiply.outer(probability, axis.weights.numpy()).ravel()
        rows = v.reshape(len(probability), -1).numpy()
        if self.large is None:
            return probability, rows**2
        squares = (rows @ _nodes(self.large.mean, self.large.std)[2].T) ** 2
        left = np.maximum(0.0, (rows * rows) @ self.large.weights.numpy() - squares.sum(1))
        return probability, np.concatenate([squares, left[:, None]], 1)

    def linear_share(self, var: float) -> float:
        """Return the share of a variance that is linear in the Gaussian."""
        if self.large is None or var <= 0:
            return 0.0
        probability, squares = self._coefficients((False,) * len(self.noises))
        return min(1.0, float(probability @ squares[:, 1]) / var)

    def derivative(self) -> Tensor:
        """Return dv/dz on the grid, one row for each state of the noises."""
        if self.large is None or not self.values.requires_grad:
            return torch.zeros((), dtype=torch.float64, device="cpu").expand(self.full.shape)
        rows = self.full.reshape(-1, len(self.large.weights))
        found = [torch.autograd.grad(row.sum(), self.large.nodes, retain_graph=True)[0] for row in rows]
        return torch.stack(found).reshape(self.full.shape)

    def slope(self) -> float:
        """Return E (dv/dz)²."""
        d = self.derivative()
        return float(self.expected(d * d))

    def growth(self) -> float:
        """Return chi = E[z v v'] / E[v²]: how a relative change of z passes."""
        if self.large is None or not self.values.requires_grad:
            return 0.0
        second = self.expected(self.full * self.full)
        if float(second.detach()) <= 0:
            return 0.0
        (grad,) = torch.autograd.grad(second, self.large.nodes, retain_graph=True)
        return float((grad * self.large.nodes.detach()).sum() / (2 * second.detach()))

    def sorted(self) -> tuple[Tensor, Tensor]:
        """Return the order of all values, and their probabilities in that order."""
        weights = self.large.weights if self.large is not None else torch.ones(1, dtype=torch.float64, device="cpu")
        for axis in reversed(self.noises):
            weights = axis.weights.reshape(-1, *(1,) * weights.dim()) * weights
        order = self.full.detach().reshape(-1).argsort(stable=True)
        return order, weights.expand(self.full.shape).reshape(-1)[order]

    def law(self) -> tuple[Any, Any]:
        """Return sorted values and their cumulative probability, at the middle of each."""
        order, weights = self.sorted()
        return self.full.detach().reshape(-1)[order].numpy(), (weights.cumsum(0) - weights / 2).numpy()

    def extreme(self, count: float, rho: float, shared: Iterable[Axis], largest: bool) -> tuple[float, float, float]:
        """Return E m, E m² and E m_1 m_2 of the largest (or smallest) of some elements.

        Args:
            count: how many.
            rho: the correlation of their Gaussians.
            shared: the noises that they meet together.
            largest: or the smallest.

        Returns:
            The moments; m_1 and m_2 share what the elements of one maximum share.
        """
        # The maximum of k has the distribution F^k, so its quantile at g is that of x at g^(1/k).
        levels = ((np.arange(_LEVELS) + 0.5) / _LEVELS) ** (1 / count)
        levels = levels if largest else 1 - levels
        first = second = cross = 0.0
        for weight, values, middle in self._given(rho, [id(a) for a in shared]):
            top = np.interp(levels, middle, values) if len(values) > 1 else values
            mean = float(top.mean())
            first += weight * mean
            second += weight * float((top * top).mean())
            cross += weight * mean * mean
        return first, second, cross

    def _given(self, rho: float, shared: list[int]) -> list[tuple[float, Any, Any]]:
        """Return the laws of a value given what elements share: probability, sorted values, cumulative probability."""
        full = self.full.detach()
        order = sorted(range(len(self.noises)), key=lambda i: id(self.noises[i]) not in shared)
        both = [self.noises[i] for i in order]
        full = full.permute(*order, -1)
        split = sum(id(a) in shared for a in both)
        outer = _joint(both[:split])
        own = _joint(both[split:])
        rows = full.reshape(len(outer), len(own), -1).numpy()
        if self.large is None:
            return [(float(p), *_ordered(row[:, 0], own)) for p, row in zip(outer, rows, strict=True)]
        if rho <= 1e-6:
            weights = np.multiply.outer(own, self.large.weights.numpy()).ravel()
            return [(float(p), *_ordered(row.ravel(), weights)) for p, row in zip(outer, rows, strict=True)]
        o, wo, i, wi = _split()
        nodes = self.large.nodes.detach().numpy()
        rho = min(1.0, rho)
        z = self.large.mean + self.large.std * (math.sqrt(rho) * o[:, None] + math.sqrt(1 - rho) * i)
        weights = np.multiply.outer(own, wi).ravel()
        found = []
        for p, states in zip(outer, rows, strict=True):
            values = np.stack([np.interp(z, nodes, row) for row in states], 1)  # outer nodes, noises, inner nodes
            found += [(float(p * w), *_ordered(v.ravel(), weights)) for w, v in zip(wo, values, strict=True)]
        return found


def _joint(axes: Sequence[Axis]) -> Any:
    probability = np.ones(1)
    for axis in axes:
        probability = np.multiply.outer(probability, axis.weights.numpy()).ravel()
    return probability


def _ordered(values: Any, weights: Any) -> tuple[Any, Any]:
    order = np.argsort(values, kind="stable")
    weights = weights[order]
    return values[order], np.cumsum(weights) - weights / 2


def quantiles(field: Field, count: int) -> Axis:
    """Compress a field to a noise of few nodes with its mean and variance."""
    values, middle = field.law()
    nodes = np.interp((np.arange(count) + 0.5) / count, middle, values)
    first, second = field.moments()
    spread = nodes.std()
    if spread > 0:
        nodes = first + (nodes - nodes.mean()) * math.sqrt(max(0.0, second - first**2)) / spread
    return Axis(torch.from_numpy(nodes), torch.full((count,), 1.0 / count, dtype=torch.float64, device="cpu"))


def constant(value: float) -> Field:
    """Make a field that is a number."""
    return Field(_float64([float(value)]), (), None)
