"""One observed step of training: the forward pass, the gradients and the optimiser's update."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import dispatch_modes, in_backward
from unitvar.flow.meter import Meter
from unitvar.flow.tally import Layer, Tally
from unitvar.flow.updates import Updates
from unitvar.running.gathering import kept_parameters
from unitvar.running.modules import hooks_removed, inner
from unitvar.running.shards import is_sharded
from unitvar.running.switches import stay_uncompiled
from unitvar.running.undo import Undo

__all__ = ["Row", "Step"]

Row = dict[str, str | int | float | None]


class Step:
    """Observe one step: the forward pass now, gradients and the update whenever they come.

    Args:
        step: its number.
        model: what is watched.
        marked: whether a step is all that runs until it is closed, and not one call of the model, now under way.
    """

    def __init__(self, step: int, model: nn.Module, *, marked: bool) -> None:
        self.step, self.model, self.marked = step, model, marked
        self.core = inner(model)
        self.stack: list[str] = []
        self.meter = Meter(self.core, lambda: self.stack[-1] if self.stack else "")
        self.forward_done = False
        self.parameters = {name: p for name, p in kept_parameters(self.core).items() if p.dim() > 1 and p.requires_grad}
        self.norms = {name: Tally() for name in self.parameters}
        self.updates = Updates(self.parameters)
        # What follows stands for itself: the block is the user's.
        self.undo = Undo(alone=True)
        self.eager = Undo(alone=True)  # of what lasts until the forward pass is done

    def begin(self) -> None:
        """Set hooks, and start the meter."""
        self.undo.add(self._pause)
        handles = hooks_removed(self.undo)
        self.updates.begin()
        for name, parameter in self.parameters.items():
            # A reentrant checkpoint has a backward pass of its own: over several of them squares add.
            if not is_sharded(parameter):  # else the optimiser's step tells it
                handles.append(parameter.register_hook(_counting(self.norms[name])))  # type: ignore[no-untyped-call]
        for name, module in self.core.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                handles.append(module.register_forward_pre_hook(partial(self._enter, name)))
                handles.append(module.register_forward_hook(self._leave, always_call=True))
        if self.marked or self.core is not self.model:
            stay_uncompiled(self.eager)
        if not self.marked and self.core is self.model:  # its own call is under way: no hook set now sees it begin
            self._enter("", self.core, ())

    def _enter(self, name: str, module: nn.Module, inputs: Any) -> None:
        if not self.stack:
            # After the forward pass only checkpoints matter, which compute again inside the backward pass.
            if not self.marked and self.forward_done and not in_backward():
                return
            if self.marked and not (torch.is_grad_enabled() or in_backward()):
                return
            self.meter.__enter__()  # type: ignore[no-untyped-call]
        self.stack.append(name)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self.stack:
            return
        self.stack.pop()
        if not self.stack:
            try:
                self.meter.settle()
            finally:
                self._unmeter()
            self.forward_done = True
            if not self.marked:
                self.eager.__exit__(None, None, None)

    def _unmeter(self) -> None:
        """Take off the meter, which an interrupt may have left in the middle of a forward pass."""
        self.stack.clear()
        if self.meter in dispatch_modes():
            self.meter.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _pause(self) -> None:
        self._unmeter()
        self.eager.__exit__(None, None, None)

    def close(self) -> None:
        """Take all hooks off, and the meter; the update may still come."""
        self.undo.__exit__(None, None, None)
        self.meter.tracker.forget()  # copies of weights, as autocast makes them

    def stop(self) -> None:
        """Close, and wait for no update any more."""
        try:
            self.close()
        finally:
            self.updates.close()

    def rows(self) -> list[Row]:
        """Return what has come in so far, one row per use of a weight."""
        layers = list(self.meter.layers.values())
        made = [self._row(layer.name, layer) for layer in layers]
        # Fused recurrences show no pre-activation, and embeddings have none.
        seen = {layer.name for layer in layers}
        norms = {**self.norms, **self.updates.gradients}
        return made + [self._row(name, None) for name, tally in norms.items() if tally.count and name not in seen]

    def _row(self, name: str, layer: Layer | None) -> Row:
        norm = self.updates.gradients.get(name, self.norms.get(name))
        return {
            "step": self.step,
            "name": name,
            "use": 1 if layer is None else layer.use,
            "mean": None if layer is None else layer.forward.mean,
            "variance": None if layer is None else layer.forward.second,
            "gradient": None if layer is None else layer.backward.second,
            "dead": None if layer is None else layer.dead,
            "weight_gradient_norm": None if norm is None else norm.norm,
            "update_ratio": self.updates.ratio(name),
        }


def _counting(tally: Tally) -> Callable[[Tensor], None]:
    def count(gradient: Tensor) -> None:
        tally.add(gradient)

    return count
