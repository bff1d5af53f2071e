"""Tracing: fake tensors first, real ones where those fail."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.rnn import PackedSequence

from unitvar.batchnorm.feed import device_of, moved
from unitvar.batchnorm.preserve import Uninitialised, waits
from unitvar.trace.example import check_example, explained
from unitvar.trace.graph import Graph, Op, Value
from unitvar.trace.record import Recorder
from unitvar.trace.untouched import attributes_kept, data_kept, modules_tracked, plain_kept, untouched, values_kept

__all__ = ["call", "copied", "lazy_kept", "materialised", "trace"]


def trace(model: nn.Module, example: Any, *, training: bool = True, known: Callable[[Op], bool] | None = None) -> Graph:
    """Run a model once and return what it did as a graph.

    The run happens in train mode, whatever the model's flags, on tensors without data; where the model needs values
    (control flow on them, ``.item()``, numpy), on real ones. The model comes out as it went in.

    Args:
        model: any module.
        example: a tensor; a tuple of positional arguments; a dict of keyword arguments.
        training: the mode to run in.
        known: whether an op is understood; others are taken apart where they can be.

    Returns:
        The graph.

    Example:
        >>> graph = trace(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.zeros(2, 4))
        >>> [(node.name, node.path) for node in graph.nodes]
        [('aten.linear', '0'), ('aten.relu', '1')]
    """
    check_example(example)
    known = known or (lambda op: True)
    on_meta = device_of(model).type == "meta"
    with lazy_kept(model), untouched(model, training=training, attributes=False):
        if not on_meta:
            example = moved(example, device_of(model))
            materialised(model, example)
        fake: FakeTensorMode | str = "meta" if on_meta else FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with torch.inference_mode(), _quiet():
                return _record(model, example, fake, known, training)
        except Exception as error:
            if on_meta:
                raise explained(error, example) from error
        with values_kept(model):
            try:
                with torch.inference_mode():
                    return _record(model, example, None, known, training)
            except Exception as first:
                try:  # autograd inside forward works under no_grad, but not under inference_mode
                    with torch.no_grad():
                        return _record(model, example, None, known, training)
                except Exception:
                    raise explained(first, example) from first.__cause__


def _record(
    model: nn.Module, example: Any, fake: FakeTensorMode | str | None, known: Callable[[Op], bool], training: bool
) -> Graph:
    named: dict[int, tuple[Tensor, Value]] = {}
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            value = Value(kind, tensor, name=name)
            value.tensor = tensor
            named[id(tensor)] = tensor, value
    # Here, not around all attempts: a failed one must not hand stand-ins to the next.
    with attributes_kept(model), plain_kept(model), data_kept(model), modules_tracked(model) as stack:
        recorder = Recorder(named, lambda: stack[-1], known, fake)
        recorder.graph.training = training
        fed = _mapped(example, recorder.input)
        with recorder:
            result = call(model, fed)
        recorder.outputs(result)
    return recorder.graph


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging what fails without data: it works with data, or is raised then."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _mapped(example: Any, function: Callable[[Tensor, str], Tensor], name: str = "input") -> Any:
    """Replace every tensor of an example; the function is told what it is called, too."""
    if isinstance(example, Tensor):
        return function(example, name)
    if isinstance(example, PackedSequence):
        return PackedSequence(function(example.data, name), *example[1:])
    if isinstance(example, Mapping):
        made = copy.copy(example) if isinstance(example, MutableMapping) else dict(example)
        for key, value in example.items():
            made[key] = _mapped(value, function, str(key))
        return made
    if isinstance(example, tuple) and hasattr(example, "_fields"):
        return type(example)(*(_mapped(v, function, name) for v in example))
    if isinstance(example, (tuple, list)):
        return type(example)(_mapped(v, function, f"{name}{i}") for i, v in enumerate(example))
    return example


def call(model: nn.Module, example: Any) -> Any:
    """Run a model on a tensor, on a tuple of positional arguments or on a dict of keyword arguments."""
    if isinstance(example, Mapping):
        return model(**example)
    if isinstance(example, tuple) and not hasattr(example, "_fields"):
        return model(*example)
    return model(example)


def copied(batch: Any) -> Any:
    """Copy the tensors of an example, cut off from whatever computed them: a model may write to its input."""
    return _mapped(batch, lambda t, _: t.detach().clone().requires_grad_(t.requires_grad))


def materialised(model: nn.Module, example: Any) -> None:
    """Run a model with lazy layers once, so that they learn their shapes."""
    if any(waits(module) for module in model.modules()):
        with torch.no_grad(), values_kept(model):
            try:
                call(model, copied(example))
            except Exception as error:
                raise explained(error, example) from error.__cause__


@contextmanager
def lazy_kept(model: nn.Module) -> Iterator[None]:
    """Make lazy layers lazy again."""
    saved = [Uninitialised(module) for module in model.modules() if waits(module)]
    with ExitStack() as stack:
        for module in saved:
            stack.callback(module.restore)
        yield
