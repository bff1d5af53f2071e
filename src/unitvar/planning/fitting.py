"""A plan and a model that it was not made of: does it fit, and then filling."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from unitvar.planning.fill import fill
from unitvar.planning.layers import Plan
from unitvar.running.lazy import uninitialised
from unitvar.running.modules import inner, parameters_by_name, unwrapped

__all__ = ["apply", "check_generator"]

_FEW = 5  # names in a message


def apply(plan: Plan, model: nn.Module, generator: torch.Generator | None) -> None:
    """Fill a model by a plan, if it has the parameters that the plan is for; an interrupt comes after the last one."""
    check_generator(generator)
    model = inner(model)
    with torch.inference_mode(False):
        interrupt = fill(model, plan, generator, partial(_check_fit, plan, model))
    if interrupt is not None:
        raise interrupt


def check_generator(generator: object) -> None:
    """Refuse what is not a generator, such as a seed."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator={generator!r} is not a torch.Generator or None; for a seed, pass "
            "torch.Generator().manual_seed(seed), on the model's device."
        )


def _check_fit(plan: Plan, model: nn.Module) -> None:
    """Refuse a model that has other parameters than the plan."""
    lazy = uninitialised(model)
    if lazy:
        raise ValueError(f"{_listed(lazy)} has no shape yet: run the model once to initialise its lazy layers.")
    parameters = parameters_by_name(model)
    wanted = {unwrapped(name): shape for name, shape in plan.parameters.items()}
    found = {name: tuple(p.shape) for name, p in parameters.items()}
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    other = [f"{n}: {found[n]}, planned {wanted[n]}" for n in wanted if n in found and found[n] != wanted[n]]
    faults = [
        f"{text} {_listed(names)}"
        for text, names in (("it lacks", missing), ("the plan lacks", extra), ("shapes differ at", other))
        if names
    ]
    untied = [f"{n} ({plan.skipped[n]})" for n in extra if plan.skipped.get(n, "").startswith("tied to ")]
    if untied:
        faults.append(
            f"the planned model had tied weights here, which to_empty unties: {_listed(untied)}; tie them again"
        )
    if faults:
        raise ValueError(
            f"The model does not fit the plan: {'; '.join(faults)}. Nothing was written. Apply the plan to the model "
            "that it was made for, or plan this one with unitvar.plan(model, example)."
        )
    frozen = [layer.name for layer in plan.layers if not parameters[unwrapped(layer.name)].requires_grad]
    if frozen:
        raise ValueError(
            f"The plan fills {_listed(frozen)}, which is frozen in this model (requires_grad is False). Nothing was "
            "written. Freeze it after plan.apply_, or plan the model as it is now."
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more
