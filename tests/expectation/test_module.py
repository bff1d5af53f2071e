"""What expected() returns is a module like any other."""

import copy
import io
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.expectation.sampling import DropPath, Residual
from tests.running.threads import together

ROOT = Path(__file__).parents[2]


def mlp(width: int = 16, dropout: float = 0.4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 3))


def test_parameters_are_shared_and_changes_are_seen() -> None:
    model, x = mlp(), torch.randn(5, 8)
    module = unitvar.expected(model)
    before = module(x)
    assert {id(p) for p in module.parameters()} == {id(p) for p in model.parameters()}
    with torch.no_grad():
        model[3].bias.add_(1)
    torch.testing.assert_close(module(x), before + 1)
    model[3] = nn.Linear(16, 3)  # replaced, not changed
    torch.testing.assert_close(module(x), unitvar.expect(model, x).mean)
    module.double()
    assert module(x.double()).dtype == torch.float64


def test_modes_of_model_and_module_do_not_meet() -> None:
    model, x = mlp(), torch.randn(5, 8)
    model.train()
    model[1].eval()
    flags = [m.training for m in model.modules()]
    module = unitvar.expected(model).eval()
    means = [module(x)]
    model.eval()
    means.append(module.train()(x))
    assert torch.equal(*means)
    model.train()
    model[1].eval()
    assert [m.training for m in model.modules()] == flags


def test_gradients_are_those_of_the_mean() -> None:
    torch.manual_seed(0)
    model, x = mlp().double(), torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    module = unitvar.expected(model)
    assert torch.autograd.gradcheck(module, (x,))
    module(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_every_shape_is_recorded_once() -> None:
    calls = []

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(x.shape)
            return x

    module = unitvar.expected(nn.Sequential(Counting(), mlp()))
    for rows in (4, 4, 1, 4, 1):
        assert module(torch.randn(rows, 8)).shape == (rows, 3)
    assert {shape[0] for shape in calls} == {1, 4}
    assert len(calls) <= 3 * 8 + 3  # type checkers under test draw random numbers, so recordings are compared


def test_decisions_by_the_values_of_the_input_are_made_anew() -> None:
    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(x) * (2 if x.sum().item() > 0 else 3)

    module = unitvar.expected(Decides())
    for sign in (1.0, -1.0, 1.0):
        x = torch.full((2, 4), sign)
        assert torch.equal(module(x), x * (2 if sign > 0 else 3))


class Scale:
    """An argument that compares by identity."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


def test_arguments_that_are_no_tensors_are_part_of_the_recording() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor, y: Tensor, scale: Any) -> Tensor:
            return self.drop(x) * (scale.factor if isinstance(scale, Scale) else scale) + y

    module, x = unitvar.expected(Scaled()), torch.ones(2, 3)
    assert torch.equal(module(x, x, 2), 3 * x)  # the same tensor twice
    assert torch.equal(module(x, 5 * x, 2), 7 * x)
    assert torch.equal(module(x, x, 3.0), 4 * x)
    for factor in (1.0, 2.0, 3.0):
        assert torch.equal(module(x, x, Scale(factor)), (factor + 1) * x)


def test_structures_come_back() -> None:
    class Output(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor, *, scale: float = 1.0, also: dict[str, Tensor] | None = None) -> dict[str, object]:
            extra = also["bias"] if also else 0.0
            return {"logits": self.inner(x) * scale + extra, "none": None, "count": 3, "index": torch.arange(2)}

    model, x = Output(), torch.randn(5, 8)
    found = unitvar.expect(model, x, scale=2.0, also={"bias": torch.ones(3)})
    once = unitvar.expect(model.inner, x)
    torch.testing.assert_close(found.mean["logits"], 2 * once.mean + 1)
    torch.testing.assert_close(found.var["logits"], 4 * once.var)
    assert found.mean["none"] is None
    assert found.mean["count"] == 3
    assert torch.equal(found.mean["index"], torch.arange(2))
    torch.testing.assert_close(found.probabilities.sum(-1), torch.ones(5))


def test_copies_and_pickles_record_again() -> None:
    module, x = unitvar.expected(mlp()), torch.randn(2, 8)
    mean = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), mean)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    module.load_state_dict(torch.load(file))


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "mlp": lambda: (mlp(), torch.randn(4, 8)),
    "convolutional": lambda: (
        nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ELU(), nn.Dropout2d(0.3), nn.MaxPool2d(2), nn.Flatten(),
            nn.Dropout(0.5), nn.Linear(36, 3),
        ),
        torch.randn(2, 2, 8, 8),
    ),
    "residual": lambda: (
        Residual(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), DropPath(0.2))), torch.randn(4, 8),
    ),
}  # fmt: skip


# Type checkers rewrite the library under test, and neither tracer follows what they add: hence the fresh interpreter.
SCRIPT = """
import torch, unitvar
from torch import nn
from tests.expectation.test_module import MODELS

for name, build in MODELS.items():
    torch.manual_seed(0)
    model, x = build()
    model.eval()
    module = unitvar.expected(model)
    with torch.no_grad():
        mean = module(x)
        exported = torch.export.export(unitvar.expected(model), (x,)).module()
        torch.testing.assert_close(exported(x), mean)
        torch.testing.assert_close(exported(x + 1), module(x + 1))
        compiled = torch.compile(module, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), mean)
        torch.testing.assert_close(torch.compile(unitvar.expected(model), backend="eager")(x), mean)
        torch.compiler.reset()
    print(name)
"""


def test_compiled_and_exported() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(MODELS)


def test_two_threads_get_what_one_gets() -> None:
    torch.manual_seed(0)
    models = [mlp(16), mlp(24)]
    x = torch.randn(4, 8)
    alone = [unitvar.expect(model, x).var for model in models]
    for _ in range(3):
        both = together(*(lambda m=model: unitvar.expect(m, x).var for model in models))
        assert all(torch.equal(a, b) for a, b in zip(alone, both, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_dtype_and_wide_variances(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(mlp(64), nn.LayerNorm(3), nn.GELU(), nn.Softmax(-1)), torch.randn(4, 8)
    wanted = unitvar.expect(model, x)
    found = unitvar.expect(model.to(dtype), x.to(dtype))
    assert found.mean.dtype == dtype
    assert found.var.dtype == torch.float32
    torch.testing.assert_close(found.mean.float(), wanted.mean, rtol=0.05, atol=0.02)
    torch.testing.assert_close(found.var, wanted.var, rtol=0.1, atol=1e-3)


def test_autocast_is_recorded() -> None:
    model, x = mlp(), torch.randn(4, 8)
    module = unitvar.expected(model)
    plain = module(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x).dtype == torch.bfloat16
    assert module(x).dtype == torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(module(x), plain)
