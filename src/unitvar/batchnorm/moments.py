"""Pooled moments of the values that reach a BatchNorm, one channel at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

# Float32 sums of squares lose about mean²/var · 2⁻²⁴ of the variance, less if many of them are added up in float64.
# Beyond 8 sqrt(values / PLANE), and 64 at most, which keeps the loss at some 3e-6, a channel is summed again, shifted.
SHIFT_ABOVE = 64.0
SMALL = 1 << 17  # elements up to which float64 throughout costs nothing
PLANE = 1024  # values a float32 partial sum runs over at most when channels come first, if the size divides well
ROWS = 64  # values a float32 partial sum runs over when channels come last
ELEMENTS = 1 << 18  # squares are formed in pieces of this size, which stay in the cache


@dataclass(frozen=True)
class Moments:
    """Hold the number of values that each channel saw, their mean and their sum of squared deviations, in float64.

    ``examples`` counts along the first dimension: an image is one example and has as many values as pixels.
    """

    count: int
    mean: Tensor
    m2: Tensor
    examples: int = 0

    def merge(self, other: Moments) -> Moments:
        """Pool two sets of values by Chan's update: no large numbers are subtracted, so the variance stays positive."""
        count = self.count + other.count
        delta = other.mean - self.mean
        share = other.count / count
        m2 = self.m2 + other.m2 + delta.square() * (self.count * share)
        return Moments(count, self.mean + delta * share, m2, self.examples + other.examples)

    def copy(self) -> Moments:
        """Copy the tensors too."""
        return Moments(self.count, self.mean.clone(), self.m2.clone(), self.examples)

    @property
    def biased(self) -> Tensor:
        """Return the variance that normalises a batch: m2 / n."""
        return self.m2 / self.count

    @property
    def unbiased(self) -> Tensor:
        """Return the variance that torch stores in running_var: m2 / (n - 1)."""
        return self.m2 / (self.count - 1)

    @property
    def finite(self) -> bool:
        """Return whether every channel has a finite mean and variance."""
        return bool(torch.isfinite(self.mean + self.m2).all())


def batch_moments(x: Tensor) -> Moments:
    """Measure one batch in a single cheap reading, and again where float32 would not do.

    Sums and sums of squares run over contiguous planes in float32 and are added up in float64. Channels whose mean
    hides their spread are summed again after a shift by that mean; an overflow is repeated in float64.

    Args:
        x: what BatchNorm gets, ``[N, C, ...]``, with at least one value per channel.

    Returns:
        The moments over every dimension but the second, on the CPU.
    """
    x = x.detach()  # a forward that enables gradients would keep its graph alive in the pooled moments
    if x.numel() <= SMALL:
        x = x.to(_widest(x), torch.float64)
    elif x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    moments = _shifted_where_needed(x)
    if not moments.finite and x.dtype == torch.float32:
        moments = _shifted_where_needed(x.to(_widest(x), torch.float64))
    return moments


def _shifted_where_needed(x: Tensor) -> Moments:
    count = x.numel() // x.shape[1]
    mean, m2 = _mean_and_m2(x, count)
    limit = min(SHIFT_ABOVE, 8 * math.sqrt(count / PLANE))
    # Written as "not fine", so that NaN counts as needing it.
    hidden = ~(mean.square() * count <= limit * m2)
    if bool(hidden.any()):
        channels = hidden.nonzero().squeeze(1)
        shift = mean[channels].to(x.device, x.dtype)
        shifted = x.index_select(1, channels.to(x.device)) - shift.view(-1, *[1] * (x.ndim - 2))
        small, m2[channels] = _mean_and_m2(shifted, count)
        mean[channels] = shift.cpu().double() + small
    return Moments(count, mean, m2.clamp_(min=0.0), x.shape[0])


def _mean_and_m2(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    total, squares = _sums(x)
    mean = total / count
    return mean, squares - total * mean


def _sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """Add up values and squares of each channel, along whichever dimension lies contiguous in memory."""
    last = x.movedim(1, -1)
    if x.ndim == 2 or last.is_contiguous():  # [N, C], however it lies, or images in channels_last
        return _row_sums(last.reshape(-1, x.shape[1]))
    planes = x.contiguous().flatten(2)
    planes = torch.unflatten(planes, -1, (-1, _piece(planes.shape[-1])))
    # The norm squares while it reads: x * x would write a second copy of the batch, which costs more than all the rest.
    norms = torch.linalg.vector_norm(planes, dim=-1)
    return _add_up(planes.sum(-1)), _add_up(norms, norms=True)


@lru_cache
def _piece(length: int) -> int:
    """Find the largest divisor up to PLANE; a size without a decent one stays whole."""
    piece = next(d for d in range(min(length, PLANE), 0, -1) if length % d == 0)
    return piece if piece >= ROWS else length


def _row_sums(rows: Tensor) -> tuple[Tensor, Tensor]:
    channels = rows.shape[1]
    total = torch.zeros(channels, dtype=torch.float64, device="cpu")
    squares = torch.zeros_like(total)
    for piece in torch.split(rows, ROWS * max(1, ELEMENTS // (ROWS * channels))):
        whole = len(piece) // ROWS * ROWS
        for block in (piece[:whole].view(-1, ROWS, channels), piece[None, whole:]):
            if block.numel():
                total += _add_up(block.sum(1))
                squares += _add_up(block.square().sum(1))
    return total, squares


def _add_up(partial: Tensor, *, norms: bool = False) -> Tensor:
    """Add up partial sums, or the squares of partial norms, of each channel in float64."""
    partial = partial.cpu()  # some accelerators have no float64
    others = tuple(d for d in range(partial.ndim) if d != 1)
    if norms:
        squares: Tensor = torch.linalg.vector_norm(partial, dim=others, dtype=torch.float64).square_()
        return squares
    return partial.sum(others, dtype=torch.float64)


def _widest(x: Tensor) -> torch.device:
    return torch.device("cpu") if x.device.type == "mps" else x.device


class Spread:
    """Follow how much the variance differs between batches, for its standard error.

    Batch ``b`` contributes ``s_b = v_b + (m_b - mu)²`` with weight ``n_b``, and ``mu`` is known only at the end. With
    ``d = m_b - origin`` and ``t = v_b + d²`` it is linear in ``z = (1, d, t)``, so ``sum n_b² z zᵀ`` is all that
    has to be kept: with ``δ = mu - origin`` and ``c = (δ² - var, -2δ, 1)``,
    ``sum n_b² (s_b - var)² = cᵀ (sum n_b² z zᵀ) c``.
    """

    def __init__(self, channels: int = 0) -> None:
        self.batches = 0
        self.origin = torch.zeros(channels, dtype=torch.float64, device="cpu")
        self.products = torch.zeros(3, 3, channels, dtype=torch.float64, device="cpu")

    def add(self, batch: Moments) -> None:
        """Count one more batch."""
        if self.batches == 0:
            if len(self.origin) != len(batch.mean):  # not known beforehand
                self.origin = torch.zeros_like(batch.mean)
                self.products = batch.mean.new_zeros(3, 3, len(batch.mean))
            self.origin.copy_(batch.mean)
        d = batch.mean - self.origin
        z = torch.stack((torch.ones_like(d), d, batch.biased + d.square())) * batch.count
        self.products += z[:, None] * z[None]
        self.batches += 1

    def copy(self) -> Spread:
        """Copy the tensors too."""
        copy = Spread()
        copy.batches, copy.origin, copy.products = self.batches, self.origin.clone(), self.products.clone()
        return copy

    def merge(self, other: Spread) -> None:
        """Count the batches of another process, whose origin differs."""
        if other.batches == 0:
            return
        if self.batches == 0:
            self.batches, self.origin, self.products = other.batches, other.origin, other.products.clone()
            return
        e = other.origin - self.origin
        zero, one = torch.zeros_like(e), torch.ones_like(e)
        move = torch.stack(
            (torch.stack((one, zero, zero)), torch.stack((e, one, zero)), torch.stack((e.square(), 2 * e, one)))
        )
        self.products += torch.einsum("ikc,klc,jlc->ijc", move, other.products, move)
        self.batches += other.batches

    def relative_error(self, pooled: Moments) -> Tensor:
        """Estimate the standard error of the variance over the variance, a channel; NaN from a single batch.

        ``B / (B - 1) · sum n_b² (s_b - var)² / N²``, square-rooted: the variance is a ratio of sums over batches.
        """
        var = pooled.biased
        if self.batches < 2:
            return torch.full_like(var, torch.nan)
        delta = pooled.mean - self.origin
        c = torch.stack((delta.square() - var, -2 * delta, torch.ones_like(delta)))
        residual = torch.einsum("ic,ijc,jc->c", c, self.products, c).clamp(min=0)
        error = (residual * (self.batches / (self.batches - 1))).sqrt() / pooled.count
        # A constant channel is known exactly: what is left there is rounding.
        constant = var <= (pooled.mean * torch.finfo(torch.float32).eps).square()
        return torch.where(constant, 0.0, error / var)
