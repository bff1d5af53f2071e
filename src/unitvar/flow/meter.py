"""The meter: a dispatch mode that sees every pre-activation of a run, and waits for its gradient.

With autograd on, a dispatch mode sees what autograd has taken apart (``addmm`` instead of ``linear``), and the tensor
it hands back is the one that autograd then attaches its history to: by the next op a hook can be set on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from unitvar.batchnorm.moments import Moments, batch_moments
from unitvar.batchnorm.preserve import storage_of
from unitvar.flow.tally import Layer, widest
from unitvar.rules import RULES
from unitvar.trace.graph import Op, op_of
from unitvar.trace.record import tensors_in

__all__ = ["Meter"]

_ONLY_HERE = {"aten._trilinear": (1,)}  # what autograd makes of bilinear
_RESHAPES = {"aten.view", "aten._unsafe_view", "aten.reshape"}
_FIRST = {("aten.mm", 0), ("aten.bmm", 0), ("aten.addmm", 1), ("aten.baddbmm", 1)}
Sampler = Callable[[Layer, Tensor, Tensor], None]


class _Fresh:
    """A pre-activation that no op has seen yet."""

    def __init__(self, z: Tensor, x: Tensor | None, name: str, layer: Layer | None) -> None:
        # All three are let go as soon as they are measured: what waits for the gradient must not keep activations.
        self.z: Tensor | None = z  # until its gradient is waited for
        self.value: Tensor | None = z  # with its bias, as soon as that is added
        self.x = x
        self.name, self.layer = name, layer

    def receive(self, gradient: Tensor) -> None:
        if self.layer is not None:
            self.layer.receive(gradient)


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Measure the output of every weight, and the gradient that comes back to it.

    Recomputation by checkpoints, which happens inside a backward pass, is known for what it is and counted once.

    Args:
        model: whose parameters are followed, through views, casts and parametrisations.
        path: says which module is running.
        norms: whether to measure what reaches each batch norm, too.
        sampler: is given each layer, what reaches its weight, and its pre-activation.
    """

    measuring = 0  # how many calls of measure() are under way

    def __init__(
        self, model: nn.Module, path: Callable[[], str], *, norms: bool = False, sampler: Sampler | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path, self.sampler = path, sampler
        self.layers: dict[tuple[str, int], Layer] = {}
        self.norms: dict[tuple[str, int], Moments] | None = {} if norms else None
        self.recurrent = {name for name, module in model.named_modules() if isinstance(module, nn.RNNBase)}
        # storage → the parts of it that belong to a parameter; "" for what is neither parameter nor signal.
        self.owners: dict[int, list[tuple[int, int, str]]] = {}
        self.sizes: dict[str, int] = {}
        for name, parameter in model.named_parameters():
            self._own(parameter, name)
        for module in model.modules():
            plain = (value for value in vars(module).values() if isinstance(value, Tensor))
            for buffer in (*module._buffers.values(), *plain):
                if buffer is not None and not isinstance(buffer, nn.Parameter):
                    self._own(buffer, "")
        self.begin()

    def begin(self) -> None:
        """Start a run."""
        self.uses: Counter[str] = Counter()
        self.derived: dict[int, tuple[Tensor, str]] = {}  # kept alive, so that a storage stays theirs
        self.fresh: _Fresh | None = None
        self.hidden = False  # whether a pre-activation was computed with gradients off
        for layer in self.layers.values():
            layer.hooked = False

    def settle(self) -> None:
        """Measure the last pre-activation."""
        fresh, self.fresh = self.fresh, None
        if fresh is None:
            return
        self._wait(fresh)
        z, x = fresh.value, fresh.x
        fresh.value = fresh.x = None
        assert z is not None
        with torch.no_grad():
            if fresh.layer is None:
                fresh.layer = self._recomputed(fresh.name, z)
            else:
                fresh.layer.give(z)
                if self.sampler is not None and x is not None:
                    self.sampler(fresh.layer, x.detach(), z.detach())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an op; measure what it gives if that is a pre-activation."""
        kwargs = kwargs or {}
        backward = torch._C._current_graph_task_id() != -1
        if backward and not torch.is_grad_enabled():
            return func(*args, **kwargs)
        op = op_of(func)
        owners = [self._owner(t) for t in tensors_in(args)]
        fresh = self.fresh
        if fresh is not None:
            self._wait(fresh)
            if not self._goes_on(fresh, op, args):
                self.settle()
        out = func(*args, **kwargs)
        if self.fresh is not None:
            self.fresh.value = out
        elif not owners:
            pass
        elif all(owner is not None for owner in owners):
            self._derive(op, [owner for owner in owners if owner], out)
        elif isinstance(out, Tensor) and out.is_floating_point():
            self._weigh(op, args, out, backward)
        if self.norms is not None and "batch_norm" in op.name and not backward:
            self._norm(op, op.bind(args, kwargs))
        return out

    def _own(self, tensor: Tensor, name: str) -> None:
        if is_lazy(tensor) or tensor.is_meta:
            return
        start = int(tensor.storage_offset())
        self.owners.setdefault(storage_of(tensor), []).append((start, start + max(1, tensor.numel()), name))
        self.sizes[name] = tensor.numel() if name else 0

    def _owner(self, tensor: Tensor) -> str | None:
        """Name the parameter that a tensor is a view of or was computed from; "" for buffers, None for signals."""
        storage = storage_of(tensor)
        found = self.owners.get(storage)
        if found is None:
            return self.derived[storage][1] if storage in self.derived else None
        if len(found) == 1:
            return found[0][2]
        offset = int(tensor.storage_offset())
        return next((name for start, stop, name in found if start <= offset < stop), found[0][2])

    def _derive(self, op: Op, names: list[str], out: Any) -> None:
        """Follow arithmetic of parameters and buffers alone: casts, weight norms, masks."""
        if op.random:
            return
        name = max(names, key=self.sizes.__getitem__, default="")
        for tensor in [out] if isinstance(out, Tensor) else tensors_in(out if isinstance(out, (tuple, list)) else ()):
            storage = storage_of(tensor)
            if storage not in self.owners:
                self.derived[storage] = tensor, name

    def _goes_on(self, fresh: _Fresh, op: Op, args: tuple[Any, ...]) -> bool:
        """Say whether an op only completes the last pre-activation: its shape, or its bias."""
        if op.name in _RESHAPES:
            return args[0] is fresh.value
        if op.name != "aten.add" or not isinstance(args[1], Tensor):
            return False
        other = args[1] if args[0] is fresh.value else args[0] if args[1] is fresh.value else None
        return isinstance(other, Tensor) and other.dim() < 2 and bool(self._owner(other))

    def _weigh(self, op: Op, args: tuple[Any, ...], out: Tensor, backward: bool) -> None:
        rule = RULES.get(op.name)
        positions = _ONLY_HERE.get(op.name, rule.weights if rule is not None else ())
        for position in positions:
            arg = args[position] if position < len(args) else None
            operand = arg if isinstance(arg, Tensor) else None
            name = self._owner(operand) if operand is not None and operand.dim() > 1 else None
            if not name:
                continue
            x = next((t for t in tensors_in(args) if t is not operand and t.dim() and self._owner(t) is None), None)
            if backward:  # a checkpoint computes it again
                self.fresh = _Fresh(out, None, name, None)
            else:
                self.fresh = _Fresh(out, x if self.sampler is not None else None, name, self._layer(op, name, position))
                self.hidden |= not torch.is_grad_enabled()
            return

    def _layer(self, op: Op, name: str, position: int) -> Layer:
        # The steps of a recurrence are one use of its weights.
        if self.path() in self.recurrent:
            self.uses[name] = 1
        else:
            self.uses[name] += 1
        key = name, self.uses[name]
        if key not in self.layers:
            # Units are channels; rows if the weight stands first in a product, columns if it stands second.
            first = (op.name, position) in _FIRST
            unit = 1 if "conv" in op.name else -2 if first else -1
            self.layers[key] = Layer(name, self.uses[name], op.name.partition(".")[2], unit)
        return self.layers[key]

    def _wait(self, fresh: _Fresh) -> None:
        """Ask for the gradient, which was not possible before autograd had attached its history."""
        z, fresh.z = fresh.z, None
        if z is not None and z.requires_grad:
            if fresh.layer is not None:
                fresh.layer.hooked = True
            z.register_hook(fresh.receive)  # type: ignore[no-untyped-call]

    def _recomputed(self, name: str, z: Tensor) -> Layer | None:
        """Find the layer whose pre-activation a checkpoint has computed again, if it still waits for its gradient."""
        waiting = [x for x in self.layers.values() if x.name == name and not x.hooked and x.forward.count]
        if not waiting:
            return None
        square = float(torch.linalg.vector_norm(z.detach(), dtype=widest(z)).square())
        # With the same masks the very same numbers; else checkpoints are undone from the last to the first.
        found = next((x for x in waiting if abs(float(x.latest) - square) <= 1e-6 * square), waiting[-1])
        found.hooked = True
        return found

    def _norm(self, op: Op, bound: list[Any]) -> None:
        assert self.norms is not None
        training = bound[op.names.index("training")] if "training" in op.names else True
        if training and not op.name.endswith("backward") and bound[0].dim() > 1:
            path = self.path()
            self.uses[f"norm {path}"] += 1
            key = path, self.uses[f"norm {path}"]
            seen = batch_moments(bound[0].detach())
            self.norms[key] = self.norms[key].merge(seen) if key in self.norms else seen
