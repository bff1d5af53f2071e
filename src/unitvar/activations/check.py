"""Whether a callable is an activation: elementwise, deterministic, real, of the same shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["as_function", "check_elementwise", "evaluate", "heights"]

_REMEDY = "An activation maps a 1-D float64 tensor to one of the same shape, each element by itself."


class _Function:
    """A callable on float64 tensors that still knows what to call itself in an error."""

    def __init__(self, call: Callable[[Tensor], object], label: str) -> None:
        self.call = call
        self.label = label

    def __call__(self, x: Tensor) -> object:
        return self.call(x)


def as_function(fn: nn.Module | Callable[[Tensor], Tensor]) -> _Function:
    """Return fn as a function of a float64 tensor; a module's parameters are converted, the module is left alone."""
    if not isinstance(fn, nn.Module):
        return _Function(fn, getattr(fn, "__name__", None) or repr(fn))
    label = repr(fn).partition("\n")[0]
    if isinstance(fn, nn.PReLU) and fn.num_parameters > 1:
        raise ValueError(
            f"{label} has one slope per channel, so it is not one function; pass one channel at a time: "
            "nn.LeakyReLU(float(prelu.weight[i]))."
        )
    # Clones, so that a module that writes to its buffers writes to ours.
    state = {
        name: tensor.detach().to("cpu", torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()
        for name, tensor in [*fn.named_parameters(), *fn.named_buffers()]
        if not tensor.is_meta
    }
    return _Function(lambda x: torch.func.functional_call(fn, state, (x,)), label)


def evaluate(fn: _Function, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return f(x) in the dtype f chose, and f'(x) as autograd computes it."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = x.clone().requires_grad_()
        y = _call(fn, leaf.clone())  # a clone may be overwritten: nn.ReLU(inplace=True)
        if not y.requires_grad:  # a step: autograd sees no slope, and neither does training
            return y.detach(), torch.zeros_like(x)
        (slope,) = torch.autograd.grad(y.sum(), leaf, materialize_grads=True)
    return y.detach(), slope


def heights(fn: _Function, x: Tensor) -> Tensor:
    """Return f(x) alone, at a third of the cost or less; x may be overwritten."""
    with torch.inference_mode(False), torch.no_grad():
        return _call(fn, x).detach()


def _call(fn: _Function, x: Tensor) -> Tensor:
    shape = x.shape
    try:
        y = fn(x)
    except Exception as error:
        raise ValueError(f"{fn.label} failed on a 1-D float64 tensor: {error} {_REMEDY}") from error
    if not isinstance(y, Tensor):
        raise TypeError(f"{fn.label} returned {type(y).__name__}, not a tensor. {_REMEDY}")
    if y.shape != shape:
        raise ValueError(f"{fn.label} turned shape {tuple(shape)} into {tuple(y.shape)}. {_REMEDY}")
    if not y.is_floating_point():
        raise TypeError(f"{fn.label} returned {y.dtype}, not a floating-point tensor. {_REMEDY}")
    return y


def check_elementwise(fn: _Function, mean: float, std: float) -> None:
    """Raise ValueError if fn is random or if an element's value depends on another element or on its position."""
    # Neither sorted nor symmetric about the mean, so that a sort or a maximum of |x| cannot hide.
    order = (torch.arange(64, device="cpu") * 29 + 7) % 64
    x = mean + max(std, 1.0) * torch.linspace(-3, 3.1, 64, dtype=torch.float64, device="cpu")[order]
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        y, _ = evaluate(fn, x)
        again, _ = evaluate(fn, x)
        drew = not torch.equal(before, torch.get_rng_state())
    if drew or not torch.equal(y.nan_to_num(), again.nan_to_num()):
        raise ValueError(f"{fn.label} is random; switch it to eval mode with .eval(), or pass its deterministic form.")
    # Two halves, reversed: a maximum or a mean over all elements shows in one of them, a position in both.
    tolerance = 1e4 * torch.finfo(y.dtype).eps
    for half in (torch.arange(0, 64, 2, device="cpu").flip(0), torch.arange(1, 64, 2, device="cpu").flip(0)):
        part, _ = evaluate(fn, x[half])
        if not torch.allclose(part, y[half], rtol=tolerance, atol=tolerance, equal_nan=True):
            raise ValueError(f"{fn.label} is not elementwise: f(x)[i] depends on more than x[i]. {_REMEDY}")
