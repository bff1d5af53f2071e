"""Filling weights: all of them, or none."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from unitvar import init
from unitvar.initialize.layers import LayerPlan, Plan
from unitvar.propagate.uses import placed

__all__ = ["fill", "kept_on_failure"]

_FILL = {
    "sphere": init.sphere_,
    "orthonormal": init.orthonormal_,
    "normal": init.normal_,
    "uniform": init.uniform_,
}


def fill(model: nn.Module, plan: Plan, generator: torch.Generator | None) -> None:
    """Draw every weight of a plan, then write them, and zeros into their biases.

    All is drawn before anything is written, so that a failure changes nothing.
    """
    parameters = dict(model.named_parameters())
    drawn = [(parameters[layer.name], _drawn(parameters[layer.name], layer, plan, generator)) for layer in plan.layers]
    with torch.no_grad():
        for parameter, values in drawn:
            parameter.copy_(values)
        for layer in plan.layers:
            for name in layer.biases:
                parameters[name].zero_()


def _drawn(parameter: Tensor, layer: LayerPlan, plan: Plan, generator: torch.Generator | None) -> Tensor:
    draw = _FILL[plan.distribution]
    use = layer.use
    assert use is not None
    # Its own layout in memory, plain: a channels-last weight must not change what is drawn.
    fresh = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    if use.fill:
        return draw(fresh, gain=layer.scale, generator=generator, **use.fill)
    columns = placed(use.parameter, use.operand, use.columns)
    batch = placed(use.parameter, use.operand, use.batch) if use.batch else ()
    assert columns is not None
    batch = tuple(d for d in batch or () if d not in columns)
    rows = tuple(d for d in range(parameter.dim()) if d not in columns and d not in batch)
    if not batch and columns == tuple(range(len(rows), parameter.dim())) and len(rows) == 1:
        return draw(fresh, gain=layer.scale, generator=generator)
    order = (*batch, *rows, *columns)
    sizes = [math.prod(parameter.shape[d] for d in dims) for dims in (batch, rows, columns)]
    flat = torch.empty(sizes, dtype=parameter.dtype, device=parameter.device)
    for part in flat:
        draw(part, gain=layer.scale, generator=generator)
    fresh.permute(order).copy_(flat.view([parameter.shape[d] for d in order]))
    return fresh


class kept_on_failure:  # noqa: N801  # a context manager, named like a function
    """Put parameters back, bit by bit, if a block fails."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:  # noqa: D107
        self.saved = [(p, p.detach().clone()) for p in parameters if not p.is_meta]

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            with torch.no_grad():
                for parameter, values in self.saved:
                    parameter.copy_(values)
