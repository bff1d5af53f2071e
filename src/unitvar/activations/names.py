"""The activations that have a name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["NAMES", "canonical", "resolve"]


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


NAMES: dict[str, nn.Module | Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "atan": torch.atan,
    "celu": nn.CELU(),
    "cos": torch.cos,
    "elu": nn.ELU(),
    "erf": torch.erf,
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "hardshrink": nn.Hardshrink(),
    "hardsigmoid": nn.Hardsigmoid(),
    "hardswish": nn.Hardswish(),
    "hardtanh": nn.Hardtanh(),
    "identity": nn.Identity(),
    "leaky_relu": nn.LeakyReLU(),
    "linear": nn.Identity(),
    "logsigmoid": nn.LogSigmoid(),
    "mish": nn.Mish(),
    "prelu": nn.PReLU(device="cpu", dtype=torch.float64),
    "quick_gelu": _quick_gelu,
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "relu_squared": _relu_squared,
    "selu": nn.SELU(),
    "sigmoid": nn.Sigmoid(),
    "silu": nn.SiLU(),
    "sin": torch.sin,
    "softplus": nn.Softplus(),
    "softshrink": nn.Softshrink(),
    "softsign": nn.Softsign(),
    "square": torch.square,
    "swish": nn.SiLU(),
    "tanh": nn.Tanh(),
    "tanhshrink": nn.Tanhshrink(),
}
"""Every name that `activation_moments` takes, with PyTorch's default parameters."""


def _squeeze(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


# "LeakyReLU", "leaky-relu" and "leaky_relu" are one name.
_SPELLINGS = {_squeeze(name): name for name in NAMES}

# torch.tanh, F.tanh and torch.Tensor.tanh are "tanh", cached like the name. F.linear and F.prelu take a weight.
_FUNCTIONS: dict[object, str] = {
    getattr(space, name): name
    for name in NAMES
    if name not in ("linear", "prelu")
    for space in (torch, torch.Tensor, F)
    if hasattr(space, name)
}


def canonical(name: str) -> str:
    """Return the key of NAMES that a spelling means; raise ValueError with the nearest names otherwise."""
    try:
        return _SPELLINGS[_squeeze(name)]
    except KeyError:
        pass
    if hasattr(F, name):
        hint = f"torch.nn.functional.{name} is not elementwise, is random or takes more arguments"
    else:
        near = difflib.get_close_matches(_squeeze(name), _SPELLINGS, n=3, cutoff=0.5)
        hint = "did you mean " + " or ".join(repr(_SPELLINGS[n]) for n in near) if near else "no name is similar to it"
    raise ValueError(
        f"{name!r} is not a known activation: {hint}. Known: {', '.join(NAMES)}; anything else can be passed as a "
        "callable, or None if unknown."
    )


def resolve(fn: object) -> str | nn.Module | Callable[[Tensor], Tensor]:
    """Return the name of a known activation, or the module or callable itself; raise TypeError for anything else."""
    if isinstance(fn, str):
        return canonical(fn)
    if isinstance(fn, nn.Module):
        return fn
    if isinstance(fn, type) and issubclass(fn, nn.Module):
        raise TypeError(f"{fn.__name__} is a class; pass an instance, {fn.__name__}().")
    if isinstance(fn, type) and issubclass(fn, torch.autograd.Function):
        return fn.apply
    if callable(fn):
        try:
            return _FUNCTIONS.get(fn, fn)
        except TypeError:  # a callable object that cannot be hashed
            return fn
    raise TypeError(
        f"{fn!r} is not an activation; pass a name such as 'relu', an nn.Module, an elementwise callable, or None."
    )
