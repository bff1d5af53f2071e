"""Filling weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from unitvar import init
from unitvar.initialize.layers import LayerPlan, Plan
from unitvar.running.randomness import RandomState

__all__ = ["fill", "kept_on_failure"]

_FILL = {
    "sphere": init.sphere_,
    "orthonormal": init.orthonormal_,
    "normal": init.normal_,
    "uniform": init.uniform_,
}


def fill(model: nn.Module, plan: Plan, generator: torch.Generator | None) -> None:
    """Draw every weight of a plan, and write zeros into their biases."""
    parameters = dict(model.named_parameters())
    for layer in plan.layers:
        _check(layer, parameters[layer.name], generator)
    with torch.no_grad():
        for layer in plan.layers:
            _draw(parameters[layer.name].data, layer, plan, generator)
            for name in layer.biases:
                parameters[name].zero_()


def _check(layer: LayerPlan, parameter: Tensor, generator: torch.Generator | None) -> None:
    if generator is not None and not parameter.is_meta and generator.device.type != parameter.device.type:
        raise ValueError(
            f"generator is on {generator.device}, but {layer.name!r} is on {parameter.device}: pass a generator of "
            "that device, or None."
        )


def _draw(parameter: Tensor, layer: LayerPlan, plan: Plan, generator: torch.Generator | None) -> None:
    draw = _FILL[plan.distribution]
    columns, batch = layer.layout.columns, layer.layout.batch
    rows = tuple(d for d in range(parameter.dim()) if d not in columns and d not in batch)
    if layer.layout.fill or (not batch and columns == tuple(range(1, parameter.dim()))):
        # Drawn in plain order, so that a channels-last weight gets the same numbers.
        target = parameter if parameter.is_contiguous() else torch.empty(parameter.shape).to(parameter)
        draw(target, gain=layer.scale, generator=generator, **layer.layout.fill)
        if target is not parameter:
            parameter.copy_(target)
        return
    order = (*batch, *rows, *columns)
    sizes = [math.prod(parameter.shape[d] for d in dims) for dims in (batch, rows, columns)]
    flat = torch.empty(sizes, dtype=parameter.dtype, device=parameter.device)
    for part in flat:
        draw(part, gain=layer.scale, generator=generator)
    parameter.permute(order).copy_(flat.view([parameter.shape[d] for d in order]))


class kept_on_failure:  # noqa: N801  # a context manager, named like a function
    """Put parameters back, bit by bit, and the random state, that of a generator too, if a block fails."""

    def __init__(self, parameters: Iterable[Tensor], generator: torch.Generator | None) -> None:
        self.random = RandomState.read(() if generator is None else (generator,))
        self.saved = [(p, p.detach().clone()) for p in parameters if not p.is_meta]

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.random.restore()
            with torch.no_grad():
                for parameter, values in self.saved:
                    parameter.copy_(values)
