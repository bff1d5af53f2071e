"""What really flows: the second moment of the output of every weight op, in train mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unitvar.rules import RULES
from unitvar.trace.graph import op_of
from unitvar.trace.run import call


class Meter(TorchDispatchMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {p.untyped_storage()._cdata: n for n, p in model.named_parameters()}
        self.found: dict[str, list[float]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        rule = RULES.get(op_of(func).name)
        if rule is not None and rule.weights and isinstance(out, Tensor):
            for position in rule.weights:
                arg = args[position] if position < len(args) else None
                for operand in arg if isinstance(arg, (list, tuple)) else (arg,):
                    if isinstance(operand, Tensor):
                        name = self.names.get(operand.untyped_storage()._cdata)
                        if name:
                            self.found.setdefault(name, []).append(out.double().square().mean().item())
        return out


def measured(model: nn.Module, example: Any, runs: int = 1) -> dict[str, float]:
    """Average E z² over runs, and over the uses of a weight."""
    meter = Meter(model)
    model.train()
    with torch.inference_mode(), meter:
        for _ in range(runs):
            call(model, example)
    return {name: sum(values) / len(values) for name, values in meter.found.items()}
