"""Batches of every kind, as a model takes them."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, IterableDataset

from unitvar._torch import FETCHING, with_own_workers
from unitvar.running.calling import device_of, moved

Forward = Callable[[Any, Any], Any]


def check_batches(batches: Any, *, repeatedly: bool) -> None:
    """Refuse what iterates, but not over batches, or only once if it has to do so repeatedly."""
    if isinstance(batches, Tensor):
        raise TypeError(
            f"batches is a tensor of shape {tuple(batches.shape)}, not an iterable of batches. If it is one batch, "
            "pass [batch]; if its first dimension counts batches, pass batches.unbind()."
        )
    if _is_pair(batches):
        raise TypeError(
            f"batches is a {type(batches).__name__} of {len(batches)} tensors of shapes {_shapes(batches)}: it looks "
            "like one batch of an input and its target. If it is, pass [batch], whose first element is the input. To "
            "run it otherwise, pass forward=lambda model, batch: model(...) too."
        )
    if isinstance(batches, Mapping):
        raise TypeError(
            f"batches is a {type(batches).__name__}, not an iterable of batches. If it is one batch, pass [batch]: its "
            "items go to the model as keyword arguments. To run it otherwise, pass "
            "forward=lambda model, batch: model(...) too."
        )
    if isinstance(batches, str) or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches is a {type(batches).__name__}, not an iterable of batches: pass a DataLoader or a list; "
            "a single batch goes in as [batch]."
        )
    if repeatedly and isinstance(batches, Iterator):
        raise ValueError(
            f"method='sequential' passes over the data once a layer, but batches is a {type(batches).__name__}, which "
            "can be read only once: pass a DataLoader or a list, or use method='one-pass'."
        )


def read(batches: Iterable[Any], limit: int | None) -> Iterator[Any]:
    """Yield batches, up to a limit. A StopIteration that a dataset raised is an error and not their end, as in PEP 479.

    Args:
        batches: any iterable.
        limit: how many to give at most; None for all.

    Returns:
        An iterator, which warns if there are fewer batches than their length says.
    """
    iterator, count = iter(batches), 0
    while limit is None or count < limit:
        try:
            batch = next(iterator)
        except StopIteration as stop:
            if _from_dataset(batches, stop):
                raise RuntimeError(
                    f"The dataset behind batches raised StopIteration after {count} batches, which looks like the "
                    f"end of the data{_of(batches)}. Raise another error in the dataset, such as IndexError."
                ) from stop
            if (length := _length(batches)) is not None and count < length:
                warnings.warn(
                    f"batches ended after {count} batches, but len(batches) is {length}: the statistics cover only "
                    "part of the data. Check whether something in it raises StopIteration. If its length is an "
                    "estimate, ignore this warning.",
                    stacklevel=2,
                )
            return
        yield batch
        count += 1


def _from_dataset(batches: Any, stop: StopIteration) -> bool:
    """Return True if a StopIteration is not the loader's own: it came from a worker, or while examples were fetched."""
    loader = getattr(batches, "loader", batches)
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False  # whose end is a StopIteration of the dataset
    if stop.args and "in DataLoader worker process" in str(stop.args[0]):
        return True
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(stop.__traceback__))
    return any(name.startswith(FETCHING) for name in modules)


def _of(batches: Any) -> str:
    length = _length(batches)
    return "" if length is None else f", although len(batches) is {length}"


def _length(batches: Any) -> int | None:
    """Return the number of batches where it is known; that of an IterableDataset is an estimate."""
    if isinstance(getattr(getattr(batches, "loader", batches), "dataset", None), IterableDataset):
        return None
    try:
        return len(batches)
    except (TypeError, NotImplementedError):
        return None


def _is_pair(batches: Any) -> bool:
    """Return True for an input and its target, and maybe weights: as many of each, and no batch like the first.

    Two batches of images or sequences may differ in size. Two of plain features may not, nor in dtype or dimensions.
    """
    if not isinstance(batches, (tuple, list)) or len(batches) not in (2, 3):
        return False
    if not all(isinstance(t, Tensor) and t.dim() and len(t) == len(batches[0]) for t in batches):
        return False
    return any(_is_other(batches[0], t) for t in batches[1:])


def _is_other(x: Tensor, y: Tensor) -> bool:
    """Return True if no model that takes one tensor takes the other."""
    features = x.dim() == y.dim() == 2 and x.is_floating_point()
    return (
        x.dim() != y.dim() or x.is_floating_point() != y.is_floating_point() or (features and x.shape[1] != y.shape[1])
    )


def _shapes(batches: Any) -> str:
    *first, last = (str(tuple(t.shape)) for t in batches)
    return f"{', '.join(first)} and {last}"


@contextmanager
def undisturbed(batches: Iterable[Any]) -> Iterator[Iterable[Any]]:
    """Read a DataLoader without disturbing a training loop that is in the middle of it.

    A second pass would restart persistent workers under the loop, and draw from the generators that shuffle for it.

    Args:
        batches: any iterable; all but a DataLoader is read as it is.

    Returns:
        A context manager that gives what to iterate over: every pass then gives the same batches.
    """
    if not isinstance(batches, DataLoader):
        yield batches
        return
    holders = (batches, batches.sampler, batches.batch_sampler, getattr(batches.batch_sampler, "sampler", None))
    found = (getattr(holder, "generator", None) for holder in holders)
    generators = {id(generator): generator for generator in found if isinstance(generator, torch.Generator)}.values()
    start = [(generator, generator.get_state()) for generator in generators]
    try:
        yield _Loader(batches, start)
    finally:
        _restart(start)


class _Loader:
    """A DataLoader that is read from the same state each time, by workers of its own."""

    def __init__(self, loader: DataLoader[Any], start: list[tuple[torch.Generator, Tensor]]) -> None:
        self.loader, self._start = with_own_workers(loader), start

    def __iter__(self) -> Iterator[Any]:
        _restart(self._start)
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


def _restart(start: list[tuple[torch.Generator, Tensor]]) -> None:
    for generator, state in start:
        generator.set_state(state)


def apply(model: nn.Module, batch: Any, index: int, forward: Forward | None) -> Any:
    """Run one batch: a tensor, the first element of a tuple or list, a dict as keyword arguments, or your own way.

    Args:
        model: the inner model.
        batch: what the iterable gave; its tensors are moved to the model's device.
        index: the position of the batch, for errors.
        forward: ``forward(model, batch)``, or None.

    Returns:
        Whatever the model returns.
    """
    batch = moved(batch, device_of(model))
    if forward is not None:
        return forward(model, batch)
    if isinstance(batch, (tuple, list)) and not isinstance(batch, PackedSequence):
        if not batch:
            raise TypeError(f"Batch {index} is an empty {type(batch).__name__}: its first element should be the input.")
        batch = batch[0]
    if isinstance(batch, Mapping):
        return _by_keyword(model, batch, index)
    if isinstance(batch, (Tensor, PackedSequence)):
        return model(batch)
    raise TypeError(
        f"Batch {index} holds a {type(batch).__name__}, not a tensor, a tuple or list that starts with one, or a dict "
        "of keyword arguments: say how to run it with forward=lambda model, batch: model(...)."
    )


def _by_keyword(model: nn.Module, batch: Mapping[str, Any], index: int) -> Any:
    try:
        takes = inspect.signature(model.forward)
    except (TypeError, ValueError):  # a scripted one, say
        return model(**batch)
    try:
        takes.bind(**batch)
    except TypeError as error:
        keys = ", ".join(map(repr, batch))
        raise TypeError(
            f"Batch {index} is a dict with the keys {keys}, which the model does not take as keyword arguments "
            f"({error}). Say how to run it: forward=lambda model, batch: model(batch[{next(iter(batch), '')!r}])."
        ) from error
    return model(**batch)
