"""Parameters in a run: which of them, or which part of one, a tensor is a view of or was computed from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from unitvar._torch import is_lazy, storage_of
from unitvar.running.shards import local

__all__ = ["ParameterTracker", "View"]


class View(NamedTuple):
    """A part of a parameter, as strides describe it: one of packed q, k and v, a transpose, or all of it.

    Attributes:
        name: the parameter.
        size: the size of the part.
        stride: its strides.
        offset: where it begins in the parameter's storage.
    """

    name: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return the same part of a tensor that lies in memory as the parameter does."""
        return tensor.as_strided(self.size, self.stride, self.offset)


class _Owned(NamedTuple):
    start: int
    stop: int
    name: str


class _Made(NamedTuple):
    tensor: Tensor  # kept alive, so that its storage stays its own
    source: Tensor
    name: str


class ParameterTracker:
    """Name the parameter behind a tensor.

    A view is known by its storage, and by its offset where several parameters share one. What an op computes from
    parameters alone, such as a cast or a normalised weight, is known once :meth:`derive` was told of it. A DTensor is
    known by the shard that this rank has of it.

    Args:
        named: names and tensors to follow, as from ``model.named_parameters()``.

    Example:
        >>> layer = torch.nn.Linear(4, 3)
        >>> tracker = ParameterTracker(layer.named_parameters())
        >>> tracker.owner(layer.weight.t())
        'weight'
        >>> half = layer.weight.half()
        >>> tracker.owner(half) is None
        True
        >>> tracker.derive([half], [layer.weight])
        >>> tracker.owner(half[:2])
        'weight'
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]] = ()) -> None:
        self._owned: dict[int, list[_Owned]] = {}
        self._made: dict[int, _Made] = {}
        self._sizes: dict[str, int] = {"": 0}
        for name, tensor in named:
            self.own(tensor, name)

    def own(self, tensor: Tensor, name: str) -> None:
        """Follow a tensor under a name; the name "" is for what is neither a parameter nor a signal, as buffers are.

        Tensors whose shape is not known yet are left out.
        """
        if is_lazy(tensor):
            return
        if name:
            self._sizes[name] = tensor.numel()
        tensor = local(tensor)
        start = _offset(tensor)
        self._owned.setdefault(storage_of(tensor), []).append(_Owned(start, start + _reach(tensor), name))

    def owner(self, tensor: Tensor) -> str | None:
        """Name the parameter that a tensor is a view of or was computed from; None if there is none."""
        tensor = local(tensor)
        storage = storage_of(tensor)
        owned = self._owned.get(storage)
        if owned is None:
            made = self._made.get(storage)
            return None if made is None else made.name
        offset = _offset(tensor)
        return next((part.name for part in owned if part.start <= offset < part.stop), None)

    def view(self, tensor: Tensor) -> View | None:
        """Say which part of which parameter a tensor is a view of; None if it is a view of none."""
        name = self.owner(tensor) if storage_of(tensor) in self._owned else None
        return None if name is None else View(name, tuple(tensor.shape), tensor.stride(), _offset(tensor))

    def derive(self, made: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
        """Follow what was computed from followed tensors alone, under the name of the largest parameter among them."""
        source = max(sources, key=lambda t: self._sizes[self.owner(t) or ""])
        for tensor in made:
            storage = storage_of(local(tensor))
            if storage not in self._owned:
                self._made[storage] = _Made(tensor, source, self.owner(source) or "")

    def chain(self, tensor: Tensor) -> list[Tensor]:
        """Return a tensor, the one it was computed from, and so on, down to a view of a parameter.

        Each has as many elements as the next. Nothing, if the tensor does not go back to a parameter in such steps.
        """
        chain = [tensor]
        while (storage := storage_of(chain[-1])) not in self._owned:
            made = self._made.get(storage)
            if made is None or made.tensor.numel() != chain[-1].numel():
                return []
            chain.append(made.source)
        return chain if self.owner(chain[-1]) is not None else []

    def forget(self) -> None:
        """Let go of everything that was computed."""
        self._made.clear()


def _offset(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) if tensor.layout == torch.strided else 0


def _reach(tensor: Tensor) -> int:
    """Count the elements of storage from a tensor's first to its last."""
    if tensor.layout != torch.strided or not tensor.numel() or tensor.is_contiguous():
        return max(1, tensor.numel())
    return 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
