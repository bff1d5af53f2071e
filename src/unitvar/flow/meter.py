"""The meter: a dispatch mode that sees every pre-activation of a run, and waits for its gradient.

With autograd on, a dispatch mode sees what autograd has taken apart (``addmm`` instead of ``linear``), and the tensor
it hands back is the one that autograd then attaches its history to: by the next op a hook can be set on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import TorchDispatchMode, in_backward, own_buffers
from unitvar.batchnorm.moments import Moments, batch_moments
from unitvar.flow.tally import Layer, widest
from unitvar.graph.op import Op, op_of, tensors_in
from unitvar.moments import RULES
from unitvar.moments.ops.arithmetic import is_sum
from unitvar.moments.ops.views import keeps_elements
from unitvar.running.gathering import Gathering, kept_parameters
from unitvar.running.shards import gathered_tensor
from unitvar.running.tracker import ParameterTracker
from unitvar.running.undo import Undo, undoing

__all__ = ["Meter", "is_measuring", "measuring"]

Sampler = Callable[[Layer, Tensor, Tensor], None]

_measuring: ContextVar[bool] = ContextVar("unitvar_measuring", default=False)


@undoing()
def measuring(undo: Undo) -> None:
    """Mark what this thread runs as a measurement, which is no step of training. Other threads are not concerned."""
    undo.add(partial(_measuring.set, _measuring.get()))
    _measuring.set(True)


def is_measuring() -> bool:
    """Return True if what this thread runs is a measurement."""
    return _measuring.get()


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
            self.layer.receive(gathered_tensor(gradient))


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Measure the output of every weight, and the gradient that comes back to it.

    Recomputation by checkpoints, which happens inside a backward pass, is known for what it is and counted once.

    What FSDP2 gathers is followed under the names of its shards. Of a pre-activation that tensor parallelism has spread
    over ranks, all of it is gathered for as long as it takes to measure it.

    Args:
        model: whose parameters are followed, through views, casts and parametrisations.
        path: says which module is running.
        norms: whether to measure what reaches each batch norm, too.
        sampler: is given each layer, what reaches its weight, and its pre-activation.
    """

    def __init__(
        self, model: nn.Module, path: Callable[[], str], *, norms: bool = False, sampler: Sampler | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path, self.sampler = path, sampler
        self.layers: dict[tuple[str, int], Layer] = {}
        self.norms: dict[tuple[str, int], Moments] | None = {} if norms else None
        self.recurrent = {name for name, module in model.named_modules() if isinstance(module, nn.RNNBase)}
        attention = ((name, m) for name, m in model.named_modules() if isinstance(m, nn.MultiheadAttention))
        self.attention = {name for name, m in attention if type(m).forward is nn.MultiheadAttention.forward}
        self.gathering = Gathering(model)
        own = kept_parameters(model).items()
        self.tracker = ParameterTracker((name, p) for name, p in own if id(p) not in self.gathering.shards)
        for module in model.modules():
            plain = (value for value in vars(module).values() if isinstance(value, Tensor))
            for buffer in (*own_buffers(module).values(), *plain):
                if buffer is not None and not isinstance(buffer, nn.Parameter):
                    self.tracker.own(buffer, "")
        self.begin()

    def begin(self) -> None:
        """Start a run."""
        self.uses: Counter[str] = Counter()
        self.tracker.forget()
        torch.clear_autocast_cache()  # casts made before the run cannot be followed back to their parameters
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
            z = gathered_tensor(z)
            if fresh.layer is None:
                fresh.layer = self._recomputed(fresh.name, z)
            else:
                fresh.layer.give(z)
                if self.sampler is not None and x is not None:
                    self.sampler(fresh.layer, gathered_tensor(x).detach(), z.detach())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an op; measure what it gives if that is a pre-activation."""
        kwargs = kwargs or {}
        backward = in_backward()
        if backward and not torch.is_grad_enabled():
            return func(*args, **kwargs)
        for name, parameter in self.gathering:
            self.tracker.own(parameter, name)
        op = op_of(func)
        tensors = list(tensors_in(args))
        # Asked before the op runs, which may write to them.
        alone = bool(tensors) and all(self.tracker.owner(t) is not None for t in tensors)
        fresh = self.fresh
        if fresh is not None:
            self._wait(fresh)
            if not self._goes_on(fresh, op, args):
                self.settle()
        out = func(*args, **kwargs)
        if self.fresh is not None:
            self.fresh.value = out
        elif alone:  # arithmetic of parameters and buffers: casts, weight norms, masks
            if not op.random:
                self.tracker.derive(tensors_in(out if isinstance(out, (tuple, list)) else (out,)), tensors)
        elif tensors and isinstance(out, Tensor) and out.is_floating_point():
            self._weigh(op, args, out, backward)
        if self.norms is not None and not backward and op.name in RULES and RULES[op.name].normalises:
            self._norm(op, op.bind(args, kwargs))
        return out

    def _goes_on(self, fresh: _Fresh, op: Op, args: tuple[Any, ...]) -> bool:
        """Return whether an op only completes the last pre-activation: its shape, or its bias."""
        if keeps_elements(op.name):
            return args[0] is fresh.value
        if not is_sum(op.name) or not isinstance(args[1], Tensor):
            return False
        other = args[1] if args[0] is fresh.value else args[0] if args[1] is fresh.value else None
        return isinstance(other, Tensor) and other.dim() < 2 and bool(self.tracker.owner(other))

    def _weigh(self, op: Op, args: tuple[Any, ...], out: Tensor, backward: bool) -> None:
        rule = RULES.get(op.name)
        for position in rule.weights if rule is not None else ():
            arg = args[position] if position < len(args) else None
            operand = arg if isinstance(arg, Tensor) else None
            name = self.tracker.owner(operand) if operand is not None and operand.dim() > 1 else None
            if not name:
                continue
            x = next(
                (t for t in tensors_in(args) if t is not operand and t.dim() and self.tracker.owner(t) is None), None
            )
            if backward:  # a checkpoint computes it again
                self.fresh = _Fresh(out, None, name, None)
            else:
                self.fresh = _Fresh(out, x if self.sampler is not None else None, name, self._layer(op, name, position))
                self.hidden |= not torch.is_grad_enabled()
            return

    def _layer(self, op: Op, name: str, position: int) -> Layer:
        path = self.path()
        if path in self.recurrent:  # the steps of a recurrence are one use of its weights
            self.uses[name] = 1
        else:
            self.uses[name] += 1
        key = name, self.uses[name]
        if key not in self.layers:
            unit = RULES[op.name].units(position)
            self.layers[key] = Layer(name, self.uses[name], op.name.partition(".")[2], unit)
            self.layers[key].inside = (
                "recurrence" if path in self.recurrent else "attention" if path in self.attention else ""
            )
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
        if training and bound[0].dim() > 1:
            path = self.path()
            self.uses[f"norm {path}"] += 1
            key = path, self.uses[f"norm {path}"]
            seen = batch_moments(gathered_tensor(bound[0]).detach())
            self.norms[key] = self.norms[key].merge(seen) if key in self.norms else seen
