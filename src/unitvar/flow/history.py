"""watch(): the same per layer during real training, every so many steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unitvar.flow import table
from unitvar.flow.meter import is_measuring
from unitvar.flow.step import Row, Step
from unitvar.flow.writing import Writer, scalars, writing
from unitvar.running.modules import hooks_removed, inner
from unitvar.running.undo import Undo
from unitvar.shown import Tabular

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["History", "watch"]


def watch(model: nn.Module, *, every: int = 100, writer: Any = None, marked: bool = False) -> History:
    """Record signals, gradients and updates of every weight while a model trains.

    A step is a call of the model in train mode with gradients on. The first step and then every ``every``-th are
    observed. An observation measures the pre-activation of every weight, its gradient when the loop calls ``backward``,
    and how far the next ``optimizer.step()`` moves the weight relative to its size. For the last of these, the weights
    are copied for the length of that call. All other steps are only counted. Training gives the same bits with and
    without it.

    Args:
        model: what the loop calls: a module, wrapped by DistributedDataParallel or compiled as it may be. Observed
            steps of a compiled model run uncompiled.
        every: how many steps from one observation to the next.
        writer: where to log: a TensorBoard ``SummaryWriter``, whatever has its ``add_scalar(tag, value, step)``, or a
            function of (values, step), such as :mod:`unitvar.integrations.loggers` has for other loggers.
        marked: whether steps are marked by ``history.begin()`` and ``history.end()`` instead of calls of the model, for
            loops that call only parts of it.

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
    inner(model)  # refuses what is no module
    return History(model, every, None if writer is None else writing(writer), marked)


class History(Tabular):
    """Hold what was observed: one row per layer and observed step; see :func:`watch`.

    Attributes:
        steps: how many steps the model has made.
    """

    def __init__(self, model: nn.Module, every: int, writer: Writer | None, marked: bool) -> None:
        self._model, self._every, self._writer, self._marked = model, every, writer, marked
        self.steps = 0
        self._rows: list[Row] = []
        self._step: Step | None = None
        self._undo: Undo | None = None

    def __enter__(self) -> History:
        if self._undo is not None:
            raise RuntimeError("This history is already watching; leave its `with` block before you enter it again.")
        self._undo = Undo(alone=True)
        self._undo.add(self._stop)
        handles = hooks_removed(self._undo)
        if not self._marked:
            handles.append(self._model.register_forward_pre_hook(self._called))
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        undo, self._undo = self._undo, None
        assert undo is not None
        undo.__exit__(kind, error, None)
        self._finish()

    def _stop(self) -> None:
        if self._step is not None:
            self._step.stop()

    def begin(self) -> None:
        """Begin a step of a history that was made with ``marked=True``."""
        if not self._marked:
            raise RuntimeError(
                "begin() and end() need watch(..., marked=True); without it each call of the model is a step."
            )
        self._next()

    def end(self) -> None:
        """End a step before the next begins; an update may come in until the next one is observed."""
        if self._step is not None:
            self._step.close()

    def _called(self, module: nn.Module, inputs: Any) -> None:
        # A measurement is no step of training, nor is what it runs.
        if not module.training or not torch.is_grad_enabled() or is_measuring():
            return
        self._next()

    def _next(self) -> None:
        step, self.steps = self.steps, self.steps + 1
        self.end()
        if step % self._every == 0:
            self._finish()
            self._step = Step(step, self._model, marked=self._marked)
            self._step.begin()

    def _finish(self) -> None:
        """Turn the last observed step into rows; gradients may come in until the next one begins."""
        step = self._step
        if step is None:
            return
        step.stop()
        self._step = None
        rows = step.rows()
        self._rows += rows
        if self._writer is not None:
            self._writer(scalars(rows), step.step)

    @property
    def rows(self) -> list[Row]:
        """Return one flat, JSON-ready dict per layer and observed step.

        ``weight_gradient_norm`` is that of the gradient with respect to the weight, ``update_ratio`` the norm of what
        the optimiser then added to the weight over the norm of the weight; None if no optimiser of torch's did. The
        rest is as in :class:`unitvar.flow.LayerFlow`, and None for weights of fused recurrences and embeddings.
        """
        return [*self._rows, *(self._step.rows() if self._step is not None else ())]

    def __str__(self) -> str:
        return table.over_steps(self.rows, self.steps)

    def __repr__(self) -> str:
        return f"<History: {table.observed(self.rows, self.steps)}>"

    def _repr_html_(self) -> str:
        return table.html_over_steps(self.rows, self.steps)

    def plot(self, ax: Axes | None = None, *, what: str = "weight_gradient_norm") -> Axes:
        """Draw one line per layer over the steps, on a logarithmic axis.

        Args:
            ax: where to draw; default: new axes.
            what: ``"weight_gradient_norm"``, ``"update_ratio"``, ``"gradient"`` or ``"variance"``.

        Returns:
            The axes.
        """
        from unitvar import plot

        return plot.over_steps(self.rows, what, ax=ax)
