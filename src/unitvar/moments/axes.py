"""What the dimensions of a tensor count: ``b`` examples, ``f`` features, ``p`` positions, ``c`` copies.

Two elements that differ along a dimension are a pair of its kind, so that whoever sums along it knows what they share.
A dimension that a view has merged from others remembers them, so that it can be split again: heads and examples,
windows and examples, channels and pixels.
"""

from __future__ import annotations

import math
from functools import lru_cache

__all__ = ["KIND", "Inside", "default", "features_in", "label", "normalised", "viewed"]

KIND = {"b": "examples", "f": "features", "p": "positions"}
Inside = tuple[tuple[tuple[str, int], ...], ...]
"""For each dimension, the dimensions that it was merged from, each with its size."""


def default(shape: tuple[int, ...]) -> str:
    """Name the dimensions as PyTorch's layers have them: channels second in images and volumes, else features last."""
    n = len(shape)
    if n in (4, 5):
        return "bf" + "p" * (n - 2)
    return "" if n == 0 else "f" if n == 1 else "b" + "p" * (n - 2) + "f"


def label(atoms: tuple[tuple[str, int], ...]) -> str:
    """Name a merged dimension: examples stay examples, features stay features."""
    names = [c for c, n in atoms if n > 1] or [c for c, _ in atoms]
    return next((c for c in "bfp" if c in names), "c")


@lru_cache(maxsize=1 << 14)  # networks repeat their shapes
def normalised(axes: str, shape: tuple[int, ...], inside: Inside) -> Inside:
    """Keep what is remembered of merged dimensions as far as it fits the names and sizes."""
    if len(inside) != len(shape):
        return tuple(((c, n),) for c, n in zip(axes, shape, strict=True))
    return tuple(
        atoms if math.prod(s for _, s in atoms) == n and label(atoms) == c else ((c, n),)
        for c, n, atoms in zip(axes, shape, inside, strict=True)
    )


@lru_cache(maxsize=1 << 14)
def features_in(inside: Inside) -> int:
    """Count the features of a position, those merged into other dimensions too."""
    return math.prod(n for atoms in inside for c, n in atoms if c == "f")


@lru_cache(maxsize=1 << 14)
def viewed(inside: Inside, after: tuple[int, ...]) -> tuple[str, Inside]:
    """Name the dimensions of a view, from what they are made of.

    Example:
        >>> viewed(((("b", 8),), (("f", 64),)), (32, 16))  # heads, merged with the examples
        ('bf', ((('b', 8), ('f', 4)), (('f', 16),)))
    """
    made = _cut([atom for group in inside for atom in group if atom[1] != 1], after)
    if made is None:  # where a cut falls between others, neighbours of one name are one
        made = _cut(_fused(inside), after)
    if made is None:
        return default(after), normalised(default(after), after, ())
    names = [label(own) if own else "?" for own in made]
    for d, (name, size) in enumerate(zip(names, after, strict=True)):
        if name == "?":  # a dimension of one
            same = len(inside) == len(after) and math.prod(n for _, n in inside[d]) == 1
            names[d] = label(inside[d]) if same else "c"
            made[d] = ((names[d], size),)
    return "".join(names), tuple(made)


def _fused(inside: Inside) -> list[tuple[str, int]]:
    """Merge neighbouring dimensions of one name."""
    atoms: list[tuple[str, int]] = []
    for name, n in (atom for group in inside for atom in group if atom[1] != 1):
        if atoms and atoms[-1][0] == name and name != "b":
            atoms[-1] = name, atoms[-1][1] * n
        else:
            atoms.append((name, n))
    return atoms


def _cut(atoms: list[tuple[str, int]], after: tuple[int, ...]) -> list[tuple[tuple[str, int], ...]] | None:
    """Cut a row of dimensions into those of a view; None if a cut falls inside one."""
    left = list(atoms)
    made = []
    for size in after:
        own: list[tuple[str, int]] = []
        rest = size
        while rest > 1:
            if not left:
                return None
            name, n = left[0]
            if rest % n == 0:
                own.append((name, n))
                rest //= n
                left.pop(0)
            elif n % rest == 0:
                own.append((name, rest))
                left[0] = ("p" if name == "b" else name), n // rest
                rest = 1
            else:
                return None
        made.append(tuple(own))
    return made if not left else None
