"""Odd models: whatever a network is made of, the calls work or say why not, and leave no trace."""

import copy
import importlib.util
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import unitvar
from tests.attack.case import Case
from tests.attack.snapshot import differences, snapshot

__all__ = ["ODD", "module_database", "odd_models"]

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
    "deep copy of a watched model": lambda: copy.deepcopy(_body()),
}


def _example(model: nn.Module) -> Tensor:
    parameter = next(iter(model.parameters()))
    return X.bfloat16() if parameter.dtype == torch.bfloat16 else X


def odd_models() -> Iterator[Case]:
    """Call everything on every odd model: it works, or raises an error with a remedy, and leaves no trace."""
    for label, make in ODD.items():
        for name, call, changes in _CALLS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = make()
                yield _tried(f"{label}: {name}", model, call, _example(model), changes)


_CALLS: list[tuple[str, Callable[[nn.Module, Tensor], Any], bool]] = [
    ("plan", lambda model, x: unitvar.plan(model, x), False),
    ("measure", lambda model, x: unitvar.measure(model, x, runs=1), False),
    ("initialize_", lambda model, x: unitvar.initialize_(model, x), True),
    ("initialize_, measured", lambda model, x: unitvar.initialize_(model, x, method="measured"), True),
    ("reestimate_bn_", lambda model, x: unitvar.reestimate_bn_(model, [x, x + 1]), True),
    ("bn_statistics", lambda model, x: unitvar.bn_statistics(model, [x, x + 1]), False),
]


def _tried(name: str, model: nn.Module, call: Callable[[nn.Module, Any], Any], example: Any, changes: bool) -> Case:
    lazy = any(isinstance(m, nn.modules.lazy.LazyModuleMixin) for m in model.modules())
    before = snapshot(model)
    try:
        call(model, example)
    except (ValueError, TypeError) as error:  # the library's own, with a remedy
        left = differences(before, snapshot(model))
        return Case(name, not left, f"{type(error).__name__}: {str(error)[:120]}; changed: {left}")
    except Exception as error:
        left = differences(before, snapshot(model))
        return Case(name, False, f"{type(error).__name__}: {str(error)[:120]}; changed: {left}")
    if changes or (lazy and name.endswith("bn_statistics")):  # lazy layers stay initialised when it succeeds
        return Case(name, True, "done")
    left = differences(before, snapshot(model))
    return Case(name, not left, f"done; changed: {left}")


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
                for name, call, changes in _CALLS[:4]:
                    if any(t.is_floating_point() for t in example if isinstance(t, Tensor)) or name == "plan":
                        yield _tried(f"{info.name} {i}: {name}", module, call, example, changes)
