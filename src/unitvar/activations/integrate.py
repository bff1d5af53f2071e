"""Gaussian integrals of any elementwise function, smooth or not.

scipy's adaptive Gauss–Kronrod does the integration. What it cannot know is where f or f' jumps: between its nodes a
jump goes unseen, and an odd number of nodes even puts one *on* the kink of a ReLU. So the jumps are found first, to
machine precision, and become edges of the panels.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from unitvar.activations.check import _Function, evaluate

__all__ = ["integrals"]

Array: TypeAlias = NDArray[np.float64]

_REACH = 10.0  # standard deviations on either side, to begin with; the density there is 8e-23
_FARTHEST = 37.0  # beyond it the density underflows
_STEP = 2 * _REACH / 4096
_CUTS = {parts: np.arange(1, parts)[:, None] / parts for parts in (4, 16)}


class _Integrand:
    """f and f' along t, the input in standard deviations from its mean."""

    def __init__(self, fn: _Function, mean: float, std: float) -> None:
        self.fn, self.mean, self.std = fn, mean, std
        self.eps = torch.finfo(torch.float64).eps

    def values(self, t: Array) -> tuple[Array, Array]:
        x = self.mean + self.std * t
        y, slope = evaluate(self.fn, torch.from_numpy(x))
        self.eps = torch.finfo(y.dtype).eps
        return y.double().numpy(), slope.numpy()

    def weighted(self, t: Array) -> Array:
        """Return f, f², f'² and z f f', each times the density of t, along a new first axis."""
        f, df = self.values(t)
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
        grid, size = _support(integrand)
    edges = _edges(integrand, grid)
    estimate = _integrate(integrand, edges, size)
    return estimate[0], estimate[1], estimate[2], estimate[3]


def _support(integrand: _Integrand) -> tuple[Array, Array]:
    """Return a grid wide enough to hold all but 1e-13 of every integral, and the integrals of absolute values."""
    reach = _REACH
    while True:
        # An even number of points keeps the grid off the mean, where an activation likes to have its kink.
        grid = np.linspace(-reach, reach, 2 * round(reach / _STEP))
        weighted = np.abs(integrand.weighted(grid))
        if not np.isfinite(weighted).all():
            if reach > _REACH:
                break
            bad = grid[~np.isfinite(weighted).all(axis=0)]
            at = integrand.mean + integrand.std * bad[np.abs(bad).argmin()]
            raise ValueError(
                f"{integrand.fn.label} or its slope or square is not finite at {at:.6g}, within the reach of "
                f"N({integrand.mean:g}, {integrand.std:g}²); clamp its input or choose another mean and std."
            )
        size = weighted.sum(axis=1) * (grid[1] - grid[0])
        if (weighted[:, [0, -1]].max(axis=1) <= 1e-13 * size).all():
            return grid, np.where(size > 0, size, 1.0)
        if reach >= _FARTHEST:
            break
        reach = min(1.5 * reach, _FARTHEST)
    raise ValueError(
        f"{integrand.fn.label} is not integrable under N({integrand.mean:g}, {integrand.std:g}²): its square grows "
        "faster than the density falls. Choose a smaller std."
    )


def _edges(integrand: _Integrand, grid: Array) -> Array:
    """Return the edges of panels on which f and f' are smooth."""
    low, high = grid[0], grid[-1]
    whole = np.arange(-8, 9)  # activations do what they do near zero, at unit scale
    edges = np.concatenate(
        [np.linspace(low, high, 17), (whole - integrand.mean) / integrand.std, _jumps(integrand, grid)]
    )
    edges = np.unique(edges[(edges >= low) & (edges <= high)])
    apart: Array = edges[np.concatenate([[True], np.diff(edges) > 1e-13 * np.maximum(1, np.abs(edges[1:]))])]
    return apart


def _jumps(integrand: _Integrand, grid: Array) -> Array:
    """Find where f or f' jumps, by zooming into every interval of the grid at once.

    Cut an interval into equal parts. Where g is smooth the increments agree to second order, so the one that stands out
    does so ever less with each zoom; across a jump it does not shrink at all.
    """
    density = np.exp(-grid * grid / 2)
    density /= density.sum()
    inner = grid[:-1] + np.diff(grid) * _CUTS[4]
    ends, within = integrand.values(grid), integrand.values(inner.ravel())
    found = []
    for channel in (0, 1):
        g = ends[channel]
        negligible = 1e-9 * math.sqrt(float(density @ (g * g))) + 1e-300
        left, width, parts = grid[:-1], np.diff(grid), 4
        ladder = np.concatenate([g[None, :-1], within[channel].reshape(inner.shape), g[None, 1:]])
        before = np.zeros(left.shape)
        while True:
            steps = np.diff(ladder, axis=0)
            odd = np.abs(steps - np.median(steps, axis=0))
            which, column = odd.argmax(axis=0), np.arange(left.size)
            stands_out = odd[which, column]
            # A kink shrinks with the parts, and f' sees it as a jump; a jump stays.
            keep = (stands_out > negligible) & (stands_out > before / 2)
            left, width = (left + width * which / parts)[keep], width[keep] / parts
            low, high = (ladder[which + i, column][keep] for i in (0, 1))
            before = stands_out[keep]
            if not left.size or (width <= 4e-16 * np.maximum(1, np.abs(left))).all():
                break
            parts = 16  # few intervals are left, and a call costs more than its points
            points = left + width * _CUTS[parts]
            new = integrand.values(points.ravel())[channel].reshape(points.shape)
            ladder = np.concatenate([low[None], new, high[None]])
        found.append(left + width / 2)
    return np.concatenate(found)


def _integrate(integrand: _Integrand, edges: Array, size: Array) -> list[float]:
    from scipy.integrate import cubature  # 150 ms: on first use, not with `import unitvar`

    tolerance = max(1e-11, integrand.eps)  # of |Kronrod - Gauss|, which is far above the error of Kronrod

    def over(left: Array, width: Array, subdivisions: int) -> tuple[Array, Array]:
        """Integrate over panels, all mapped to (0, 1), so that each step of the rule is one call to f."""

        def panels(u: Array) -> Array:
            t = left + width * u
            return np.moveaxis(integrand.weighted(t.ravel()).reshape(4, *t.shape), 0, -1) * width[:, None] / size

        result = cubature(panels, [0.0], [1.0], rtol=0.0, atol=tolerance, max_subdivisions=subdivisions)
        return result.estimate, result.error

    left, width = edges[:-1], np.diff(edges)
    estimate, error = over(left, width, 0)
    rough = (error > tolerance).any(axis=1)
    if rough.any():  # few: where f turns within less than a panel
        estimate[rough], error[rough] = over(left[rough], width[rough], 200)
    worst = float(error.sum(axis=0).max())
    if not worst <= max(1e-9, 1e3 * tolerance):
        raise ValueError(
            f"{integrand.fn.label} cannot be integrated under N({integrand.mean:g}, {integrand.std:g}²) to 1e-8 (the "
            f"estimate is good to {worst:.0e}): it or its slope is singular or jumps too often. Smooth or clamp it."
        )
    return [float(v) for v in estimate.sum(axis=0) * size]
