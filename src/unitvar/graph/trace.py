"""Tracing: fake tensors first, real ones where those fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import FakeTensorMode
from unitvar.graph.graph import Graph, Value
from unitvar.graph.op import Op
from unitvar.graph.record import Recorder
from unitvar.running.attributes import attributes_kept
from unitvar.running.calling import call, device_of, mapped, moved
from unitvar.running.example import check_example, explained
from unitvar.running.lazy import lazy_kept, materialise
from unitvar.running.modules import modules_tracked
from unitvar.running.restore import plain_and_data_kept, values_kept
from unitvar.running.switches import without_fake_logs
from unitvar.running.untouched import untouched

__all__ = ["trace"]


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
            materialise(model, example)
        fake: FakeTensorMode | str = "meta" if on_meta else FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with torch.inference_mode(), without_fake_logs():
                return _record(model, example, fake, known, training)
        except Exception as error:
            if on_meta:
                raise explained(error, example, model) from error
        with values_kept(model):
            try:
                with torch.inference_mode():
                    return _record(model, example, None, known, training)
            except Exception as first:
                try:  # autograd inside forward works under no_grad, but not under inference_mode
                    with torch.no_grad():
                        return _record(model, example, None, known, training)
                except Exception:
                    raise explained(first, example, model) from first.__cause__


def _record(
    model: nn.Module, example: Any, fake: FakeTensorMode | str | None, known: Callable[[Op], bool], training: bool
) -> Graph:
    owned: dict[int, tuple[Tensor, Value]] = {}
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            value = Value(kind, tensor, name=name)
            value.tensor = tensor
            owned[id(tensor)] = tensor, value
    # Here, not around all attempts: a failed one must not hand stand-ins to the next.
    with attributes_kept(model), plain_and_data_kept(model), modules_tracked(model) as stack:
        recorder = Recorder(owned, lambda: stack[-1], known, fake)
        recorder.graph.training = training
        fed = mapped(example, recorder.input)
        with recorder:
            result = call(model, fed)
        recorder.outputs(result)
    return recorder.graph
