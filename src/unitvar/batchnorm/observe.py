"""Watching what reaches each BatchNorm, while it normalises with that batch's own statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unitvar._torch import AnyBatchNorm, is_lazy
from unitvar.batchnorm.buffers import running, store, write
from unitvar.batchnorm.moments import Moments, Spread, batch_moments
from unitvar.running.undo import Undo, undoing


class Reached(BaseException):
    """End a forward pass at the layer it was for. Not an Exception, so that no handler inside a model catches it."""


class Layer:
    """Gather the values of one BatchNorm: of the current batch, and of all batches before it."""

    def __init__(self, name: str, module: AnyBatchNorm) -> None:
        self.name = name
        self.module = module
        self.old: tuple[Tensor, Tensor] | None = None  # running mean and variance before anything was written
        self.final = False  # the running statistics are what they should be: normalise with them, gather nothing
        self.functional = False  # an overridden forward that calls F.batch_norm, whose input is what counts
        if not any(map(is_lazy, self.buffers)):
            self.remember()
        self.clear()

    def clear(self) -> None:
        """Forget all values."""
        self.pooled: Moments | None = None
        self.current: Moments | None = None
        # Room for both is taken now: small tensors that a forward pass leaves behind would lie between its large ones,
        # whose memory then could not be used again; the page faults cost a DenseNet a tenth of a pass.
        channels = 0 if self.old is None else len(self.old[0])
        self._room = _room(channels)
        self.spread = Spread(channels)
        self.uses = 0  # in the current batch
        self.most_uses = 0

    def take(self, seen: Moments) -> None:
        """Count an input of the current batch; a layer that is used more than once gathers all its uses."""
        self.current = self._hold(0, seen if self.current is None else self.current.merge(seen))
        self.uses += 1

    def counted(self) -> tuple[Moments | None, int]:
        """Copy what the current batch gave so far."""
        return None if self.current is None else self.current.copy(), self.uses

    def recount(self, counted: tuple[Moments | None, int]) -> None:
        """Go back to what :meth:`counted` gave."""
        current, self.uses = counted
        self.current = None if current is None else self._hold(0, current)

    def _hold(self, place: int, moments: Moments) -> Moments:
        if self._room.shape[-1] != len(moments.mean):  # it was lazy
            self._room = _room(len(moments.mean))
        mean, m2 = self._room[place]
        return Moments(moments.count, mean.copy_(moments.mean), m2.copy_(moments.m2), moments.examples)

    def drop_batch(self) -> None:
        """Forget the current batch."""
        self.current, self.uses = None, 0

    def keep_batch(self) -> None:
        """Pool the current batch with those before it."""
        if self.current is not None:
            self.pooled = self._hold(1, self.current if self.pooled is None else self.pooled.merge(self.current))
            self.spread.add(self.current)
        self.most_uses = max(self.most_uses, self.uses)
        self.drop_batch()

    def remember(self) -> None:
        """Note the statistics found, once; a lazy layer has none before its first input."""
        if self.old is None:
            mean, var = self.buffers
            self.old = mean.clone(), var.clone()

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Return the running mean and variance."""
        return running(self.module)

    def write(self, mean: Tensor, var: Tensor) -> None:
        """Set the running statistics in place."""
        write(self.module, mean, var)

    def finish(self, stats: str) -> None:
        """Set the running statistics to those of all values; the variance as torch stores it, unbiased."""
        assert self.pooled is not None
        assert self.old is not None
        store(self.name, self.module, self.pooled.mean if stats == "both" else self.old[0], self.pooled.unbiased)


def _room(channels: int) -> Tensor:
    return torch.zeros(2, 2, channels, dtype=torch.float64, device="cpu")


class Observer:
    """Stand between each layer and its input for as long as it is attached."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.batch = 0
        self.reached: dict[str, Layer] = {}  # in this batch, in the order of first use
        self.sequences: dict[tuple[str, ...], None] = {}  # the orders that batches have had
        self.until: Layer | None = None  # where each forward pass may end

    def attached(self) -> AbstractContextManager[None]:
        """Replace each layer's forward on the instance, so that it sees what user hooks have made of the input."""
        return _attached(self)

    @contextmanager
    def one_batch(self) -> Iterator[None]:
        """Bracket one forward pass, whether or not it runs to its end."""
        self.reached = {}
        for layer in self.layers:
            layer.drop_batch()
        with suppress(Reached):
            yield

    def keep_batch(self) -> None:
        """Pool what the last forward pass gave."""
        self.sequences[tuple(self.reached)] = None
        for layer in self.layers:
            layer.keep_batch()

    def _watched(self, layer: Layer, own: Callable[..., Any] | None) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            # Looked up now: a lazy layer has another class by its first forward.
            run = own if own is not None else type(layer.module).forward.__get__(layer.module)
            plain = own is None and type(layer.module).forward in (AnyBatchNorm.forward, nn.SyncBatchNorm.forward)
            x = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
            if plain:
                self.see(layer, x)
                return run(*args, **kwargs)
            return self._overridden(layer, x, run, args, kwargs)

        return forward

    def _overridden(self, layer: Layer, x: Tensor | None, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a forward of the user's own, which may change the input before it normalises."""
        before = None
        if not layer.functional:
            before = layer.counted()
            self.see(layer, x)

        def on_call(actual: Tensor) -> None:
            if before is not None and not layer.functional:
                layer.functional = True
                layer.recount(before)
            self.see(layer, actual)

        with _BatchNormCalls(layer, on_call):
            return run(*args, **kwargs)

    def see(self, layer: Layer, x: Tensor | None) -> None:
        """Measure an input, and hand its statistics to the layer for normalising it."""
        layer.remember()
        channels = len(layer.buffers[0])
        # Inputs that the layer will refuse are left for it to refuse, in its own words.
        if layer.final or x is None or x.ndim < 2 or x.shape[1] != channels or not x.numel():
            return
        self.reached[layer.name] = layer
        seen = batch_moments(x)
        if not seen.finite:
            bad = int((~torch.isfinite(seen.mean + seen.m2)).sum())
            raise ValueError(
                f"Batch {self.batch} gives BatchNorm {layer.name!r} NaN or infinite inputs in {bad} of {channels} "
                "channels: check that batch and the layers before this one. The model was not changed."
            )
        layer.take(seen)
        if layer is self.until:
            raise Reached
        if seen.count > 1:
            layer.write(seen.mean, seen.biased)
        elif layer.pooled is not None and layer.pooled.count > 1:
            # Its own statistics would make a single value zero, and bias all layers after it.
            layer.write(layer.pooled.mean, layer.pooled.biased)
        elif layer.old is not None:
            layer.write(*layer.old)


@undoing()
def _attached(undo: Undo, observer: Observer) -> None:
    for layer in observer.layers:
        forward = vars(layer.module).get("forward")
        undo.add(partial(_set_forward, layer.module, forward))
        vars(layer.module)["forward"] = observer._watched(layer, forward)


def _set_forward(module: nn.Module, forward: Callable[..., Any] | None) -> None:
    if forward is not None:
        vars(module)["forward"] = forward
    else:
        vars(module).pop("forward", None)


class _BatchNormCalls(TorchFunctionMode):
    """Catch the calls of F.batch_norm that use a layer's running mean."""

    def __init__(self, layer: Layer, on_call: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.layer = layer
        self.on_call = on_call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        position = {F.batch_norm: 1, torch.batch_norm: 3}.get(func)
        if position is not None:
            mean = kwargs["running_mean"] if "running_mean" in kwargs else args[position]
            if mean is self.layer.module.running_mean:
                self.on_call(kwargs["input"] if "input" in kwargs else args[0])
        return func(*args, **kwargs)
