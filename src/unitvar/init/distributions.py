"""Four distributions with rows of a given norm: on a sphere, orthogonal, normal, uniform."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from numbers import Real
from types import EllipsisType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unitvar.activations import Activation
from unitvar.init.connections import fans
from unitvar.init.filling import filled
from unitvar.init.gains import gain as gain_of

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["normal_", "orthonormal_", "sphere_", "uniform_"]


def sphere_(
    weight: Float[Tensor, " fan_out *fan_in"],
    nonlinearity: Activation = "relu",
    dropout: float = 0.0,
    *,
    mode: str = "forward",
    gain: float | None = None,
    transposed: bool = False,
    groups: int = 1,
    stride: int | Sequence[int] = 1,
    generator: torch.Generator | None = None,
    next_nonlinearity: Activation | EllipsisType = ...,
    next_dropout: float | EllipsisType = ...,
) -> Float[Tensor, " fan_out *fan_in"]:
    r"""Fill weight with rows on a sphere, scaled for the dropout before it.

    Every row is uniform on the sphere of radius s of :func:`unitvar.init.gain`, so that
    :math:`E[z'^2] = s^2 E[f(z)^2] / p` holds with no variance from the rows' lengths. In a transposed convolution with
    a stride, the row is what one output really sees, so that no output position is louder than another.

    Args:
        weight: the weight of a linear layer or a convolution, changed in place.
        nonlinearity: the activation before it, as in :func:`unitvar.activation_moments`.
        dropout: the drop probability before it, in [0, 1).
        mode: as in :func:`unitvar.init.gain`; the ratio of the fans is the weight's own.
        gain: the radius itself; nonlinearity, dropout and mode are then unused.
        transposed: whether it belongs to a transposed convolution, ``[in, out / groups, *kernel]``.
        groups: as the layer has them, so that the fans count the connections that exist.
        stride: as the layer has it, an int or a tuple.
        generator: the source of randomness; default: the global one.
        next_nonlinearity: as in :func:`unitvar.init.gain`.
        next_dropout: as in :func:`unitvar.init.gain`.

    Returns:
        The weight.

    Example:
        >>> w = sphere_(torch.empty(5, 3), "relu", dropout=0.5)
        >>> w.norm(dim=1).round(decimals=4)
        tensor([1., 1., 1., 1., 1.])
    """
    fan = fans(weight, transposed=transposed, groups=groups, stride=stride)
    ratio = 1.0 if mode == "paper" else fan.ratio  # the paper's §2.2 leaves the fans out
    radius = _radius(gain, nonlinearity, dropout, mode, ratio, next_nonlinearity, next_dropout)

    def fill_rows(work: Tensor) -> None:
        work.normal_(generator=generator)
        _normalise_(work, range(1, work.dim()), radius)

    def fill(work: Tensor) -> None:
        work.normal_(generator=generator)
        # The taps of a phase are those an output sees: every stride-th, from an offset on.
        parts = work.view(groups, -1, *work.shape[1:])
        phases = [(slice(None),) * 3 + phase for phase in _phases(fan.stride)]
        seen = [parts[phase] for phase in phases if parts[phase].numel()]
        # A kernel smaller than its stride leaves outputs empty; the others make up for it in the mean.
        for part in seen:
            _normalise_(part, (1, *range(3, part.dim())), radius * math.sqrt(len(phases) / len(seen)))

    return filled(weight, fill if transposed else fill_rows, by_rows=not transposed)


def orthonormal_(
    weight: Float[Tensor, " fan_out *fan_in"],
    nonlinearity: Activation = "relu",
    dropout: float = 0.0,
    *,
    mode: str = "forward",
    gain: float | None = None,
    transposed: bool = False,
    groups: int = 1,
    stride: int | Sequence[int] = 1,
    generator: torch.Generator | None = None,
    next_nonlinearity: Activation | EllipsisType = ...,
    next_dropout: float | EllipsisType = ...,
) -> Float[Tensor, " fan_out *fan_in"]:
    r"""Fill weight with orthogonal rows (or columns, if there are fewer of them), scaled for the dropout before it.

    The mean squared row norm is :math:`s^2` in either case. ``torch.nn.init.orthogonal_`` makes the *columns* unit
    vectors when fan_out > fan_in, so that the rows, and with them the variance, shrink by fan_in / fan_out. Each group
    of a grouped convolution is orthogonal by itself.

    Args and Returns are those of :func:`sphere_`.

    Example:
        >>> w = orthonormal_(torch.empty(512, 256), gain=1.0)
        >>> round((w**2).sum(dim=1).mean().item(), 5), round((w.T @ w)[0, 0].item(), 5)
        (1.0, 2.0)
    """
    fan = fans(weight, transposed=transposed, groups=groups, stride=stride)
    ratio = 1.0 if mode == "paper" else fan.ratio
    radius = _radius(gain, nonlinearity, dropout, mode, ratio, next_nonlinearity, next_dropout)

    def fill(work: Tensor) -> None:
        parts = work.view(groups, -1, *work.shape[1:])
        if transposed:
            parts = parts.transpose(1, 2)
        rows, columns = parts.shape[1], parts.shape[2:].numel()
        # Columns contiguous, as LAPACK wants them: drawn any other way, the matrix would be copied first.
        wide = torch.empty((groups, min(rows, columns), max(rows, columns)), dtype=work.dtype, device=work.device)
        q, r = torch.linalg.qr(wide.normal_(generator=generator).mT)
        # Haar measure needs R's diagonal positive. One product does that and the scaling.
        full = radius * math.sqrt(math.prod(fan.stride) if transposed else 1)
        q *= r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1) * full * math.sqrt(max(rows / columns, 1.0))
        q = q if rows > columns else q.mT
        if parts.is_contiguous():
            parts.view(q.shape).copy_(q)
        else:
            parts.copy_(q.reshape(parts.shape))

    return filled(weight, fill)


def normal_(
    weight: Float[Tensor, " fan_out *fan_in"],
    nonlinearity: Activation = "relu",
    dropout: float = 0.0,
    *,
    mode: str = "forward",
    gain: float | None = None,
    transposed: bool = False,
    groups: int = 1,
    stride: int | Sequence[int] = 1,
    generator: torch.Generator | None = None,
    next_nonlinearity: Activation | EllipsisType = ...,
    next_dropout: float | EllipsisType = ...,
) -> Float[Tensor, " fan_out *fan_in"]:
    r"""Fill weight from :math:`N(0, s^2 / fan_{in})`, scaled for the dropout before it.

    With relu and no dropout this is He's initialisation, which it generalises. Args and Returns are those of
    :func:`sphere_`.

    Example:
        >>> w = normal_(torch.empty(1000, 1000), "relu", dropout=0.5)
        >>> round(w.std().item() * 1000**0.5, 2)
        1.0
    """
    fan = fans(weight, transposed=transposed, groups=groups, stride=stride)
    radius = _radius(gain, nonlinearity, dropout, mode, fan.ratio, next_nonlinearity, next_dropout)

    def fill(work: Tensor) -> None:
        work.normal_(0.0, radius / math.sqrt(fan.fan_in), generator=generator)

    return filled(weight, fill, by_rows=True)


def uniform_(
    weight: Float[Tensor, " fan_out *fan_in"],
    nonlinearity: Activation = "relu",
    dropout: float = 0.0,
    *,
    mode: str = "forward",
    gain: float | None = None,
    transposed: bool = False,
    groups: int = 1,
    stride: int | Sequence[int] = 1,
    generator: torch.Generator | None = None,
    next_nonlinearity: Activation | EllipsisType = ...,
    next_dropout: float | EllipsisType = ...,
) -> Float[Tensor, " fan_out *fan_in"]:
    r"""Fill weight from :math:`U(-a, a)`, :math:`a^2 = 3 s^2 / fan_{in}`, scaled for the dropout before it.

    With an unknown nonlinearity and no dropout, ``mode="paper"`` is Xavier's initialisation, which it generalises. Args
    and Returns are those of :func:`sphere_`.

    Example:
        >>> w = uniform_(torch.empty(100, 300), None, mode="paper")
        >>> bool(w.abs().max() <= (6 / 400) ** 0.5)
        True
    """
    fan = fans(weight, transposed=transposed, groups=groups, stride=stride)
    radius = _radius(gain, nonlinearity, dropout, mode, fan.ratio, next_nonlinearity, next_dropout)

    def fill(work: Tensor) -> None:
        bound = radius * math.sqrt(3 / fan.fan_in)
        work.uniform_(-bound, bound, generator=generator)

    return filled(weight, fill, by_rows=True)


def _radius(
    gain: float | None,
    nonlinearity: Activation,
    dropout: float,
    mode: str,
    fan_ratio: float,
    next_nonlinearity: Activation | EllipsisType,
    next_dropout: float | EllipsisType,
) -> float:
    if gain is None:
        following = {"next_nonlinearity": next_nonlinearity, "next_dropout": next_dropout}
        return gain_of(nonlinearity, dropout, mode=mode, fan_ratio=fan_ratio, **following)  # type: ignore[arg-type]
    if isinstance(gain, bool) or not isinstance(gain, Real):
        raise TypeError(f"gain={gain!r} is not a number; pass the norm of a row, or None to compute it.")
    if not 0 <= gain < math.inf:
        raise ValueError(f"gain={gain!r} is not a finite number ≥ 0; it is the norm of a row.")
    return float(gain)


def _normalise_(rows: Tensor, dims: Iterable[int], radius: float) -> None:
    """Give every slice of rows along dims the norm radius."""
    dims = tuple(dims)
    norm = torch.linalg.vector_norm(rows, dim=dims, keepdim=True)
    if not norm.all():  # a single float32 normal is exactly 0 once in some 10 million draws
        rows.masked_fill_(norm == 0, 1.0)
        norm = torch.linalg.vector_norm(rows, dim=dims, keepdim=True)
    rows.mul_(radius / norm)


def _phases(stride: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """Return, for each position of an output modulo the stride, the kernel's taps that reach it."""
    return list(itertools.product(*([slice(offset, None, step) for offset in range(step)] for step in stride)))
