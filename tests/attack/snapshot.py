"""All that a call must leave as it was, read into values that can be compared."""

import logging
from collections.abc import Iterator
from typing import Any

import numpy.random  # noqa: F401  # whose state is a part of the random state once it is imported
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.nn.parameter import is_lazy
from torch.overrides import _len_torch_function_stack
from torch.utils._python_dispatch import _disable_current_modes, _len_torch_dispatch_stack

from unitvar import _torch
from unitvar.flow.meter import is_measuring
from unitvar.running.randomness import RandomState, owned_generators

__all__ = ["differences", "process_state", "snapshot"]


def snapshot(model: nn.Module) -> dict[str, object]:
    """Read a model, the random state and torch's switches; equal dicts mean that nothing has changed by a bit."""
    process = _of_process(model)
    with _disable_current_modes():  # one that a fault has left would see what is read here
        return {**dict(_of_model(model)), **process}


def differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Name what differs."""
    return sorted(key for key in before.keys() | after.keys() if before.get(key, "") != after.get(key, ""))


def _of_model(model: nn.Module) -> Iterator[tuple[str, object]]:
    for name, module in model.named_modules():
        yield f"{name}: class", type(module)
        yield f"{name}: training", getattr(module, "training", None)
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers", "_modules"):
                yield f"{name}.{key}", _attribute(value, 3)
        yield f"{name}: order of attributes", list(vars(module))
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *_buffers(model)):
        yield f"{name}: identity", (id(tensor), type(tensor), tensor.requires_grad)
        if is_lazy(tensor):
            continue
        yield f"{name}: bits", _bits(tensor)
        if tensor.layout == torch.strided:
            yield f"{name}: memory", (_torch.storage_of(tensor), tensor.stride(), tensor.storage_offset())
        grad = tensor.grad if tensor.is_leaf else None
        yield f"{name}: gradient", None if grad is None else (id(grad), _bits(grad))
        for table in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            yield f"{name}: {table}", list((getattr(tensor, table, None) or {}).values())


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                yield f"{name}.{key}", buffer


def _attribute(value: object, depth: int) -> object:
    """Give an attribute's identity, and what is in containers."""
    if isinstance(value, Tensor) and not is_lazy(value):
        return id(value), _bits(value)
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if depth and isinstance(value, dict):
        return id(value), [(k, _attribute(v, depth - 1)) for k, v in value.items()]
    if depth and isinstance(value, (list, tuple)):
        return id(value), [_attribute(v, depth - 1) for v in value]
    if isinstance(value, set):
        return id(value), sorted(map(repr, value))
    return id(value)


def _bits(tensor: Tensor) -> object:
    if tensor.is_meta:
        return tuple(tensor.shape)
    dense = tensor.detach()  # and copied below: numpy makes memory that cannot be resized
    dense = dense.to_dense() if dense.layout != torch.strided else dense
    if hasattr(dense, "to_local"):
        dense = dense.to_local()
    return tuple(dense.shape), dense.dtype, bytes(dense.clone().contiguous().flatten().view(torch.uint8).cpu().numpy())


def _of_process(model: nn.Module) -> dict[str, Any]:
    state = RandomState.read(owned_generators(model))
    numbers = bytes(state.torch_cpu.numpy()), state.python, _plain(state.numpy), [_plain(s) for _, s in state.owned]
    return {"random state": numbers, **process_state()}


def process_state() -> dict[str, object]:
    """Read what belongs to the process or the thread, but for random numbers."""
    return {
        "gradients on": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "dispatch modes": _len_torch_dispatch_stack(),
        "function modes": _len_torch_function_stack(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "attention's fast path": torch.backends.mha.get_fastpath_enabled(),
        "oneDNN": _torch.mkldnn_enabled(),
        "cuDNN": torch.backends.cudnn.enabled,
        "logger": logging.getLogger(_torch.FAKE_LOGGER).disabled,
        "global hooks": [len(getattr(hooks, key)) for key in sorted(vars(hooks)) if key.startswith("_global_")
                         and isinstance(getattr(hooks, key), dict)],
        "measuring": is_measuring(),
        "jit": torch._C._get_graph_executor_optimize(),
    }  # fmt: skip


def _plain(state: Any) -> object:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, (tuple, list)):
        return [_plain(value) for value in state]
    return bytes(state.tobytes()) if hasattr(state, "tobytes") else bytes(state.numpy()) if isinstance(
        state, Tensor
    ) else state  # fmt: skip
