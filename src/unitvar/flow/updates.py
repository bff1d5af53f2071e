"""How far an optimiser moves each weight in one step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from unitvar.flow.tally import Tally, widest
from unitvar.running.shards import gathered_tensor, is_sharded

__all__ = ["Updates"]


class Updates:
    """Watch the next step of every optimiser that has one of some parameters, until closed.

    Args:
        parameters: names and parameters to follow.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        # Optimisers are the loop's, and unknown here; these hooks see those of other models too, and pass over them.
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._before: dict[str, Tensor] = {}
        self._ratios: dict[str, Tensor] = {}
        self.gradients: dict[str, Tally] = {}  # of what is sharded, as the optimiser finds them
        self._handles: list[Any] = []

    def begin(self) -> None:
        """Start watching."""
        self._handles.append(register_optimizer_step_pre_hook(self._starts))
        self._handles.append(register_optimizer_step_post_hook(self._ends))

    def ratio(self, name: str) -> float | None:
        """Return the norm of a weight's update over the norm of the weight; None if it was not updated, or was zero."""
        ratio = float(self._ratios[name]) if name in self._ratios else math.nan
        return ratio if math.isfinite(ratio) else None

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._before.clear()

    def _starts(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # Copied now, and not in the forward pass: by now the activations are gone.
        self._before = {name: p.detach().clone() for name, p in self._own(optimizer)}
        for name, p in self._own(optimizer):
            # Autograd sees other tensors than these. An optimiser's step is what all ranks come to.
            if is_sharded(p) and p.grad is not None:
                self.gradients[name] = Tally()
                self.gradients[name].add(p.grad)

    def _ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for name, p in self._own(optimizer):
            if name in self._before:
                old = self._before[name]
                moved, size = (torch.linalg.vector_norm(x, dtype=_norm_type(x)) for x in (p.detach() - old, old))
                self._ratios[name] = gathered_tensor(moved) / gathered_tensor(size)
        self._before.clear()
        if len(self._ratios) == len(self._names):
            self.close()

    def _own(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            name = self._names.get(id(parameter))
            if name is not None and name not in self._ratios:
                yield name, parameter


def _norm_type(x: Tensor) -> torch.dtype:
    wide = widest(x)
    return wide.to_complex() if x.is_complex() else wide
