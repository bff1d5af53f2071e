"""Filling weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from unitvar import init
from unitvar.planning.layers import LayerPlan, Plan
from unitvar.running.modules import parameters_by_name, unwrapped
from unitvar.running.randomness import RandomState
from unitvar.running.restore import keep
from unitvar.running.shards import agreed, from_first_rank, is_sharded, keep_shard, local, resharded, sharded
from unitvar.running.undo import Undo, undoing

__all__ = ["fill", "kept_on_failure"]

_FILL = {
    "sphere": init.sphere_,
    "orthonormal": init.orthonormal_,
    "normal": init.normal_,
    "uniform": init.uniform_,
}

_PATIENCE = 5  # interrupts while one weight is drawn, after which the user means it


def fill(
    model: nn.Module, plan: Plan, generator: torch.Generator | None, fits: Callable[[], None] | None = None
) -> KeyboardInterrupt | None:
    """Draw every weight of a plan, and write zeros into their biases, without a copy of anything.

    Of a sharded weight, every rank draws the whole, one weight after the other, and keeps its shard.

    What can be refused is refused before the first number is drawn. An interrupt is held: the weight under way is drawn
    again, from the random state that it began with, and the others after it. So either all weights are filled, with
    the numbers that they would have had, or none. An error of any other kind (no memory left), and a fifth interrupt
    during one weight, say what is filled.

    Args:
        model: whose weights are filled.
        plan: how.
        generator: draws the weights; default: the global one of each weight's device.
        fits: raises if the plan is not for this model; default: it is.

    Returns:
        The interrupt that was held, for the caller to raise.
    """
    resharded(model)
    parameters = parameters_by_name(model)
    _check_all(model, plan, generator, fits)
    devices = list(dict.fromkeys(parameters[unwrapped(layer.name)].device for layer in plan.layers))
    with _same_on_all_ranks(model, devices, generator):
        held = _fill(plan, parameters, generator)
    torch.clear_autocast_cache()  # inside torch.autocast it holds casts of the old weights
    return held


def _check_all(
    model: nn.Module, plan: Plan, generator: torch.Generator | None, fits: Callable[[], None] | None
) -> None:
    """Refuse what can be refused; of a sharded model, on all ranks or on none."""
    fault: Exception | None = None
    try:
        if fits is not None:
            fits()
        parameters = parameters_by_name(model)
        for layer in plan.layers:
            _check(layer, parameters, generator)
    except Exception as error:
        fault = error
    same = not sharded(model) or agreed(model, (fault is None, plan.distribution, [repr(x) for x in plan.layers]))
    if fault is not None:
        raise fault
    if not same:
        raise ValueError(
            "Another rank rejected its plan or has a different plan. Nothing was written. Load the same file "
            "on every rank."
        )


def _fill(plan: Plan, parameters: Mapping[str, Tensor], generator: torch.Generator | None) -> KeyboardInterrupt | None:
    held: KeyboardInterrupt | None = None
    index, start, attempts = 0, (-1, torch.empty(0, device="cpu")), 0
    while True:
        try:
            while index < len(plan.layers):
                layer = plan.layers[index]
                weight = parameters[unwrapped(layer.name)]
                if start[0] == index:  # a second time, after an interrupt
                    _set_random_state(weight.device, generator, start[1])
                else:
                    start, attempts = (index, _random_state(weight.device, generator)), 0
                with torch.no_grad():
                    _write(weight, layer, plan, generator)
                    for name in layer.biases:
                        local(parameters[unwrapped(name)]).zero_()
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


def _write(weight: Tensor, layer: LayerPlan, plan: Plan, generator: torch.Generator | None) -> None:
    # All of it, also where this rank keeps a shard: the numbers must be those of an unsharded weight.
    apart = is_sharded(weight)
    whole = _empty(weight, layer) if apart else weight.data
    _draw(whole, layer, plan, generator)
    for row in layer.layout.zero:
        whole[row].zero_()
    if apart:
        keep_shard(weight, whole)


def _empty(weight: Tensor, layer: LayerPlan) -> Tensor:
    """Make a tensor of a weight's shape, rows one after the other in memory, so that it is drawn in place."""
    order = tuple(range(weight.dim())) if _by_first(layer) else _rows_first(layer)
    made = torch.empty([weight.shape[d] for d in order], dtype=weight.dtype, device=weight.device)
    return made.permute([order.index(d) for d in range(weight.dim())])


def _by_first(layer: LayerPlan) -> bool:
    """Return True if an initialiser takes the weight as it is."""
    layout = layer.layout
    return bool(layout.fill) or (not layout.batch and layout.columns == tuple(range(1, len(layer.shape))))


def _rows_first(layer: LayerPlan) -> tuple[int, ...]:
    columns, batch = layer.layout.columns, layer.layout.batch
    return (*batch, *(d for d in range(len(layer.shape)) if d not in columns and d not in batch), *columns)


@undoing()
def _same_on_all_ranks(
    undo: Undo, model: nn.Module, devices: list[torch.device], generator: torch.Generator | None
) -> None:
    """Draw from the random state of the first rank where a model is sharded; a rank with another one gets it back."""
    if not sharded(model):
        return
    own = [_random_state(device, generator) for device in devices]
    first = from_first_rank(model, own)
    for device, mine, shared in zip(devices, own, first, strict=True):
        if not torch.equal(mine, shared):
            undo.add(partial(_set_random_state, device, generator, mine))
            _set_random_state(device, generator, shared)


def _progress(names: list[str], done: int) -> str:
    filled = f"{done} of {len(names)} weights are filled" + (f", up to {names[done - 1]!r}" if done else "")
    after = f"; those from {names[done + 1]!r} on are unchanged" if done + 1 < len(names) else ""
    return f"{filled}; {names[done]!r} may be partly written{after}. Fill the model again before you use it."


def _check(layer: LayerPlan, parameters: Mapping[str, Tensor], generator: torch.Generator | None) -> None:
    weight = parameters[unwrapped(layer.name)]
    if generator is not None and not weight.is_meta and generator.device.type != weight.device.type:
        raise ValueError(
            f"generator is on {generator.device}, but {layer.name!r} is on {weight.device}: pass a generator of that "
            "device, or None."
        )
    if not (math.isfinite(layer.scale) and layer.scale >= 0):
        raise ValueError(f"{layer.name!r} would get the scale {layer.scale}, which is not a finite number ≥ 0.")
    for name in (layer.name, *layer.biases):
        parameter = parameters[unwrapped(name)]
        if not parameter.is_floating_point():
            raise TypeError(f"{name!r} is of dtype {parameter.dtype}; only floating-point weights can be filled.")
        if is_sharded(parameter) and any(p.is_partial() for p in parameter.placements):  # type: ignore[attr-defined]
            raise ValueError(
                f"{name!r} has the placements {parameter.placements}: a partial sum cannot be filled. "  # type: ignore[attr-defined]
                "Redistribute it to Shard or Replicate."
            )
        if parameter.is_inference():
            raise ValueError(
                f"{name!r} was made in torch.inference_mode and cannot be written to outside of it; build the model "
                "without inference mode."
            )
        if any(size > 1 and stride == 0 for size, stride in zip(parameter.shape, _strides(parameter), strict=True)):
            raise ValueError(
                f"{name!r} is expanded: several of its elements share memory. Replace it by "
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
    if _by_first(layer):
        draw(parameter, gain=layer.scale, generator=generator, **layer.layout.fill)
        return
    columns, batch = layer.layout.columns, layer.layout.batch
    by_row = parameter.permute(_rows_first(layer))
    rows = _rows_first(layer)[len(batch) : parameter.dim() - len(columns)]
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


@undoing(on_failure=True)
def kept_on_failure(undo: Undo, parameters: Iterable[Tensor], generator: torch.Generator | None) -> None:
    """Put parameters back, bit by bit, and the random state, that of a generator too, if a block fails."""
    keep(undo, parameters)
    for step in RandomState.read(() if generator is None else (generator,)).steps():
        undo.add(step)
