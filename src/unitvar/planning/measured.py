"""One forward pass on real data, each weight rescaled when its output appears."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unitvar._torch import TorchDispatchMode, storage_of
from unitvar.graph.op import Op, op_of, tensors_in
from unitvar.moments import RULES
from unitvar.moments.rule import builtin_rule
from unitvar.moments.uses import operands
from unitvar.planning.layers import Plan
from unitvar.running.calling import call, copied, device_of, moved
from unitvar.running.restore import values_kept
from unitvar.running.tracker import ParameterTracker, View
from unitvar.running.untouched import untouched

__all__ = ["rescale"]


class _Part(NamedTuple):
    """What was done to a weight, or to a part of it."""

    factor: float
    view: View

    @property
    def numel(self) -> int:
        return math.prod(self.view.size)


class _Rescaler(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Give the product of each weight and what reaches it its planned second moment, by way of the weight."""

    def __init__(self, weights: dict[str, Tensor], targets: dict[str, float]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights, self.targets = weights, targets
        self.tracker = ParameterTracker(weights.items())
        self.parts: dict[str, list[_Part]] = {name: [] for name in weights}
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        op, out = op_of(func), func(*args, **kwargs)
        tensors = list(tensors_in(args))
        self.seen.update(name for t in tensors if (name := self.tracker.owner(t)) is not None)
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return out
        if len(tensors) == 1 and not op.random and out.numel() == tensors[0].numel():
            if storage_of(out) != storage_of(tensors[0]) and self.tracker.chain(tensors[0]):  # as autocast does it
                self.tracker.derive([out], tensors)
            return out
        new = [found for operand in _operands(op, args) if (found := self._new(operand)) is not None]
        if new:
            added = _added(op, args)
            product = out if added is None else func(*_without(args, added), **kwargs)
            factor = 1.0
            for name, chain in new:
                factor *= self._fit(name, chain, float(product.double().square().mean()) * factor**2)
            out.mul_(factor) if product is out else out.add_(product, alpha=factor - 1)
        return out

    def _new(self, operand: Tensor) -> tuple[str, list[Tensor]] | None:
        """Name the weight that an operand is and give its chain; None at a second use, and for what is no weight."""
        chain = self.tracker.chain(operand)
        view = self.tracker.view(chain[-1]) if chain else None
        if view is None:
            return None
        parts = self.parts[view.name]
        whole = sum(part.numel for part in parts) >= self.weights[view.name].numel()
        used = whole or any(part.view.offset == view.offset for part in parts)
        return None if used else (view.name, chain)

    def _fit(self, name: str, chain: list[Tensor], second: float) -> float:
        if not second > 0 or not math.isfinite(second):
            raise ValueError(
                f"The output of {name!r} has second moment {second:g} on this batch, which no scale can make "
                f"{self.targets[name]:.3g}; "
                'check the data, or use method="analytic".'
            )
        factor = math.sqrt(self.targets[name] / second)
        for tensor in chain:
            # What is expanded is written to once. Through .data, since a forward may take gradients.
            size = tuple(1 if stride == 0 else n for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
            view = View(name, size, tensor.stride(), int(tensor.storage_offset()))
            view.of(tensor.data).mul_(factor)
        self.parts[name].append(_Part(factor, view))
        return factor


def _operands(op: Op, args: tuple[Any, ...]) -> Iterator[Tensor]:
    rule = RULES.get(op.name)
    found = operands(args, rule) if rule is not None else []
    yield from (t for _, t in found if isinstance(t, Tensor) and t.dim() >= 2)


def _added(op: Op, args: tuple[Any, ...]) -> int | None:
    """Return the position of what an op adds to its product, such as a bias; None if it adds nothing."""
    rule = RULES.get(op.name)
    position = len(args) if rule is None or rule.bias is None else rule.bias
    arg = args[position] if position < len(args) else None
    return position if isinstance(arg, Tensor) and bool(arg.any()) else None


def _without(args: tuple[Any, ...], position: int) -> tuple[Any, ...]:
    return (*args[:position], torch.zeros_like(args[position]), *args[position + 1 :])


def rescale(model: nn.Module, example: Any, plan: Plan) -> dict[str, float]:
    """Run the model once in train mode and rescale the weights of a plan; return their factors."""
    parameters = dict(model.named_parameters())
    # The ops of recurrences show no pre-activation.
    shown = [layer for layer in plan.layers if layer.predicted > 0 and _shows(layer.op)]
    weights: dict[str, Tensor] = {layer.name: parameters[layer.name] for layer in shown}
    targets = {layer.name: layer.predicted for layer in shown}
    try:
        parts = _run(model, example, weights, targets, torch.inference_mode())
    except Exception as first:
        try:  # autograd inside forward works under no_grad, but not under inference_mode
            parts = _run(model, example, weights, targets, torch.no_grad())
        except Exception:
            raise first from first.__cause__
    factors = {}
    with torch.no_grad():
        for name, weight in weights.items():
            squares = float(weight.numel())
            for part in parts[name]:
                part.view.of(weight.data).mul_(part.factor)
                squares += part.numel * (part.factor**2 - 1)
            factors[name] = math.sqrt(squares / weight.numel())
    return factors


def _shows(op: str) -> bool:
    """Return True if an op gives the product of its weight; recurrences and embeddings do not."""
    known = builtin_rule(op)
    return known is None or (known.recurrent is None and not known.embeds)


def _run(
    model: nn.Module, example: Any, weights: dict[str, Tensor], targets: dict[str, float], mode: Any
) -> dict[str, list[_Part]]:
    """Find what each weight has to be multiplied by; the weights themselves come out as they were."""
    rescaler = _Rescaler(weights, targets)
    torch.clear_autocast_cache()  # casts made before the run cannot be followed back to their parameters
    try:
        with untouched(model), values_kept(model), mode, rescaler:
            call(model, moved(copied(example), device_of(model)))
    finally:
        torch.clear_autocast_cache()
    # A weight that nothing saw was skipped at random, as by layer drop, and keeps its analytic scale.
    lost = [name for name in weights if name in rescaler.seen and not rescaler.parts[name]]
    if lost:
        raise ValueError(
            f"The output of {', '.join(map(repr, lost))} was not found in the run: the weight is transformed before it "
            'is used. Leave it out with only=..., or use method="analytic".'
        )
    return rescaler.parts
