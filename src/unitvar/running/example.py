"""Examples: what a model can be run on, and what to do about one that it cannot be run on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader

from unitvar._torch import FakeTensor

__all__ = ["check_example", "check_numbers", "explained"]

_ALLOWED = "a tensor, a tuple of positional arguments or a dict of keyword arguments"
_TARGET = "If it came from a loader as (input, target), the target is not the model's input: pass batch[0]."


def check_example(example: Any) -> None:
    """Refuse what cannot be an example. Batches of other libraries, which a model may know, are let through."""
    remedy = _remedy(example)
    if remedy:
        plain = example is None or isinstance(example, (str, int, float))
        shown = repr(example) if plain else f"of type {type(example).__name__}"
        raise TypeError(f"The example is {shown}, not {_ALLOWED}. {remedy}")
    tensors = list(_tensors(example))
    if any(t.is_nested for t in tensors):
        raise TypeError(
            "The example is a nested tensor, whose rows differ in length. Pass them padded, "
            "x.to_padded_tensor(0.0), to a model that takes such a batch."
        )
    if tensors and not any(t.numel() for t in tensors):
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise ValueError(f"The example is empty: it has shape {shapes}. Pass a batch with at least one example.")


def check_numbers(example: Any) -> None:
    """Refuse NaN and infinity, but for the minus infinity of a mask that is added to scores."""
    for tensor in _tensors(example):
        if not tensor.is_floating_point() or tensor.is_meta or isinstance(tensor, FakeTensor):
            continue
        if math.isfinite(float(tensor.detach().sum())):  # one quick pass; a sum that overflows is looked at again
            continue
        finite = tensor.isfinite()
        if bool(finite.all()) or _is_mask(tensor, finite):
            continue
        raise ValueError(
            f"{int((~finite).sum())} of the example's {tensor.numel()} numbers are NaN or infinite; pass a batch of "
            "finite numbers."
        )


def _is_mask(tensor: Tensor, finite: Tensor) -> bool:
    """Return True for zeros and minus infinity, or any square matrices of finite numbers and minus infinity."""
    square = tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2]
    return bool((finite | (tensor == -math.inf)).all()) and (square or not bool(tensor[finite].any()))


def _remedy(example: Any) -> str:
    """Say what to pass instead; nothing, if the example may do."""
    if isinstance(example, list):
        return _TARGET
    if isinstance(example, DataLoader):
        return "Pass one batch's input: next(iter(loader))[0] where batches are (input, target)."
    if isinstance(example, np.ndarray):
        return "Pass torch.from_numpy(example), in the dtype of the model's weights."
    if isinstance(example, Iterator):
        return "Pass one item of it: next(example)."
    if example is None or isinstance(example, (str, bytes, int, float, complex)):
        return "If forward really takes it, pass it in a tuple: (example,)."
    return ""


def _tensors(example: Any) -> Iterator[Tensor]:
    if isinstance(example, Tensor):
        yield example
    elif isinstance(example, PackedSequence):
        yield example.data
    elif isinstance(example, (tuple, list)):
        for value in example:
            yield from _tensors(value)
    elif isinstance(example, Mapping):
        yield from _tensors(tuple(example.values()))


def explained(error: Exception, example: Any, model: nn.Module) -> Exception:
    """Add what the example may have to do with an error of the model."""
    if isinstance(example, Mapping) and isinstance(error, TypeError):
        keys = ", ".join(map(repr, example))
        remedy = "If forward takes one dict, pass it in a tuple: (example,)."
        return _clearer(f"The model rejected the example's keys {keys} as keyword arguments: {error}. {remedy}", error)
    if isinstance(example, tuple) and len(example) > 1 and not hasattr(example, "_fields"):
        text = f"The model rejected the example's {len(example)} elements as positional arguments: {error}. {_TARGET}"
        return _clearer(text, error)
    tensors = list(_tensors(example))
    shown = ", ".join(f"{str(t.dtype).removeprefix('torch.')} of shape {tuple(t.shape)}" for t in tensors)
    remedy = _other_dtype(error, tensors, model)
    if remedy:
        return _clearer(f"The model cannot run on the example, {shown}: {error}. {remedy}", error)
    if isinstance(error, IndexError) and "index out of range in self" in str(error):  # as an embedding says it
        remedy = _tables(tensors, model)
        return _clearer(f"The model cannot run on the example, {shown}: {error}. {remedy}", error, ValueError)
    if shown:
        error.add_note(f"The model failed on the example, {shown}. Pass a batch that model(batch) accepts.")
    return error


def _other_dtype(error: Exception, tensors: list[Tensor], model: nn.Module) -> str:
    """Say what to do about a dtype that the model does not take; "" if that is not what an error is about."""
    if not isinstance(error, (RuntimeError, TypeError)) or not re.search(r"\b(d?types?|dtype)\b", str(error)):
        return ""
    floats = any(t.is_floating_point() for t in tensors)
    if floats and "indices" in str(error):
        return "The model looks its input up in an embedding: pass integers, example.long()."
    wanted = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if wanted is not None and any(t.dtype != wanted and t.dtype != torch.bool for t in tensors):
        return f"The model's weights are {wanted}: pass example.to({wanted})."
    return ""


def _tables(tensors: list[Tensor], model: nn.Module) -> str:
    """Say how many rows the embeddings of a model have, the shortest first, beside what the example may look up."""
    rows = {name: m.num_embeddings for name, m in model.named_modules() if isinstance(m, nn.Embedding)}
    if not rows:
        return "An index is out of range of an embedding."
    shortest = sorted(rows, key=lambda name: rows[name])[:3]
    sizes = ", ".join(f"{name or 'the model'!r} has {rows[name]} rows" for name in shortest)
    whole = [t for t in tensors if not t.is_floating_point() and not t.is_complex() and t.numel()]
    largest = f", and the example's largest number is {max(int(t.max()) for t in whole)}" if whole else ""
    return f"An index is out of range of an embedding: {sizes}{largest}."


def _clearer(text: str, error: Exception, kind: type[Exception] = TypeError) -> Exception:
    clearer = kind(text)
    clearer.__cause__ = error
    return clearer
