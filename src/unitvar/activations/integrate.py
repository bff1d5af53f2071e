"""Gaussian integrals of any elementwise function, smooth or not.

Panels end wherever f or f' does something sudden (:mod:`unitvar.activations.features`). On each of them a Gauss rule is
compared with the same rule on its halves, and a panel is halved until they agree. What comes out is held against a
second opinion that shares no point with it: the mean over all probes.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from unitvar.activations.check import _Function, evaluate, heights
from unitvar.activations.features import GAP, Probes, hidden, jumps, probes, survey

__all__ = ["integrals"]

Array: TypeAlias = NDArray[np.float64]

_REACH = 10.0  # standard deviations on either side, to begin with; the density there is 8e-23
_FARTHEST = 37.0  # beyond it the density underflows
_STEP = 2 * _REACH / 4096
_CHUNK = 1 << 13  # points a call: what fits a cache is several times faster
_MOST = 1 << 21  # points for all panels together, under a second
_LUCKY = 4  # bumps narrower than the probes' gaps; where more of them are met, others will have been missed
_REMEDY = "Smooth it, or estimate its moments from samples."
_NODES, _WEIGHTS = (a / 2 for a in np.polynomial.legendre.leggauss(15))


class _Integrand:
    """f and f' along t, the input in standard deviations from its mean."""

    def __init__(self, fn: _Function, mean: float, std: float) -> None:
        self.fn, self.mean, self.std = fn, mean, std
        self.eps = torch.finfo(torch.float64).eps

    def __str__(self) -> str:
        return f"{self.fn.label} under N({self.mean:g}, {self.std:g}²)"

    def values(self, t: Array) -> tuple[Array, Array]:
        x = self.mean + self.std * t
        y, slope = evaluate(self.fn, torch.from_numpy(x))
        self.eps = torch.finfo(y.dtype).eps
        return y.double().numpy(), slope.numpy()

    def heights(self, t: Array) -> Array:
        return heights(self.fn, torch.from_numpy(self.mean + self.std * t)).double().numpy()

    def weighted(self, t: Array, values: tuple[Array, Array]) -> Array:
        """Return f, f², f'² and z f f', each times the density of t, along a new first axis."""
        f, df = values
        z = self.mean + self.std * t
        return np.stack([f, f * f, df * df, z * f * df]) * (np.exp(-t * t / 2) / math.sqrt(2 * math.pi))


def integrals(fn: _Function, mean: float, std: float) -> tuple[float, float, float, float]:
    """Return E f, E f², E f'² and E z f f' for z ~ N(mean, std²)."""
    integrand = _Integrand(fn, mean, std)
    if std == 0:
        f, df = (v.item() for v in integrand.values(np.zeros(1)))
        if not (math.isfinite(f) and math.isfinite(df)):
            raise ValueError(f"{fn.label} is not finite at {mean:.6g}: f = {f}, f' = {df}.")
        return f, f * f, df * df, mean * f * df
    with np.errstate(over="ignore", invalid="ignore"):
        grid, coarse, size = _support(integrand)
        fine = _refined(integrand, grid, coarse)
        laid = probes(float(grid[0]), float(grid[-1]), fine[0].size)
        seen = survey(integrand.heights, laid, fine[0])
        _finite(integrand, laid.bounds[:-1], seen.off + seen.second)
        pins, ramps = jumps(integrand.values, grid, fine)
    tolerance = max(1e-6, 1e3 * integrand.eps) * math.sqrt(float(seen.second.sum())) + 1e-300
    between = hidden(integrand.heights, integrand.values, laid, seen.off, pins, tolerance)
    if between.lucky > _LUCKY:
        raise ValueError(
            f"{integrand} varies too fast to be integrated: {between.lucky} bumps narrower than {GAP / 4:g} "
            f"standard deviations were found, and there may be more. {_REMEDY}"
        )
    found = [pins, ramps, between.edges, laid.bounds[[0, -1]]]
    compared = np.ones(seen.off.size, dtype=bool)
    compared[between.cells] = False  # panels are finer than the probes there
    estimate, part, size = _integrate(integrand, _edges(integrand, grid, np.concatenate(found)), size, laid, compared)
    for name, drawn, ours, unit in zip(("E f", "E f²"), (seen.first, seen.second), part, size, strict=False):
        if abs(float(drawn[compared].sum()) - ours) > 1e-4 * unit:
            _check(integrand, laid, compared, name, float(ours), float(unit))
    return estimate[0], estimate[1], estimate[2], estimate[3]


def _support(integrand: _Integrand) -> tuple[Array, tuple[Array, Array], Array]:
    """Return a grid wide enough to hold all but 1e-13 of every integral, f and f' on it, and integrals of |values|."""
    reach = _REACH
    while True:
        # An even number of points keeps the grid off the mean, where an activation likes to have its kink.
        grid = np.linspace(-reach, reach, 2 * round(reach / _STEP))
        values = integrand.values(grid)
        weighted = np.abs(integrand.weighted(grid, values))
        if not np.isfinite(weighted).all():
            if reach > _REACH:
                break
            _finite(integrand, grid, weighted.sum(axis=0))
        size = weighted.sum(axis=1) * (grid[1] - grid[0])
        if (weighted[:, [0, -1]].max(axis=1) <= 1e-13 * size).all():
            return grid, values, size
        if reach >= _FARTHEST:
            break
        reach = min(1.5 * reach, _FARTHEST)
    raise ValueError(
        f"{integrand.fn.label} is not integrable under N({integrand.mean:g}, {integrand.std:g}²): its square grows "
        "faster than the density falls. Choose a smaller std."
    )


def _finite(integrand: _Integrand, t: Array, values: Array) -> None:
    if not np.isfinite(values).all():
        bad = t[~np.isfinite(values)]
        at = integrand.mean + integrand.std * bad[np.abs(bad).argmin()]
        raise ValueError(
            f"{integrand.fn.label} or its slope or square is not finite at {at:.6g}, within the reach of "
            f"N({integrand.mean:g}, {integrand.std:g}²); clamp its input or choose another mean and std."
        )


def _refined(integrand: _Integrand, grid: Array, coarse: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return f and f' on the grid and at three points between any two of its own."""
    inner = grid[:-1, None] + np.diff(grid)[:, None] * (np.arange(1, 4) / 4)
    within = integrand.values(inner.ravel())
    both = []
    for ends, new in zip(coarse, within, strict=True):
        rows = np.concatenate([ends[:-1, None], new.reshape(inner.shape)], axis=1)
        both.append(np.append(rows.ravel(), ends[-1]))
    return both[0], both[1]


def _edges(integrand: _Integrand, grid: Array, found: Array) -> Array:
    """Return the edges of panels on which f and f' are smooth."""
    low, high = grid[0], grid[-1]
    whole = np.arange(-8, 9)  # activations do what they do near zero, at unit scale
    edges = np.concatenate([np.linspace(low, high, 17), (whole - integrand.mean) / integrand.std, found])
    edges = np.unique(edges[(edges >= low) & (edges <= high)])
    apart: Array = edges[np.concatenate([[True], np.diff(edges) > 1e-13 * np.maximum(1, np.abs(edges[1:]))])]
    return apart


def _integrate(
    integrand: _Integrand, edges: Array, size: Array, laid: Probes, compared: NDArray[np.bool_]
) -> tuple[list[float], Array, Array]:
    """Return the four integrals, what of them lies in the cells that are compared, and those of absolute values."""
    tolerance = max(1e-11, integrand.eps)  # of the difference, which is far above the error of the better value

    def over(left: Array, width: Array) -> tuple[Array, Array]:
        """Integrate over panels, and the absolute values too."""
        t = (left + width / 2)[:, None] + width[:, None] * _NODES
        flat = t.ravel()
        pieces = [integrand.weighted(part, integrand.values(part)) for part in _chunks(flat)]
        weighted = np.concatenate(pieces, axis=1).reshape(4, *t.shape)
        return weighted @ _WEIGHTS * width, np.abs(weighted) @ _WEIGHTS @ width

    counted = np.append(compared, [False, False])  # beyond the last cell, and before the first
    left, width = edges[:-1], np.diff(edges)
    whole, size_now = over(left, width)
    total, part, error, size_done, points = np.zeros(4), np.zeros(4), np.zeros(4), np.zeros(4), left.size * 15
    while left.size:
        points += left.size * 30
        if points > _MOST:
            error += np.abs(whole).sum(axis=1)
            break
        middles = np.repeat(left, 2)
        middles[1::2] += width / 2
        halves, size_now = over(middles, np.repeat(width / 2, 2))
        size = np.maximum(size, size_done + size_now)
        unit = np.where(size > 0, size, 1.0)[:, None]
        better = halves.reshape(4, -1, 2).sum(axis=2)
        wrong = np.abs(whole - better) / unit
        done = (wrong <= tolerance).all(axis=0) | (width < 1e-15 * np.maximum(1, np.abs(left)))
        total += better[:, done].sum(axis=1)
        size_done += np.abs(better[:, done]).sum(axis=1)
        error += np.nan_to_num(wrong[:, done], nan=np.inf).sum(axis=1) * unit[:, 0]
        cell = np.searchsorted(laid.bounds, left + width / 2) - 1
        part += better[:, done & counted[cell]].sum(axis=1)
        rest = np.repeat(~done, 2)
        left, width, whole = middles[rest], np.repeat(width / 2, 2)[rest], halves[:, rest]
    worst = float((error / np.where(size > 0, size, 1.0)).max())
    if not worst <= max(1e-9, 1e3 * tolerance):
        raise ValueError(
            f"{integrand} cannot be integrated to 1e-8 (the estimate is good to {worst:.0e}): it or its slope is "
            "singular, jumps too often or varies too fast. Smooth or clamp it, or choose a smaller std."
        )
    return [float(v) for v in total], part, size


def _chunks(t: Array) -> list[Array]:
    return np.split(t, range(_CHUNK, t.size, _CHUNK))


def _check(
    integrand: _Integrand, laid: Probes, compared: NDArray[np.bool_], name: str, ours: float, unit: float
) -> None:
    """Refuse an integral that is not that of the probes, to within what chance allows."""
    points, weights = laid.points[compared], laid.weights[compared]
    g = integrand.heights(points.ravel()).reshape(points.shape) ** (1 if name == "E f" else 2)
    drawn = float(np.vdot(weights, g))
    chance = float(np.linalg.norm(weights[:, 1:] * np.diff(g))) / math.sqrt(2)
    rough = float(np.linalg.norm(weights[:, 1:-1] * np.diff(g, 2))) / math.sqrt(6)  # a trend is not chance
    # Probes that cannot tell to within a hundredth do not confirm anything.
    if abs(drawn - ours) > 6 * chance + 1e-4 * unit or rough > 1e-2 * max(unit, abs(drawn)):
        raise ValueError(
            f"{integrand} varies too fast to be integrated: {name} is {ours:.6g} by quadrature, but {drawn:.6g} ± "
            f"{chance:.1g} over {g.size} points {GAP:g} standard deviations apart. {_REMEDY}"
        )
