"""watch(): the same per layer during real training, every so many steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unitvar._torch import in_backward
from unitvar.flow import table
from unitvar.flow.meter import Meter, is_measuring
from unitvar.flow.tally import Layer, Tally, labelled
from unitvar.running.modules import inner
from unitvar.running.switches import uncompiled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["History", "watch"]

Row = dict[str, str | int | float | None]


def watch(model: nn.Module, *, every: int = 100, writer: Any = None) -> History:
    """Record what flows through a model while it trains.

    A step is a call of the model in train mode with gradients on. On the first, and then on each ``every``-th, the
    pre-activation of every weight is measured, and its gradient when the loop calls ``backward``, however it does so.
    On all others a counter is raised and nothing else happens. Training itself is not changed by a bit.

    Args:
        model: what the loop calls: a module, wrapped by DistributedDataParallel or compiled as it may be. Observed
            steps of a compiled model run uncompiled.
        every: how many steps from one observation to the next.
        writer: a TensorBoard ``SummaryWriter``, or whatever has its ``add_scalar(tag, value, step)``.

    Returns:
        A context manager that gives the history, which can be printed at any time; the model's hooks are gone when it
        ends.

    Example:
        >>> net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> with watch(net, every=2) as history:
        ...     for _ in range(5):
        ...         optimizer.zero_grad()
        ...         net(torch.randn(16, 8)).square().mean().backward()
        ...         optimizer.step()
        >>> [(row["step"], row["name"]) for row in history.rows]
        [(0, '0.weight'), (0, '2.weight'), (2, '0.weight'), (2, '2.weight'), (4, '0.weight'), (4, '2.weight')]
    """
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(f"every={every!r} is not a whole number of steps.")
    if every < 1:
        raise ValueError(f"every={every} is not 1 or more.")
    if writer is not None and not callable(getattr(writer, "add_scalar", None)):
        raise TypeError(f"writer={writer!r} has no add_scalar; pass a torch.utils.tensorboard.SummaryWriter.")
    inner(model)  # refuses what is no module
    return History(model, every, writer)


class History:
    """Hold what was observed: one row a layer and observed step; see :func:`watch`.

    Attributes:
        steps: how many steps the model has made.
    """

    def __init__(self, model: nn.Module, every: int, writer: Any) -> None:
        self._model, self._every, self._writer = model, every, writer
        self.steps = 0
        self._rows: list[Row] = []
        self._step: _Step | None = None
        self._handle: Any = None

    def __enter__(self) -> History:
        if self._handle is not None:
            raise RuntimeError("This history is already watching.")
        self._handle = self._model.register_forward_pre_hook(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()
        self._handle = None
        self._finish()

    def _called(self, module: nn.Module, inputs: Any) -> None:
        # A measurement is no step of training, nor is what it runs.
        if not module.training or not torch.is_grad_enabled() or is_measuring():
            return
        step, self.steps = self.steps, self.steps + 1
        if self._step is not None:
            self._step.close()
        if step % self._every == 0:
            self._finish()
            self._step = _Step(step, self._model)

    def _finish(self) -> None:
        """Turn the last observed step into rows; gradients may come in until the next one begins."""
        step, self._step = self._step, None
        if step is None:
            return
        step.close()
        rows = step.rows()
        self._rows += rows
        if self._writer is not None:
            for row in rows:
                label = labelled(row["name"], row["use"])
                for what in ("mean", "variance", "gradient", "dead", "weight_gradient_norm"):
                    if row[what] is not None:
                        self._writer.add_scalar(f"{what}/{label}", row[what], row["step"])

    @property
    def rows(self) -> list[Row]:
        """Give one flat, JSON-ready dict a layer and observed step.

        ``weight_gradient_norm`` is that of the gradient with respect to the weight; the rest is as in
        :class:`unitvar.flow.LayerFlow`, and None for weights of fused recurrences and embeddings.
        """
        return [*self._rows, *(self._step.rows() if self._step is not None else ())]

    def __str__(self) -> str:
        return table.over_steps(self.rows, self.steps)

    def plot(self, ax: Axes | None = None, *, what: str = "weight_gradient_norm") -> Axes:
        """Draw one line a layer over the steps, on a logarithmic axis.

        Args:
            ax: where to draw; default: new axes.
            what: ``"weight_gradient_norm"``, ``"gradient"`` or ``"variance"``.

        Returns:
            The axes.
        """
        from unitvar import plot

        return plot.over_steps(self.rows, what, ax=ax)


class _Step:
    """Observe one step: the forward pass now, gradients whenever they come."""

    def __init__(self, step: int, model: nn.Module) -> None:
        self.step = step
        core = inner(model)
        self.stack: list[str] = []
        self.meter = Meter(core, lambda: self.stack[-1] if self.stack else "")
        self.forward_done = False
        self.norms: dict[str, Tally] = {}
        self.open = ExitStack()
        for name, parameter in core.named_parameters():
            if parameter.dim() > 1 and parameter.requires_grad:
                self.norms[name] = Tally()
                # A reentrant checkpoint has a backward pass of its own: over several of them squares add.
                self._until_closed(parameter.register_hook(_counting(self.norms[name])))  # type: ignore[no-untyped-call]
        for name, module in core.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                self._until_closed(module.register_forward_pre_hook(partial(self._enter, name)))
                self._until_closed(module.register_forward_hook(self._leave, always_call=True))
        self.eager = ExitStack()  # until the forward pass is done
        if core is not model:
            self.eager.enter_context(uncompiled())
        if core is model:  # its own call is under way, so no hook set now will see it begin
            self._enter("", core, ())

    def _until_closed(self, handle: Any) -> None:
        self.open.callback(handle.remove)

    def _enter(self, name: str, module: nn.Module, inputs: Any) -> None:
        if not self.stack:
            # After the forward pass only checkpoints matter, which compute again inside the backward pass.
            if self.forward_done and not in_backward():
                return
            self.meter.__enter__()  # type: ignore[no-untyped-call]
        self.stack.append(name)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self.stack:
            return
        self.stack.pop()
        if not self.stack:
            self.meter.settle()
            self.meter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.forward_done = True
            self.eager.close()

    def close(self) -> None:
        """Take all hooks off, and the meter, which an interrupt may have left in the middle of a forward pass."""
        self.open.close()
        if self.stack:
            self.stack.clear()
            self.meter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.meter.tracker.forget()  # copies of weights, as autocast makes them
        self.eager.close()

    def rows(self) -> list[Row]:
        layers = list(self.meter.layers.values())
        made = [self._row(layer.name, layer) for layer in layers]
        # Fused recurrences show no pre-activation, and embeddings have none.
        seen = {layer.name for layer in layers}
        return made + [self._row(name, None) for name, tally in self.norms.items() if tally.count and name not in seen]

    def _row(self, name: str, layer: Layer | None) -> Row:
        norm = self.norms.get(name)
        return {
            "step": self.step,
            "name": name,
            "use": 1 if layer is None else layer.use,
            "mean": None if layer is None else layer.forward.mean,
            "variance": None if layer is None else layer.forward.second,
            "gradient": None if layer is None else layer.backward.second,
            "dead": None if layer is None else layer.dead,
            "weight_gradient_norm": None if norm is None else norm.norm,
        }


def _counting(tally: Tally) -> Callable[[Tensor], None]:
    def count(gradient: Tensor) -> None:
        tally.add(gradient)

    return count
