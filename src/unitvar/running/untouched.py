"""Running a model without leaving a mark on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from unitvar.running.attributes import attributes_kept
from unitvar.running.lazy import lazy_on_failure
from unitvar.running.modes import evaluating, in_mode
from unitvar.running.randomness import RandomState, random_state_kept
from unitvar.running.restore import buffers_kept, memory_kept
from unitvar.running.switches import attention_in_parts, uncompiled

__all__ = ["preserved", "untouched"]


@contextmanager
def untouched(model: nn.Module, *, training: bool = True, attributes: bool = True) -> Iterator[None]:
    """Run a block in one mode throughout, and put back flags, attributes and random state.

    Tensors that the block writes to come back by way of :func:`unitvar.running.restore.values_kept`.

    Args:
        model: the model that the block runs.
        training: the flag that every module has meanwhile.
        attributes: whether to put attributes back, too; lazy layers that should learn their shapes need them changed.

    Returns:
        A context manager.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(random_state_kept(model))
        if attributes:
            stack.enter_context(attributes_kept(model))
        stack.enter_context(in_mode(model, training))
        stack.enter_context(attention_in_parts())
        stack.enter_context(uncompiled())
        yield


@contextmanager
def preserved(model: nn.Module) -> Iterator[RandomState]:
    """Run a block in evaluation mode without gradients, and put back all that it changes.

    Buffers keep identity and bits, parameters their storage; training flags and random state return. Lazy layers that
    the block initialises stay initialised if it succeeds, and are as they were if it fails.

    Args:
        model: the model that the block runs.

    Returns:
        A context manager that gives the random state on entry.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # the copies made here outlive it
        start = stack.enter_context(random_state_kept(model))
        stack.enter_context(lazy_on_failure(model))
        stack.enter_context(buffers_kept(model))
        # Not of DTensors and the like, whose memory comes and goes.
        stack.enter_context(memory_kept(p for p in model.parameters() if type(p) is nn.Parameter))
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(uncompiled())
        yield start
