"""Where an elementwise function does something that a smooth one would not: jumps, kinks, steep ramps, narrow bumps.

Quadrature sees a function only at its nodes. So whatever lies between them has to be found first, and becomes edges of
the panels: a jump to machine precision, a ramp or a bump by edges that close in on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["GAP", "WINDOW", "Hidden", "Probes", "Survey", "hidden", "jumps", "probes", "survey"]

Array: TypeAlias = NDArray[np.float64]
Pair: TypeAlias = tuple[Array, Array]
Heights: TypeAlias = Callable[[Array], Array]
Values: TypeAlias = Callable[[Array], Pair]

WINDOW = 5.0  # standard deviations on either side of the mean in which nothing as wide as GAP is missed
GAP = 1e-4  # standard deviations between two probes, at most

_CUTS = np.arange(1, 16)[:, None] / 16
_FOURTH = np.array([1.0, -4.0, 6.0, -4.0, 1.0])
_CHUNK = 512  # cells at a time
_MANY = 1 << 14  # intervals to zoom into at once
_FEW = 256  # places that are worth closing in on; more of them are no places but what the function is everywhere


def jumps(values: Values, grid: Array, fine: Pair) -> Pair:
    """Find where f or f' jumps or climbs within a step of the grid, by zooming into every interval at once.

    Args:
        values: f and f' at points.
        grid: evenly spaced points.
        fine: f and f' at the points of the grid and at three between any two of them.

    Returns:
        The jumps, and edges that close in on what is only steep.
    """
    density = np.exp(-grid * grid / 2)
    density /= density.sum()
    found = [(np.empty(0), np.empty(0))]
    for channel in (0, 1):
        g = fine[channel]
        negligible = 1e-9 * math.sqrt(float(density @ g[::4] ** 2)) + 1e-300
        ladder = np.stack([g[i : g.size - 4 + i : 4] for i in range(4)] + [g[4::4]])
        # The fourth difference of what is smooth is 1e-12 or so; a jump of any kind shows in it whole.
        first = np.abs(_FOURTH @ ladder) > negligible
        if first.any():
            found.append(_zoomed(values, channel, grid[:-1][first], np.diff(grid)[first], ladder[:, first], negligible))
    pins, ramps = (np.concatenate(each) for each in zip(*found, strict=True))
    return pins, ramps


def _zoomed(values: Values, channel: int, left: Array, width: Array, ladder: Array, negligible: float) -> Pair:
    """Zoom into intervals, of which a ladder has f or f' at equal steps from end to end, until nothing stands out.

    Where g is smooth the increments agree to second order, so the one that stands out does so ever less with each zoom;
    across a jump it does not shrink at all. One that shrinks only after some zooms is a ramp: edges then close in on it
    from both sides.
    """
    ramps, step, before = [np.empty(0)], float(width.max(initial=0.0)), np.zeros(left.shape)
    while left.size:
        parts = len(ladder) - 1
        steps = np.diff(ladder, axis=0)
        odd = np.abs(steps - np.median(steps, axis=0))
        top = odd.max(axis=0)
        # A kink shrinks with the parts, and f' sees it as a jump; a jump stays.
        noise = 1e-14 * np.abs(ladder).max(axis=0)
        keep = (odd > np.maximum(negligible, noise)) & (odd > np.where(before > 0, before / 2, top / 1e3))
        if keep.sum() > _MANY:  # no jumps, but what the function is everywhere: one part each, so that they do not grow
            keep &= np.arange(parts)[:, None] == odd.argmax(axis=0)
        lost = (before > 0) & ~keep.any(axis=0)
        if 0 < lost.sum() <= _FEW:
            ramps.append(_closing_in(left[lost] + width[lost] / 2, width[lost], step))
        part, column = keep.nonzero()
        left, width = left[column] + width[column] * part / parts, width[column] / parts
        low, high, before = ladder[part, column], ladder[part + 1, column], odd[part, column]
        if (width <= 4e-16 * np.maximum(1, np.abs(left))).all():
            break
        # Few intervals are left, and a call costs more than its points.
        points = left + width * _CUTS
        new = values(points.ravel())[channel].reshape(points.shape)
        ladder = np.concatenate([low[None], new, high[None]])
    return left + width / 2, np.concatenate(ramps)


def _closing_in(centre: Array, width: Array, step: float) -> Array:
    """Return edges on both sides of each centre, from its width up to a step of the grid, each 8 times as far."""
    levels = math.ceil(math.log(max(step / float(width.min()), 1.0), 8)) + 1
    distance = width / 2 * 8.0 ** np.arange(levels)[:, None]
    distance = np.where(distance <= 2 * step, distance, 0.0)
    return np.concatenate([(centre - distance).ravel(), (centre + distance).ravel()])


class Probes(NamedTuple):
    """Points that no two of which are more than GAP apart, irregular, so that no period is in step with them."""

    points: Array  # [cells, points in a cell], along t
    weights: Array  # the probability that each of them stands for
    cells: slice  # of the fine grid's intervals
    bounds: Array  # of the cells
    shares: Array  # [4, points in a cell]: how a cubic through four nodes, one before the cell and one after it, mixes


@lru_cache(maxsize=8)
def probes(low: float, high: float, size: int) -> Probes:
    """Lay probes into every cell of an even grid that lies within the window."""
    fine = np.linspace(low, high, size)
    step = (high - low) / (size - 1)
    count = math.ceil(1.25 * step / GAP) - 1
    # Even but for a jitter that is the same in every cell: gaps are at most 1.25 times the even one.
    u = (np.arange(1, count + 1) + 0.25 * (np.arange(1, count + 1) * 0.6180339887498949 % 1 - 0.5)) / (count + 1)
    first, last = np.searchsorted(fine, [-WINDOW, WINDOW])
    cells = slice(max(int(first) - 1, 1), min(int(last), size - 2))
    points = fine[cells, None] + step * u
    bounds = np.concatenate([[0.0], (u[1:] + u[:-1]) / 2, [1.0]])
    weights = np.exp(-points * points / 2) / math.sqrt(2 * math.pi) * (step * np.diff(bounds))
    nodes = np.arange(-1.0, 3.0)
    shares = np.stack([np.prod([(u - m) / (n - m) for m in nodes if m != n], axis=0) for n in nodes])
    return Probes(points, weights, cells, fine[cells.start : cells.stop + 1], shares)


class Survey(NamedTuple):
    """What the probes of each cell saw."""

    off: Array  # the largest difference between f and the cubic through the four nodes about the cell
    first: Array  # the integral of f times the density, as the probes have it
    second: Array  # that of f²


def survey(heights: Heights, laid: Probes, f: Array) -> Survey:
    """Evaluate f at all probes, some cells at a time, so that everything stays in a cache.

    Args:
        heights: f at points.
        laid: the probes.
        f: f at the nodes of the fine grid.
    """
    start, cells = laid.cells.start, len(laid.points)
    nodes = np.stack([f[start + i : start + i + cells] for i in (-1, 0, 1, 2)], axis=1)
    off, first, second = np.empty((3, cells))
    for low in range(0, cells, _CHUNK):
        some = slice(low, low + _CHUNK)
        points = laid.points[some]
        seen = heights(points.ravel()).reshape(points.shape)
        weighted = laid.weights[some] * seen
        first[some] = weighted.sum(axis=1)
        second[some] = np.einsum("ck,ck->c", weighted, seen)
        difference = nodes[some] @ laid.shares
        difference -= seen
        off[some] = np.abs(difference, out=difference).max(axis=1)
    return Survey(off, first, second)


class Hidden(NamedTuple):
    """What lies between the nodes of the fine grid."""

    edges: Array  # around what was found
    cells: NDArray[np.intp]  # those that have been searched
    lucky: int  # how much of it is so narrow that it was met by chance


def hidden(heights: Heights, values: Values, laid: Probes, off: Array, known: Array, tolerance: float) -> Hidden:
    """Find what lies between the nodes of the fine grid.

    Args:
        heights: f at points.
        values: f and f' at points.
        laid: the probes.
        off: by how much the probes of each cell contradict the nodes about it.
        known: jumps that were found before.
        tolerance: by how much they may.

    """
    rows = np.flatnonzero(off > tolerance)
    if not rows.size:
        return Hidden(np.empty(0), rows, 0)
    if rows.size > _FEW:  # it is like that everywhere: narrow panels, and the probes will tell whether they do
        return Hidden(np.unique(laid.bounds[[rows, rows + 1]]), rows[:0], 0)
    ladder = np.concatenate([laid.bounds[rows, None], laid.points[rows], laid.bounds[rows + 1, None]], axis=1)
    g = heights(ladder.ravel()).reshape(ladder.shape)
    share = (ladder[:, 1:-1] - ladder[:, :-2]) / (ladder[:, 2:] - ladder[:, :-2])
    bend = np.abs(g[:, 1:-1] - g[:, :-2] - share * (g[:, 2:] - g[:, :-2]))
    # Beside a cell with a jump the cubic is wrong, and f is not.
    true = bend.max(axis=1) > tolerance
    rows, ladder, bend = rows[true], ladder[true], bend[true]
    row, worst = np.arange(rows.size), bend.argmax(axis=1)
    low, high = ladder[row, worst], ladder[row, worst + 2]
    which = np.nonzero(bend > tolerance)
    found = [laid.bounds[[rows, rows + 1]].ravel(), *(ladder[which[0], which[1] + i] for i in range(3))]
    lucky = 0
    for _ in range(12):
        width = high - low
        inner = low + width * _CUTS
        ladder = np.concatenate([low[None], inner, high[None]])
        g = heights(ladder.ravel()).reshape(ladder.shape)
        bent = np.abs(g - (g[0] + (g[-1] - g[0]) * np.arange(17)[:, None] / 16))
        top = bent.max(axis=0)
        active = bent > top / 64
        first, last = active.argmax(axis=0), 16 - active[::-1].argmax(axis=0)
        narrow = (top > tolerance) & (last - first < 8) & (width > 1e-15 * np.maximum(1, np.abs(low)))
        if not narrow.any():
            break
        low, high = (low + width * (first - 1) / 16)[narrow], (low + width * (last + 1) / 16)[narrow]
        found += [low, high]
        lucky = max(lucky, int((high - low < GAP / 4).sum()))
    edges = np.unique(np.concatenate(found))
    return Hidden(np.concatenate([edges, _pinned(values, edges, known, tolerance)]), rows, lucky)


def _pinned(values: Values, edges: Array, known: Array, tolerance: float) -> Array:
    """Find the jumps of f and f' between edges, but for those that are known: two in one interval hide each other."""
    left, width = edges[:-1], np.diff(edges)
    inside = np.searchsorted(np.sort(known), edges)
    fresh = (width > 1e-13 * np.maximum(1, np.abs(left))) & (width <= 4 * GAP) & (np.diff(inside) == 0)
    left, width = left[fresh], width[fresh]
    if not left.size:
        return np.empty(0)
    points = left + width * (np.arange(17)[:, None] / 16)
    both = values(points.ravel())
    found: list[Array] = []
    for channel, negligible in ((0, tolerance / 1e3), (1, 1e-9 * float(np.abs(both[1]).max()) + 1e-300)):
        ladder = both[channel].reshape(points.shape)
        rough = np.abs(np.diff(ladder, 4, axis=0)).max(axis=0) > negligible
        found += _zoomed(values, channel, left[rough], width[rough], ladder[:, rough], negligible)
    return np.concatenate(found)
