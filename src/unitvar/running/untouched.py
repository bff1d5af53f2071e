"""Running a model without leaving a mark on it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unitvar.running.attributes import attributes_kept
from unitvar.running.held import plain_tensors
from unitvar.running.lazy import pending
from unitvar.running.modes import evaluating, in_mode
from unitvar.running.randomness import RandomState, random_state_kept
from unitvar.running.restore import buffers_kept, flags_kept, memory_kept, parameters_kept, plain_kept
from unitvar.running.switches import attention_in_parts, uncompiled
from unitvar.running.undo import Undo, undoing

__all__ = ["preserved", "untouched"]


@undoing()
def untouched(undo: Undo, model: nn.Module, *, training: bool = True, attributes: bool = True) -> None:
    """Run a block in one mode throughout, and put back flags, attributes and random state.

    Tensors that the block writes to come back by way of :func:`unitvar.running.restore.values_kept`.

    Args:
        undo: comes from the decorator.
        model: the model that the block runs.
        training: the flag that every module has meanwhile.
        attributes: whether to put attributes back, too; lazy layers that should learn their shapes need them changed.

    Returns:
        A context manager.
    """
    undo.enter(torch.inference_mode(False))
    undo.enter(random_state_kept(model))
    undo.enter(flags_kept(model))
    undo.add(torch.clear_autocast_cache)  # it holds casts of weights that were written to meanwhile
    if attributes:
        undo.enter(attributes_kept(model))
    undo.enter(in_mode(model, training))
    undo.enter(attention_in_parts())
    undo.enter(uncompiled())


@undoing()
def preserved(undo: Undo, model: nn.Module) -> RandomState:
    """Run a block in evaluation mode without gradients, and put back all that it changes.

    Parameters, buffers and plain tensor attributes keep identity, memory and bits; attributes, training flags and
    random state return. Lazy layers that the block initialises stay initialised.

    Args:
        undo: comes from the decorator.
        model: the model that the block runs.

    Returns:
        A context manager that gives the random state on entry.
    """
    undo.enter(torch.inference_mode(False))  # the copies made here outlive it
    start = undo.enter(random_state_kept(model))
    undo.enter(attributes_kept(model, but=pending(model)))
    undo.enter(flags_kept(model))
    undo.enter(buffers_kept(model))
    undo.enter(plain_kept(model))
    # Not of DTensors and the like, whose memory comes and goes.
    own = [p for p in model.parameters() if type(p) is nn.Parameter]
    undo.enter(parameters_kept(own))
    undo.enter(memory_kept((*own, *(b for b in model.buffers() if type(b) is Tensor), *plain_tensors(model))))
    undo.enter(evaluating(model))
    undo.enter(torch.no_grad())
    undo.enter(uncompiled())
    return start
