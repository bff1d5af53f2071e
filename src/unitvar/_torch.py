"""Every private name of torch that the library uses, behind a public one.

Each entry says why no public name would do, and on which versions it was tried. A new version of torch is checked here,
and nowhere else.
"""

from __future__ import annotations

import sys
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import DataLoader

__all__ = [
    "FAKE_LOGGER", "FETCHING", "WRAPPERS", "AnyBatchNorm", "FakeTensor", "FakeTensorMode", "TorchDispatchMode",
    "compiled_core", "cudnn_enabled", "decomposable", "default_store", "dispatch_modes", "forward_hooks",
    "fsdp_gathered", "fsdp_lazy_init", "fsdp_parameter_groups", "gradient_hooks", "has_hooks", "in_backward", "is_lazy",
    "may_compile", "mkldnn_enabled", "overload_name", "own_buffers", "own_parameters", "schema_of", "set_cudnn_enabled",
    "set_mkldnn_enabled", "storage_of", "tensor_hooks", "tree_flatten", "tree_unflatten", "version_of",
    "with_own_workers", "without_modes",
]  # fmt: skip

# FakeTensor, FakeTensorMode: tensors without data that keep their device; the public meta device forgets it. Tried on
# 2.13.
# TorchDispatchMode: the one way to see every op of a run, whoever calls it; torch documents it, but exports no public
# name. Tried on 2.13.
# is_lazy: the test for parameters and buffers without a shape; torch exports the classes only. Tried on 2.13.

# tree_flatten, tree_unflatten: arguments and results of models as lists of tensors; other libraries register their own
# containers there. torch exports no public name. Tried on 2.13.

# The common class of BatchNorm1d, 2d, 3d, SyncBatchNorm and their lazy forms, which has no public name. Tried on 2.13.
AnyBatchNorm = _BatchNorm

# The logger that reports ops which fail without data. Loggers are found by the name of their module. Tried on 2.13.
FAKE_LOGGER = "torch._subclasses.fake_tensor"

# What torch.compile and activation checkpointing put into the names of the modules that they wrap; torch's own code has
# the strings, and exports no names for them. Tried on 2.13.
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


def with_own_workers(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Copy a DataLoader so that iterating over the copy leaves the workers of the original alone.

    ``_iterator`` is where a DataLoader keeps persistent workers, which a second ``iter()`` resets. Tried on 2.13.
    """
    own = copy(loader)
    own._iterator = None
    return own


# The modules in which a DataLoader fetches and collates examples, for telling its own end from a dataset's. Tried on
# 2.13.
FETCHING = "torch.utils.data._utils."


def storage_of(tensor: Tensor) -> int:
    """Identify the memory that a tensor views.

    ``_cdata`` is the address of the storage itself: ``data_ptr()`` is 0 for tensors without data. Tried on 2.13.
    """
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse tensors and the like have none
        return -id(tensor)


def version_of(tensor: Tensor) -> int:
    """Count the writes to a tensor, 0 for inference tensors.

    ``_version`` is autograd's own counter, which has no public name. Tried on 2.13.
    """
    return 0 if tensor.is_inference() else tensor._version


def own_parameters(module: nn.Module) -> Any:
    """Return a module's own table of parameters, a dict or what TorchScript has for one.

    ``_parameters`` can be written to, and shows a parameter that two names share twice. Tried on 2.13.
    """
    return module._parameters


def own_buffers(module: nn.Module) -> Any:
    """Return a module's own table of buffers, a dict or what TorchScript has for one.

    Writing to ``_buffers`` replaces a buffer without the checks of ``setattr``. Tried on 2.13.
    """
    return module._buffers


def has_hooks(module: nn.Module) -> bool:
    """Return True if a module's forward has hooks.

    ``_forward_hooks`` and ``_forward_pre_hooks`` have no public getter. Tried on 2.13.
    """
    return bool(module._forward_hooks or module._forward_pre_hooks)


def forward_hooks(module: nn.Module) -> tuple[Any, Any]:
    """Return the tables of hooks that run before and after a module's forward.

    ``_forward_pre_hooks`` and ``_forward_hooks`` have no public getter, and hooks can only be added. Tried on 2.13.
    """
    return module._forward_pre_hooks, module._forward_hooks


def compiled_core(model: nn.Module) -> nn.Module | None:
    """Return what ``torch.compile`` wrapped, or None if it wrapped nothing.

    ``_orig_mod`` is how ``OptimizedModule`` calls the module inside; its class is private, too. Tried on 2.13.
    """
    if "_orig_mod" not in model._modules:
        return None
    core = model._modules["_orig_mod"]
    return core if isinstance(core, nn.Module) else None


def may_compile() -> bool:
    """Return True if anything in this process can be compiled.

    ``torch._dynamo`` is imported by the first ``torch.compile``; importing it costs seconds. Tried on 2.13.
    """
    return "torch._dynamo" in sys.modules


def gradient_hooks(parameter: Tensor) -> Any:
    """Return the table of hooks that wait for a gradient to be accumulated, None if there are none.

    ``_post_accumulate_grad_hooks`` has no public getter, and hooks can only be added. Tried on 2.13.
    """
    return getattr(parameter, "_post_accumulate_grad_hooks", None) or None


def tensor_hooks(tensor: Tensor) -> Any:
    """Return the table of hooks that see a tensor's gradient, None if there is none.

    ``_backward_hooks`` has no public getter, and hooks can only be added. Tried on 2.13.
    """
    return tensor._backward_hooks


def in_backward() -> bool:
    """Return True inside a backward pass.

    ``_current_graph_task_id`` is what torch's own checkpoints ask; there is no public name. Tried on 2.13.
    """
    return torch._C._current_graph_task_id() != -1


def default_store() -> Any:
    """Return the store through which the ranks of the default process group found each other.

    ``_get_default_store`` is the one way to it that does not depend on how the group was made. Tried on 2.13.
    """
    return torch.distributed.distributed_c10d._get_default_store()


def dispatch_modes() -> list[Any]:
    """Return the dispatch modes that this thread is in, the innermost last.

    ``_get_current_dispatch_mode_stack`` tells whether an interrupt has left one entered. Tried on 2.13.
    """
    return list(_get_current_dispatch_mode_stack())


def mkldnn_enabled() -> bool:
    """Return whether oneDNN's kernels are used.

    ``torch.backends.mkldnn.flags`` is public, but sets three other flags along with this one. Tried on 2.13.
    """
    return bool(torch._C._get_mkldnn_enabled())


def set_mkldnn_enabled(enabled: bool) -> None:
    """Switch oneDNN's kernels on or off; see :func:`mkldnn_enabled`. Tried on 2.13."""
    torch._C._set_mkldnn_enabled(enabled)


def cudnn_enabled() -> bool:
    """Return whether cuDNN's kernels are used; see :func:`set_cudnn_enabled`. Tried on 2.13."""
    return bool(torch._C._get_cudnn_enabled())


def set_cudnn_enabled(enabled: bool) -> None:
    """Switch cuDNN's kernels on or off.

    ``torch.backends.cudnn.enabled`` cannot be set after ``torch.backends.disable_global_flags()``. Tried on 2.13.
    """
    torch._C._set_cudnn_enabled(enabled)


def schema_of(func: Any) -> Any:
    """Return an op's schema: its arguments, and which of them it writes to or gives views of.

    ``_schema`` of an ``OpOverload`` is the one place that says so. Tried on 2.13.
    """
    return func._schema


def overload_name(func: Any) -> str:
    """Return an overload's name, ``Tensor`` in ``aten.add.Tensor``; "" for what is no ``OpOverload``.

    ``_overloadname`` has no public getter. Tried on 2.13.
    """
    return str(getattr(func, "_overloadname", ""))


def decomposable(func: Any) -> bool:
    """Return True if an op can be taken apart by ``func.decompose``.

    ``_can_decompose`` is the test that belongs to it. Tried on 2.13.
    """
    return bool(func._can_decompose())


def fsdp_lazy_init(root: Any) -> None:
    """Do for an FSDP2 root what its first forward pass would do.

    That pass would also decide whether the root is sharded again. There is no public call. Tried on 2.13.
    """
    root._get_fsdp_state()._lazy_init()


def fsdp_parameter_groups(shard: Any) -> list[Any]:
    """Return the groups in which an FSDP2 module gathers its parameters.

    They hold ``post_forward_mesh_info``, which has a public setter, but no getter. Tried on 2.13.
    """
    return list(shard._get_fsdp_state()._fsdp_param_groups)


def fsdp_gathered(parameter: Any) -> Any:
    """Return what FSDP2 gathers one of a group's ``fsdp_params`` into; None before it was gathered once.

    It is made once, and its memory comes and goes. The public ``unsharded_param`` is not there while it is gone.
    Tried on 2.13.
    """
    return getattr(parameter, "_unsharded_param", None)


def without_modes() -> Any:
    """Return a context in which no dispatch mode is active, as inside of ``torch.export``.

    A model is recorded with modes of its own, which must not be recorded in turn. There is no public call.
    Tried on 2.13.
    """
    return _disable_current_modes()
