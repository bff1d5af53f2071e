"""One forward pass on real data, each weight rescaled when its output appears."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unitvar.batchnorm.feed import device_of, moved
from unitvar.initialize.layers import Plan
from unitvar.rules import RULES
from unitvar.trace.graph import op_of
from unitvar.trace.run import call, copied
from unitvar.trace.untouched import untouched, values_kept

__all__ = ["rescale"]


class _Rescaler(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Give the output of each weight op unit second moment, by way of its weight."""

    def __init__(self, weights: dict[int, tuple[str, Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights = weights
        self.factors: dict[str, float] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        rule = RULES.get(op_of(func).name)
        if rule is None or not rule.weights or not isinstance(out, Tensor) or not out.is_floating_point():
            return out
        for position in rule.weights:
            arg = args[position] if position < len(args) else None
            for operand in arg if isinstance(arg, (list, tuple)) else (arg,):
                if isinstance(operand, Tensor) and operand.dim() >= 2:
                    self._rescale(operand, out)
        return out

    def _rescale(self, operand: Tensor, out: Tensor) -> None:
        name, parameter = self.weights.get(operand.untyped_storage()._cdata, ("", operand))
        if not name or (name in self.factors and operand.numel() == parameter.numel()):
            return  # not one of ours, or its second use
        second = float(out.double().square().mean())
        if not second > 0 or not math.isfinite(second):
            raise ValueError(
                f"The output of {name!r} has second moment {second:g} on this batch, which no scale can make 1; "
                'look at the data, or use method="analytic".'
            )
        factor = 1 / math.sqrt(second)
        operand.mul_(factor)  # a view of the parameter, or all of it
        out.mul_(factor)
        self.factors[name] = factor


def rescale(model: nn.Module, example: Any, plan: Plan) -> dict[str, float]:
    """Run the model once in train mode and rescale the weights of a plan; return their factors."""
    parameters = dict(model.named_parameters())
    weights: dict[int, tuple[str, Tensor]] = {
        parameters[layer.name].untyped_storage()._cdata: (layer.name, parameters[layer.name]) for layer in plan.layers
    }
    rescaler = _Rescaler(weights)
    with untouched(model), values_kept(model), torch.inference_mode(), rescaler:
        call(model, moved(copied(example), device_of(model)))
    return rescaler.factors
