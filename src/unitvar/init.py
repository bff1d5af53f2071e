"""Initialisers in the manner of torch.nn.init, scaled for the activation and the dropout before the weight.

PyTorch's rows are the paper's columns: a weight is ``[fan_out, fan_in]``, and a *row* is all that one output sums over.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from types import EllipsisType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unitvar.activations import Activation, activation_moments

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["Fans", "fans", "gain", "normal_", "orthonormal_", "sphere_", "uniform_"]

_BLOCK = 1 << 16  # numbers at a time, where a weight cannot be filled in place

MODES = ("forward", "backward", "mean", "paper")


def gain(
    nonlinearity: Activation = "relu",
    dropout: float = 0.0,
    *,
    mode: str = "forward",
    fan_ratio: float = 1.0,
    next_nonlinearity: Activation | EllipsisType = ...,
    next_dropout: float | EllipsisType = ...,
) -> float:
    r"""Return the row norm s that keeps the variance of a signal at one.

    With keep rate p = 1 - dropout, f the activation before the weight and z ~ N(0, 1) its input:

    =============  ==========================================================================
    ``forward``    :math:`s_f^2 = p / E[f(z)^2]`: the pre-activation keeps its second moment
    ``backward``   :math:`s_b^2 = p\, n_{in} / (n_{out} E[f'(z)^2])`: so does its gradient
    ``mean``       :math:`s^2 = 2 / (1/s_f^2 + 1/s_b^2)`: a compromise
    ``paper``      :math:`s^2 = 1 / (E[f^2]/p + r\, p_{next} E[f_{next}'^2])`, r = ``fan_ratio``: Hendrycks & Gimpel
                   (2016), verbatim; see ``docs/errata.md`` before using it
    =============  ==========================================================================

    Like ``torch.nn.init.calculate_gain``, it goes with a standard deviation of s / sqrt(fan_in). ``backward`` assumes
    that z stays N(0, 1); for an activation that is not piecewise linear, that holds only as far as the forward signal
    stays at one, too.

    Args:
        nonlinearity: the activation before the weight, as in :func:`unitvar.activation_moments`; ``"identity"`` at the
            network's input.
        dropout: the drop probability between that activation and the weight, in [0, 1).
        mode: ``"forward"``, ``"backward"``, ``"mean"`` or ``"paper"``.
        fan_ratio: fan_out / fan_in of the weight.
        next_nonlinearity: ``paper`` only: the activation after the weight; default: the one before it.
        next_dropout: ``paper`` only: the drop probability after it; default: the one before it.

    Returns:
        The norm of a row, s.

    Example:
        >>> gain("relu", dropout=0.5)
        1.0
        >>> round(gain("tanh"), 4), round(gain("tanh", mode="backward"), 4)
        (1.5925, 1.4674)
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(map(repr, MODES))}.")
    if mode != "paper" and not (next_nonlinearity is ... and next_dropout is ...):
        raise ValueError(f"next_nonlinearity and next_dropout belong to mode='paper'; mode={mode!r} does not use them.")
    if not isinstance(fan_ratio, Real):
        raise TypeError(f"fan_ratio={fan_ratio!r} is not a number; it is fan_out / fan_in.")
    if not 0 < fan_ratio < math.inf:
        raise ValueError(f"fan_ratio={fan_ratio!r} is not a positive number; it is fan_out / fan_in.")
    keep = 1.0 - drop_rate("dropout", dropout)
    before = activation_moments(nonlinearity)
    if mode == "paper":
        keep_next = keep if next_dropout is ... else 1.0 - drop_rate("next_dropout", next_dropout)
        after = before if next_nonlinearity is ... else activation_moments(next_nonlinearity)
        loss = before.second / keep + fan_ratio * keep_next * after.slope
    else:
        loss = {  # by how much a row of norm one multiplies the second moment
            "forward": before.second / keep,
            "backward": fan_ratio * before.slope / keep,
            "mean": (before.second + fan_ratio * before.slope) / (2 * keep),
        }[mode]
    if loss <= 0:
        what = "slope" if mode == "backward" else "value"
        raise ValueError(
            f"nonlinearity={nonlinearity!r} has {what} 0 everywhere: no weight after it can have a signal."
        )
    return 1 / math.sqrt(loss)


def drop_rate(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} is not a number; pass the drop probability, as in nn.Dropout(p).")
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value!r} is not in [0, 1); it is the probability to drop, not to keep.")
    return float(value)


@dataclass(frozen=True)
class Fans:
    """How many connections a weight makes: into each output and out of each input, averaged over positions."""

    fan_in: float
    fan_out: float
    stride: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """fan_out / fan_in, by which a gradient's variance grows besides the row norm; 1 where there are none."""
        return self.fan_out / self.fan_in if self.fan_in and self.fan_out else 1.0


def fans(weight: Tensor, *, transposed: bool = False, groups: int = 1, stride: int | Sequence[int] = 1) -> Fans:
    """Count the connections that exist, unlike torch, which counts those of a dense layer of stride one.

    A 3x3 depthwise convolution has fan_in = fan_out = 9. With stride 2, an input reaches a quarter of the outputs; in a
    transposed convolution of stride 2, an output sees a quarter of the kernel.

    Args:
        weight: ``[out, in / groups, *kernel]``, or ``[in, out / groups, *kernel]`` if transposed.
        transposed: whether it belongs to a transposed convolution.
        groups: as the layer has them.
        stride: as the layer has it, one number or one for each dimension of the kernel.

    Example:
        >>> fans(torch.empty(16, 8, 2, 2), transposed=True, stride=2)
        Fans(fan_in=16.0, fan_out=32.0, stride=(2, 2))
    """
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight is a {type(weight).__name__}, not a tensor, such as layer.weight.")
    if weight.dim() < 2:
        raise ValueError(f"A weight of shape {tuple(weight.shape)} has no fan-in; it needs 2 dimensions or more.")
    kernel = weight.shape[2:]
    steps = tuple(stride) if isinstance(stride, Sequence) else (stride,) * len(kernel)
    if len(steps) != len(kernel) or not all(isinstance(s, int) and s >= 1 for s in steps):
        raise ValueError(
            f"stride={stride!r} does not fit a kernel of shape {tuple(kernel)}; give one whole step ≥ 1 for each."
        )
    if groups < 1 or weight.shape[0] % groups:
        raise ValueError(
            f"groups={groups} does not divide the first dimension of a weight of shape {tuple(weight.shape)}."
        )
    here, there = weight.shape[0] // groups * kernel.numel(), weight.shape[1] * kernel.numel()
    spread = math.prod(steps)
    if transposed:
        return Fans(here / spread, float(there), steps)
    return Fans(float(there), here / spread, steps)


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

    Every row is uniform on the sphere of radius s of :func:`gain`, so that
    :math:`E[z'^2] = s^2 E[f(z)^2] / p` holds with no variance from the rows' lengths. In a transposed convolution with
    a stride, the row is what one output really sees, so that no output position is louder than another.

    Args:
        weight: the weight of a linear layer or a convolution, changed in place.
        nonlinearity: the activation before it, as in :func:`unitvar.activation_moments`.
        dropout: the drop probability before it, in [0, 1).
        mode: as in :func:`gain`; the ratio of the fans is the weight's own.
        gain: the radius itself; nonlinearity, dropout and mode are then unused.
        transposed: whether it belongs to a transposed convolution, ``[in, out / groups, *kernel]``.
        groups: as the layer has them, so that the fans count the connections that exist.
        stride: as the layer has it, an int or a tuple.
        generator: the source of randomness; default: the global one.
        next_nonlinearity: as in :func:`gain`.
        next_dropout: as in :func:`gain`.

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

    return _filled(weight, fill if transposed else fill_rows, by_rows=not transposed)


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

    return _filled(weight, fill)


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

    return _filled(weight, fill, by_rows=True)


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

    return _filled(weight, fill, by_rows=True)


def _radius(
    given: float | None,
    nonlinearity: Activation,
    dropout: float,
    mode: str,
    fan_ratio: float,
    next_nonlinearity: Activation | EllipsisType,
    next_dropout: float | EllipsisType,
) -> float:
    if given is None:
        following = {"next_nonlinearity": next_nonlinearity, "next_dropout": next_dropout}
        return gain(nonlinearity, dropout, mode=mode, fan_ratio=fan_ratio, **following)  # type: ignore[arg-type]
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError(f"gain={given!r} is not a number; pass the norm of a row, or None to compute it.")
    if not 0 <= given < math.inf:
        raise ValueError(f"gain={given!r} is not a finite number ≥ 0; it is the norm of a row.")
    return float(given)


def _filled(weight: Tensor, fill: Callable[[Tensor], object], *, by_rows: bool = False) -> Tensor:
    """Run fill on the weight, or on a stand-in where its own dtype is too coarse or its memory is in another order.

    By rows, the stand-in is a block of some rows. The numbers are those of a plain float32 weight in either case.
    """
    if not weight.is_floating_point():
        raise TypeError(f"A weight of dtype {weight.dtype} cannot be initialised; it must be floating-point.")
    if weight.is_meta:
        return weight
    if not weight.numel():
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return weight
    dtype = weight.dtype if weight.dtype == torch.float64 else torch.float32
    with torch.no_grad():
        if weight.dtype == dtype and weight.is_contiguous():
            fill(weight)
            return weight
        blocks = _blocks(weight) if by_rows else [weight]
        stand_in = torch.empty((max(map(len, blocks)), *weight.shape[1:]), dtype=dtype, device=weight.device)
        for rows in blocks:
            fill(stand_in[: len(rows)])
            rows.copy_(stand_in[: len(rows)])
    return weight


def _blocks(weight: Tensor) -> list[Tensor]:
    """Cut a weight into blocks of rows that draw the same numbers one by one as all at once."""
    # torch draws normal numbers by sixteens, and fewer than sixteen in another way.
    step = max(1, _BLOCK // (16 * weight[0].numel())) * 16
    starts = list(range(0, max(1, len(weight) - 15), step))
    return [weight[i:j] for i, j in itertools.pairwise([*starts, len(weight)])]


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
