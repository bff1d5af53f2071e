"""Filling weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from unitvar import init
from unitvar.planning.layers import LayerPlan, Plan
from unitvar.running.randomness import RandomState

__all__ = ["fill", "kept_on_failure"]

_FILL = {
    "sphere": init.sphere_,
    "orthonormal": init.orthonormal_,
    "normal": init.normal_,
    "uniform": init.uniform_,
}

_PATIENCE = 5  # interrupts while one weight is drawn, after which the user means it


def fill(model: nn.Module, plan: Plan, generator: torch.Generator | None) -> KeyboardInterrupt | None:
    """Draw every weight of a plan, and write zeros into their biases, without a copy of anything.

    What can be refused is refused before the first number is drawn. An interrupt is held: the weight under way is drawn
    again, from the random state that it began with, and the others after it. So either all weights are filled, with
    the numbers that they would have had, or none. An error of any other kind (no memory left), and a fifth interrupt
    during one weight, say what is filled.

    Args:
        model: whose weights are filled.
        plan: how.
        generator: draws the weights; default: the global one of each weight's device.

    Returns:
        The interrupt that was held, for the caller to raise.
    """
    parameters = dict(model.named_parameters())
    for layer in plan.layers:
        _check(layer, parameters, generator)
    held: KeyboardInterrupt | None = None
    index, start, attempts = 0, (-1, torch.empty(0)), 0
    while True:
        try:
            while index < len(plan.layers):
                layer = plan.layers[index]
                weight = parameters[layer.name]
                if start[0] == index:  # a second time, after an interrupt
                    _set_random_state(weight.device, generator, start[1])
                else:
                    start, attempts = (index, _random_state(weight.device, generator)), 0
                with torch.no_grad():
                    _draw(weight.data, layer, plan, generator)
                    for name in layer.biases:
                        parameters[name].zero_()
                index += 1
            return held
        except KeyboardInterrupt as interrupt:
            held, attempts = interrupt, attempts + 1
            if attempts == _PATIENCE:
                interrupt.add_note(_progress([layer.name for layer in plan.layers], index))
                raise
        except Exception as error:
            error.add_note(_progress([layer.name for layer in plan.layers], index))
            raise


def _progress(names: list[str], done: int) -> str:
    filled = f"{done} of {len(names)} weights are filled" + (f", up to {names[done - 1]!r}" if done else "")
    after = f"; those from {names[done + 1]!r} on are as before" if done + 1 < len(names) else ""
    return f"{filled}; {names[done]!r} may be written in part{after}. Fill the model again before you use it."


def _check(layer: LayerPlan, parameters: Mapping[str, Tensor], generator: torch.Generator | None) -> None:
    weight = parameters[layer.name]
    if generator is not None and not weight.is_meta and generator.device.type != weight.device.type:
        raise ValueError(
            f"generator is on {generator.device}, but {layer.name!r} is on {weight.device}: pass a generator of that "
            "device, or None."
        )
    if not (math.isfinite(layer.scale) and layer.scale >= 0):
        raise ValueError(f"{layer.name!r} would get the scale {layer.scale}, which is not a finite number ≥ 0.")
    for name in (layer.name, *layer.biases):
        parameter = parameters[name]
        if not parameter.is_floating_point():
            raise TypeError(f"{name!r} is of dtype {parameter.dtype}; only floating-point weights can be filled.")
        if parameter.is_inference():
            raise ValueError(
                f"{name!r} was made in torch.inference_mode and cannot be written to outside of it; build the model "
                "outside of it."
            )
        if any(size > 1 and stride == 0 for size, stride in zip(parameter.shape, _strides(parameter), strict=True)):
            raise ValueError(
                f"{name!r} is expanded: several of its elements share one place in memory. Replace it by "
                f"nn.Parameter({name}.contiguous())."
            )


def _strides(parameter: Tensor) -> tuple[int, ...]:
    return parameter.stride() if parameter.layout == torch.strided else (1,) * parameter.dim()


def _random_state(device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Read the state of what a weight on a device is drawn from."""
    if generator is not None:
        return generator.get_state()
    if device.type in ("cpu", "meta"):
        return torch.get_rng_state()
    state: Tensor = torch.get_device_module(device).get_rng_state(*_indexed(device))
    return state


def _set_random_state(device: torch.device, generator: torch.Generator | None, state: Tensor) -> None:
    if generator is not None:
        generator.set_state(state)
    elif device.type in ("cpu", "meta"):
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, *_indexed(device))


def _indexed(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # of which there is one


def _draw(parameter: Tensor, layer: LayerPlan, plan: Plan, generator: torch.Generator | None) -> None:
    draw = _FILL[plan.distribution]
    columns, batch = layer.layout.columns, layer.layout.batch
    rows = tuple(d for d in range(parameter.dim()) if d not in columns and d not in batch)
    if layer.layout.fill or (not batch and columns == tuple(range(1, parameter.dim()))):
        draw(parameter, gain=layer.scale, generator=generator, **layer.layout.fill)
        return
    by_row = parameter.permute(*batch, *rows, *columns)
    sizes = [math.prod(parameter.shape[d] for d in dims) for dims in (rows, columns)]
    for chosen in itertools.product(*(range(parameter.shape[d]) for d in batch)):
        part = by_row[chosen]
        try:
            target, apart = part.view(sizes), False
        except RuntimeError:  # no strides describe it: rows or columns that do not lie side by side
            target, apart = torch.empty(sizes, dtype=parameter.dtype, device=parameter.device), True
        draw(target, gain=layer.scale, generator=generator)
        if apart:
            part.copy_(target.view(part.shape))


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
