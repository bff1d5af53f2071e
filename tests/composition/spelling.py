"""Two laws of compositions, checked through the public functions only.

- Equivalent spellings of one computation give equal plans (:func:`assert_same_plans`).
- What is measured is what was predicted (:func:`assert_as_predicted`), over fresh weights, inputs and masks.

The measurement here shares no code with the library: :class:`Outputs` sees every op that a parameter takes part in, and
averages the squares of what comes out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import unitvar

__all__ = [
    "assert_as_predicted",
    "assert_gradients_as_predicted",
    "assert_ones",
    "assert_same_plans",
    "drawn",
    "ratios",
    "second_moments",
    "shared",
    "white",
]

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution"}


class Outputs(TorchDispatchMode):
    """Average the squares of what every product with a parameter gives.

    What is computed from one parameter alone (a view, a transpose, a copy) counts as that parameter.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.owners = {p.untyped_storage().data_ptr(): name for name, p in model.named_parameters() if p.dim() > 1}
        self.alive: list[Tensor] = []  # so that no later tensor gets the storage of a derived one
        self.squares: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)]
        names = [self.owners.get(t.untyped_storage().data_ptr()) for t in tensors]
        found = {name for name in names if name is not None}
        if len(found) != 1:
            return out
        (name,) = found
        if all(n == name for n in names):
            for t in tree_leaves(out):
                if isinstance(t, Tensor):
                    self.owners[t.untyped_storage().data_ptr()] = name
                    self.alive.append(t)
        elif func._schema.name.partition("::")[2] in _PRODUCTS:
            total = self.squares[name]
            total[0] += float(out.double().square().sum())
            total[1] += out.numel()
        return out


def _call(model: nn.Module, x: Any) -> Any:
    return model(*x) if isinstance(x, tuple) else model(x)


def second_moments(model: nn.Module, x: Any) -> dict[str, float]:
    """Run a model once in train mode; return parameter name → E z² over all elements of all its outputs."""
    model.train()
    with torch.no_grad(), Outputs(model) as outputs:
        _call(model, x)
    return {name: total / count for name, (total, count) in outputs.squares.items()}


def white(*shape: int) -> Callable[[], Tensor]:
    """Return a sampler of inputs whose elements are independent."""
    return lambda: torch.randn(shape)


def shared(*shape: int, dims: tuple[int, ...]) -> Callable[[], Tensor]:
    """Return a sampler of inputs of unit variance, half of which the positions of an example share.

    Args:
        shape: of the inputs.
        dims: the dimensions that number positions.
    """
    common = tuple(1 if i in dims else n for i, n in enumerate(shape))
    return lambda: (torch.randn(shape) + torch.randn(common)) / math.sqrt(2)


def assert_same_plans(
    models: Mapping[str, nn.Module], x: Any, *, last: int | None = None, scales: bool = False, **options: Any
) -> None:
    """Plan several spellings of one computation; scale, mean and second of each weight must agree to 1 %.

    Args:
        models: spelling → model; all are compared with the first.
        x: the example.
        last: how many weights to compare, from the end; default: all. For spellings that pack weights differently.
        scales: compare scales only. For spellings that bring the same zeros to a weight, inside its op or before it.
        options: of :func:`unitvar.plan`.
    """
    plans = {kind: unitvar.plan(model, x, **options) for kind, model in models.items()}
    (reference, expected), *others = plans.items()
    wrong = []
    for kind, found in others:
        if last is None and len(found) != len(expected):
            wrong.append(f"{kind}: {len(found)} weights, {reference}: {len(expected)}; left alone: {found.skipped}")
            continue
        for a, b in zip(found.layers[-last if last else 0 :], expected.layers[-last if last else 0 :], strict=True):
            same = [math.isclose(a.scale, b.scale, rel_tol=0.01)]
            if not scales:
                same.append(math.isclose(a.second, b.second, rel_tol=0.01))
                same.append(math.isclose(a.mean, b.mean, rel_tol=0.01, abs_tol=0.01 * math.sqrt(b.second)))
            if not all(same):
                wrong.append(
                    f"{kind} {a.name}: scale {a.scale:.4g}, mean {a.mean:.4g}, second {a.second:.4g}; "
                    f"{reference}: {b.scale:.4g}, {b.mean:.4g}, {b.second:.4g}"
                )
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def drawn(
    build: Callable[[], nn.Module], sample: Callable[[], Any], draws: int, **options: Any
) -> Iterator[tuple[nn.Module, Any, unitvar.Plan]]:
    """Build and initialise a model several times with fresh weights and inputs, for the inputs' own law.

    One plan serves all draws, unless it depends on the numbers of the input.
    """
    options = {"inputs": "standard", **options}
    plan = None
    for _ in range(draws):
        model, x = build(), sample()
        if plan is None or (isinstance(options["inputs"], str) and options["inputs"] != "standard"):
            plan = unitvar.plan(model, x, **options)
        yield plan.apply_(model), x, plan


def ratios(
    build: Callable[[], nn.Module], sample: Callable[[], Any], *, draws: int = 10, **options: Any
) -> dict[str, Tensor]:
    """Return parameter name → measured over predicted E z², one a draw."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for model, x, plan in drawn(build, sample, draws, **options):
        measured = second_moments(model, x)
        for layer in plan:
            found[layer.name].append(measured[layer.name] / layer.predicted)
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def assert_ones(found: Mapping[str, Tensor], tolerance: float, errors: float = 5.0) -> None:
    """Fail, naming every entry whose mean over draws is not one.

    Args:
        found: name → ratio, one a draw.
        tolerance: what finite width may do, relative.
        errors: how many standard errors of the mean over draws come on top.
    """
    wrong = []
    for name, values in found.items():
        mean, error = float(values.mean()), float(values.std()) / math.sqrt(len(values))
        if not abs(mean - 1) <= errors * error + tolerance:
            wrong.append(f"{name}: {mean:.3g} ± {error:.2g}")
    if wrong:
        pytest.fail(f"not 1 over {len(values)} draws: " + "; ".join(wrong), pytrace=False)


def assert_as_predicted(
    build: Callable[[], nn.Module],
    sample: Callable[[], Any],
    *,
    draws: int = 10,
    tolerance: float = 0.05,
    **options: Any,
) -> None:
    """Initialise a model several times; E z² of every weight must be what its plan predicted.

    Args:
        build: makes the model.
        sample: draws an input.
        draws: how many networks.
        tolerance: what finite width may do, relative; five standard errors over draws come on top.
        options: of :func:`unitvar.initialize_`.
    """
    assert_ones(ratios(build, sample, draws=draws, **options), tolerance)


def assert_gradients_as_predicted(
    build: Callable[[], nn.Module],
    sample: Callable[[], Any],
    *,
    draws: int = 10,
    tolerance: float = 0.05,
    **options: Any,
) -> None:
    """Initialise a model several times; measure must find the E g² and E z² that it predicts, at every weight.

    Args:
        build: makes the model.
        sample: draws an input.
        draws: how many networks.
        tolerance: what finite width may do, relative; five standard errors over draws come on top.
        options: of :func:`unitvar.initialize_`.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    for model, x, _ in drawn(build, sample, draws, **options):
        report = unitvar.measure(model, x, runs=1)
        assert not report.unpredicted, report.unpredicted
        for layer in report:
            assert layer.variance is not None, layer.label
            assert layer.predicted_variance is not None, layer.label
            found[f"signal at {layer.label}"].append(layer.variance / layer.predicted_variance)
            if layer.predicted_gradient is not None and layer.gradient is not None:
                found[f"gradient at {layer.label}"].append(layer.gradient / layer.predicted_gradient)
    assert any(name.startswith("gradient") for name in found)
    assert_ones({name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}, tolerance)
