"""The module that integrates dropout out, and the functions that make and call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import tree_flatten, tree_unflatten, without_modes
from unitvar.expectation.program import Program, build
from unitvar.expectation.record import TENSOR, record, stochastic_modules
from unitvar.expectation.result import Expectation
from unitvar.expectation.uncertain import Uncertain
from unitvar.running.calling import check_real
from unitvar.running.lazy import uninitialised
from unitvar.running.modes import evaluating
from unitvar.running.modules import inner
from unitvar.running.shards import sharded

__all__ = ["Expected", "expect", "expected"]


class Expected(nn.Module):
    """A model whose forward pass returns the mean over dropout.

    The model runs in evaluation mode except for its dropouts, whose mean and variance are propagated. Its parameters
    are shared, and it keeps its own training flags: ``train()`` and ``eval()`` of this module do not reach it.

    The first call for each shape of input records the model, as ``torch.jit.trace`` would; later calls run what was
    recorded. A model that decides by the values of its input what to compute is recorded at every call.

    Args:
        model: any module.
        samples: draws for each op that has no rule; 0 takes 64.
        strict: whether to refuse such an op.

    Attributes:
        model: the model itself, without what DistributedDataParallel, DataParallel or torch.compile put around it.
    """

    def __init__(self, model: nn.Module, *, samples: int = 0, strict: bool = False) -> None:
        super().__init__()
        model = inner(model)  # whose forward has no collectives, and is not compiled
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 0:
            raise ValueError(
                f"samples={samples!r} is not an integer of 0 or more; 0 means 64 draws for each op without a rule."
            )
        self.model = model
        self.samples, self.strict = samples, strict
        self._programs: dict[Any, Program] = {}
        self._stochastic: frozenset[str] | None = None

    def train(self, mode: bool = True) -> Expected:
        """Set this module's own flag; the model keeps its flags, which do not matter here."""
        self.training = mode
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the mean of the model's output over dropout, in the structure that the model returns."""
        program, outputs = self._run(args, kwargs)
        return outputs if program is None else _assembled(program, [_mean(out) for out in outputs])

    def expect(self, *args: Any, **kwargs: Any) -> Expectation:
        """Return mean and variance of the model's output over dropout; see :func:`unitvar.expect`."""
        program, outputs = self._run(args, kwargs)
        if program is None:
            leaves, spec = tree_flatten(outputs)
            variances = [_no_variance(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            certain = [Uncertain(m, v) if isinstance(m, Tensor) else m for m, v in zip(leaves, variances, strict=True)]
            return Expectation(outputs, tree_unflatten(variances, spec), {}, {}, _logits(outputs, leaves, certain))
        mean = _assembled(program, [_mean(out) for out in outputs])
        var = _assembled(program, [_var(out) for out in outputs])
        whole = [out if isinstance(out, Uncertain) else Uncertain(out, _no_variance(out)) for out in outputs]
        means = [u.mean for u in whole]
        return Expectation(
            mean,
            var,
            dict(program.methods),
            dict(program.sampled),
            _logits(mean, [_mean(o) for o in outputs], whole, means),
        )

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Program | None, Any]:
        leaves, spec = tree_flatten((args, kwargs))
        key = _signature(leaves, spec)
        program = self._programs.get(key)
        if program is None:
            program = self._record(leaves, spec, key)
        if program.certain and not torch.compiler.is_compiling():
            with evaluating(self.model):  # to the bit what evaluation gives
                return None, self.model(*args, **kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        named = [_named(self, name) for name in program.names]
        with torch.autocast(_device_type(tensors), enabled=False):  # casts are part of what was recorded
            return program, program.module(*named, *tensors)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _record(self, leaves: list[Any], spec: Any, key: Any) -> Program:
        check_real(self.model)
        if sharded(self.model):
            raise ValueError(
                "The model's parameters are spread over ranks (FSDP2 or DTensor), but integrating dropout out needs "
                "whole weights: load get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) into "
                "a model that is not sharded."
            )
        lazy = uninitialised(self.model)
        if lazy:
            raise ValueError(f"{lazy[0]!r} has no shape yet. Run the model once first.")
        with without_modes():
            plain = [_solid(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            if self._stochastic is None:
                self._stochastic = stochastic_modules(self.model, plain, spec)
            recording = record(self.model, plain, spec, self._stochastic)
            program = build(recording, samples=self.samples, strict=self.strict)
            real = recording.graph.real
            recording.graph.release()
        if not real:
            self._programs[key] = program
        elif any(a is not b for a, b in zip(plain, leaves, strict=True)):
            raise ValueError(
                "The values of its input decide what the model computes, so it cannot be exported or compiled as a "
                "whole. Call it without export and compile."
            )
        return program

    def __getstate__(self) -> dict[str, Any]:
        """Leave recordings out of copies and pickles: they are made again."""
        return {**super().__getstate__(), "_programs": {}}  # type: ignore[no-untyped-call]


def expected(model: nn.Module, *, samples: int = 0, strict: bool = False) -> Expected:
    """Return a module whose forward pass gives the mean of a model's output over its dropout.

    See :func:`unitvar.expect` for what is computed. The module shares the model's parameters and leaves the model as it
    is. It can be moved, differentiated, compiled and exported.

    Args:
        model: any module.
        samples: draws for each op that has no rule; 0 takes 64.
        strict: whether to refuse such an op.

    Returns:
        The module; its ``expect(...)`` gives the variance, too.

    Example:
        >>> model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
        >>> mean = expected(model)(torch.ones(1, 4))
        >>> torch.equal(mean, model.eval()(torch.ones(1, 4)))
        True
    """
    return Expected(model, samples=samples, strict=strict)


def expect(model: nn.Module, *args: Any, samples: int = 0, strict: bool = False, **kwargs: Any) -> Expectation:
    r"""Return mean and variance of a model's output over its dropout, in one pass.

    Every element of every activation is a mean and a variance. The model runs in evaluation mode except its dropouts.
    A dense layer after dropout is exact: :math:`Var\, z_i = \sum_j w_{ij}^2\, Var\, x_j`. Pre-activations are taken as
    Gaussian, and what nonlinearities make of them as independent (Wang & Manning 2013; Gast & Roth 2018).

    Args:
        model: any module; :func:`unitvar.expected` is faster for more than one batch.
        args: what the model takes.
        samples: draws for each op that has no rule; 0 takes 64.
        strict: whether to refuse such an op.
        kwargs: what the model takes by name.

    Returns:
        An :class:`unitvar.expectation.Expectation`.

    Example:
        >>> model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1, bias=False))
        >>> _ = nn.init.ones_(model[1].weight)
        >>> found = expect(model, torch.ones(1, 4))
        >>> found.mean.item(), found.var.item()
        (4.0, 4.0)
    """
    return Expected(model, samples=samples, strict=strict).expect(*args, **kwargs)


def _signature(leaves: list[Any], spec: Any) -> Any:
    """Describe arguments by all that a recording depends on."""
    kinds = [
        (tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else _plain(leaf) for leaf in leaves
    ]
    devices = {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)} - {"meta"}  # which knows no autocast
    cast = [(d, torch.get_autocast_dtype(d)) for d in sorted(devices) if torch.is_autocast_enabled(d)]
    return tuple(kinds), str(spec), tuple(cast)


def _plain(leaf: Any) -> Any:
    """Return what identifies an argument that is no tensor; what cannot be compared is never the same twice."""
    try:
        hash(leaf)
    except TypeError:
        return object()
    return type(leaf), leaf


def _solid(tensor: Tensor) -> Tensor:
    """Return a tensor of the same kind with data: inside of an export there is none."""
    if type(tensor) in (Tensor, nn.Parameter):
        return tensor
    return torch.zeros(tuple(int(n) for n in tensor.shape), dtype=tensor.dtype, device=tensor.device)


def _named(module: nn.Module, name: str) -> Tensor:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    tensor: Tensor = found
    return tensor


def _device_type(tensors: list[Tensor]) -> str:
    return tensors[0].device.type if tensors else "cpu"


def _mean(out: Any) -> Any:
    return out.mean if isinstance(out, Uncertain) else out


def _var(out: Any) -> Any:
    return out.var if isinstance(out, Uncertain) else _no_variance(out)


def _no_variance(out: Tensor) -> Tensor:
    half = out.dtype in (torch.float16, torch.bfloat16)
    return torch.zeros_like(out, dtype=torch.float32 if half or not out.is_floating_point() else out.dtype)


def _assembled(program: Program, tensors: list[Any]) -> Any:
    remaining = iter(tensors)
    leaves = [next(remaining) if leaf is TENSOR else leaf for leaf in program.recording.leaves]
    return tree_unflatten(leaves, program.recording.spec)


def _logits(result: Any, leaves: list[Any], whole: list[Any], means: list[Any] | None = None) -> Any:
    """Find the logits: the only tensor of numbers, or what the model calls so."""
    floats = [u for u in whole if isinstance(u, Uncertain) and u.mean.is_floating_point()]
    named = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if named is not None:
        return next((u for u in floats if u.mean is named), None)
    return floats[0] if len(floats) == 1 else None
