"""Statistics of tensors as they pass by: nothing is kept but a few numbers, which stay on the tensors' device."""

from __future__ import annotations

import torch
from torch import Tensor

from unitvar.running.shards import gathered_tensor

__all__ = ["Layer", "Tally", "labelled", "widest"]


def labelled(name: object, use: object) -> str:
    """Name a use: with its number, if it is not the first."""
    return str(name) if use == 1 else f"{name} #{use}"


def widest(x: Tensor) -> torch.dtype:
    """Return the widest real type that a tensor's device has."""
    return torch.float32 if x.device.type == "mps" else torch.float64


class Tally:
    """Count elements, and add up them and their squares, in float64 where the device has it."""

    __slots__ = ("count", "squares", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total: Tensor | float = 0.0
        self.squares: Tensor | float = 0.0

    def add(self, x: Tensor) -> None:
        """Count a tensor; a DTensor, on all ranks that share it, as a whole."""
        x, wide = x.detach(), widest(x)
        self.count += x.numel()
        if x.is_sparse:  # as an embedding's gradient may be; the rest is zero
            x = x.coalesce().values()
        x = torch.view_as_real(x) if x.is_complex() else x
        self.total = self.total + gathered_tensor(x.sum(dtype=wide))
        self.squares = self.squares + gathered_tensor(torch.linalg.vector_norm(x, dtype=wide)).square()

    @property
    def mean(self) -> float | None:
        """Return the mean; None if nothing was counted."""
        return float(self.total) / self.count if self.count else None

    @property
    def second(self) -> float | None:
        """Return the mean square; None if nothing was counted."""
        return float(self.squares) / self.count if self.count else None

    @property
    def norm(self) -> float | None:
        """Return the root of the sum of squares; None if nothing was counted."""
        return float(self.squares) ** 0.5 if self.count else None


class Layer:
    """Gather what one use of a weight gives and what comes back to it, over any number of runs.

    Attributes:
        name: of the parameter.
        use: which use in a run, from 1.
        op: what uses it.
        unit: the dimension of its output that counts units.
        forward: of the pre-activation.
        backward: of the gradient with respect to it.
        hooked: whether this run's gradient is already waited for.
        latest: the sum of squares of this run's pre-activation, by which a recomputed one is known.
        inside: "recurrence" or "attention" if it is in a module of torch's that has steps before examples; else "".
    """

    __slots__ = ("alive", "backward", "forward", "hooked", "inside", "latest", "name", "op", "unit", "use")

    def __init__(self, name: str, use: int, op: str, unit: int) -> None:
        self.name, self.use, self.op, self.unit = name, use, op, unit
        self.forward, self.backward = Tally(), Tally()
        self.alive: Tensor | None = None
        self.hooked, self.inside = False, ""
        self.latest: Tensor | float = 0.0

    def give(self, z: Tensor) -> None:
        """Count a pre-activation."""
        before = self.forward.squares
        self.forward.add(z)
        self.latest = self.forward.squares - before

    def receive(self, gradient: Tensor) -> None:
        """Count a gradient, and note which units got any."""
        gradient = gradient.detach()
        self.backward.add(gradient)
        units = gradient.movedim(self.unit, 0) if gradient.dim() else gradient.reshape(1)
        alive = units.reshape(units.shape[0], -1).ne(0).any(1)
        self.alive = alive if self.alive is None or self.alive.shape != alive.shape else self.alive | alive

    @property
    def dead(self) -> float | None:
        """Return the share of units that got no gradient at all; None without gradients."""
        return None if self.alive is None else 1.0 - float(self.alive.float().mean())
