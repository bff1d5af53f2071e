"""Odd models: whatever a network is made of, the calls work or say why not, and leave no trace."""

import copy
import importlib.util
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import unitvar
from tests.attack.case import Case
from tests.attack.shapes import SHAPES
from tests.attack.snapshot import differences, snapshot

__all__ = ["ODD", "module_database", "odd_models", "shaped_models"]

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))


def _body() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 6), nn.BatchNorm1d(6)
    )


def _scripted() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), torch.jit.script(_body()), nn.Linear(6, 6))


def _traced() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(6), torch.jit.trace(_body().eval(), X), nn.Linear(6, 6))


def _frozen_script() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(6), torch.jit.freeze(torch.jit.script(_body().eval())), nn.Linear(6, 6))


def _pruned() -> nn.Module:
    model = _body()
    prune.l1_unstructured(model[0], "weight", 0.5)
    return model


def _parametrised() -> nn.Module:
    model = _body()
    parametrizations.spectral_norm(model[0])
    parametrizations.orthogonal(model[4])
    return model


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.down.weight = self.up.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(self.up(x)).relu())


class _Twice(nn.Module):
    """One BatchNorm in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.b(self.norm(self.a(x)).relu()))


class _Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.fft.irfft(torch.fft.rfft(self.a(x)) * self.filter, n=6))


class _OwnNorm(nn.BatchNorm1d):
    """A subclass with a forward of its own, as timm's BatchNormAct2d."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.batch_norm(2 * x, self.running_mean, self.running_var, self.weight, self.bias, self.training))


class _Counted(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def _quantised() -> nn.Module:
    from torch.ao.quantization import get_default_qat_qconfig, prepare_qat

    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6)).train()
    model.qconfig = get_default_qat_qconfig("x86")
    return prepare_qat(model)


def _graph_module() -> nn.Module:
    import torch.fx

    return torch.fx.symbolic_trace(_body())


def _bfloat16() -> nn.Module:
    return _body().bfloat16()


def _norms(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, 6), make(), nn.ReLU(), nn.Linear(6, 6))


def _copied() -> nn.Module:
    model = _body()
    with unitvar.watch(model, every=1):
        return copy.deepcopy(model)


def _alone() -> None:
    """Make a process group of this process, as wrappers need it."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def _distributed() -> nn.Module:
    _alone()
    return nn.parallel.DistributedDataParallel(_body())


def _sharded() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _alone()
    model = _body()
    for layer in (model[0], model[4], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    return model


ODD: dict[str, Callable[[], nn.Module]] = {
    "TorchScript, scripted part": _scripted,
    "TorchScript, traced part": _traced,
    "TorchScript, frozen part": _frozen_script,
    "torch.fx GraphModule": _graph_module,
    "DataParallel": lambda: nn.DataParallel(_body()),
    "compiled": lambda: torch.compile(_body(), backend="eager"),
    "quantisation-aware": _quantised,
    "pruned": _pruned,
    "parametrised": _parametrised,
    "tied weights": _Tied,
    "one BatchNorm twice": _Twice,
    "lazy": lambda: nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(4)),
    "bfloat16": _bfloat16,
    "complex part": _Complex,
    "momentum=None": _norms(lambda: nn.BatchNorm1d(6, momentum=None)),
    "SyncBatchNorm": _norms(lambda: nn.SyncBatchNorm(6)),
    "BatchNorm without affine": _norms(lambda: nn.BatchNorm1d(6, affine=False)),
    "BatchNorm with a forward of its own": _norms(lambda: _OwnNorm(6)),
    "BatchNorm that calls super().forward": _norms(lambda: _Counted(6)),
    "deep copy of a watched model": _copied,
    "meta": lambda: _body().to("meta"),
    "DistributedDataParallel": _distributed,
    "FSDP2": _sharded,
}


def _example(model: nn.Module) -> Tensor:
    parameter = next(iter(model.parameters()))
    return X.to(parameter.device, torch.bfloat16 if parameter.dtype == torch.bfloat16 else torch.float32)


def odd_models(labels: Iterable[str] = ODD) -> Iterator[Case]:
    """Call everything on every odd model: it works, or raises an error with a remedy, and leaves no trace."""
    for label, make in ((label, ODD[label]) for label in labels):
        for name, call, changes in _CALLS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = make()
                yield _tried(f"{label}: {name}", model, call, _example(model), changes)
    if dist.is_initialized():
        dist.destroy_process_group()


def _watched(model: nn.Module, example: Any) -> None:
    with torch.no_grad(), unitvar.watch(model, every=1):
        pass


_CALLS: list[tuple[str, Callable[[nn.Module, Any], Any], bool]] = [
    ("plan", lambda model, x: unitvar.plan(model, x), False),
    ("measure", lambda model, x: unitvar.measure(model, x, runs=1), False),
    ("initialize_", lambda model, x: unitvar.initialize_(model, x), True),
    ("initialize_, measured", lambda model, x: unitvar.initialize_(model, x, method="measured"), True),
    ("expect", lambda model, x: _expected(unitvar.expect, model, x), False),
    ("expected", lambda model, x: _expected(lambda m, *a, **k: unitvar.expected(m)(*a, **k), model, x), False),
    ("watch", _watched, False),
    ("reestimate_bn_", lambda model, x: unitvar.reestimate_bn_(model, [x, x + 1]), True),
    ("reestimate_bn_, sequential", lambda m, x: unitvar.reestimate_bn_(m, [x, x + 1], method="sequential"), True),
    ("bn_statistics", lambda model, x: unitvar.bn_statistics(model, [x, x + 1]), False),
]
_ON_EXAMPLES = _CALLS[:7]  # which take what the model takes


def _expected(call: Callable[..., Any], model: nn.Module, example: Any) -> Any:
    if isinstance(example, dict):
        return call(model, **example)
    return call(model, *(example if type(example) is tuple else (example,)))


def _tried(name: str, model: nn.Module, call: Callable[[nn.Module, Any], Any], example: Any, changes: bool) -> Case:
    """A call that fails does so with the library's own error or the model's, and leaves no trace."""
    lazy = any(isinstance(m, nn.modules.lazy.LazyModuleMixin) for m in model.modules())
    before = snapshot(model)
    try:
        call(model, example)
    except Exception as error:
        left = differences(before, snapshot(model))
        own = isinstance(error, (ValueError, TypeError, LookupError)) and str(error) != ""
        return Case(name, own and not left, f"{type(error).__name__}: {str(error)[:120]}; changed: {left}")
    if changes or (lazy and name.endswith("bn_statistics")):  # lazy layers stay initialised when it succeeds
        return Case(name, True, "done")
    left = differences(before, snapshot(model))
    return Case(name, not left, f"done; changed: {left}")


def shaped_models(labels: Iterable[str] = SHAPES) -> Iterator[Case]:
    """Call everything that takes an example on models of the shapes that peers test themselves on."""
    for label, (make, example) in ((label, SHAPES[label]) for label in labels):
        for name, call, changes in _ON_EXAMPLES:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(0)
                yield _tried(f"{label}: {name}", make(), call, example, changes)


def module_database() -> Iterator[Case]:
    """Plan, initialise and measure every module of torch's own database of modules, on its own examples."""
    if importlib.util.find_spec("expecttest") is None:  # what torch's own tests compare text with; not needed here
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                inputs = info.module_inputs_func(
                    info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
                )
            except Exception:  # modules for other devices
                continue
            for i, sample in enumerate(inputs[:3]):
                made, fed = sample.constructor_input, sample.forward_input
                if fed is None or fed.kwargs or not any(isinstance(a, Tensor) for a in fed.args):
                    continue
                try:
                    torch.manual_seed(0)
                    module = info.module_cls(*made.args, **made.kwargs)
                    module(*copy.deepcopy(fed.args))
                    module = info.module_cls(*made.args, **made.kwargs)
                except Exception:
                    continue
                example = tuple(copy.deepcopy(fed.args))
                for name, call, changes in _ON_EXAMPLES:
                    if any(t.is_floating_point() for t in example if isinstance(t, Tensor)) or name == "plan":
                        yield _tried(f"{info.name} {i}: {name}", module, call, example, changes)
