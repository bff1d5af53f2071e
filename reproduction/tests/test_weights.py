"""The initialisations under comparison, against their formulas written out."""

import math

import pytest
import torch
from torch import nn

import unitvar
from unitvar.init import gain
from unitvar_reproduction import networks
from unitvar_reproduction.networks.initialisations import INITS, initialise_

FACTORS = {"relu": (0.5, 0.5), "gelu": (0.425, 0.444), "tanh": (0.394, 0.216), "elu": (0.645, 0.671)}
INPUTS = 784


def filled(
    name: str, activation: str = "relu", keep: float = 0.3, example: torch.Tensor | None = None
) -> list[nn.Linear]:
    model = networks.mlp(INPUTS, 1 - keep, activation=activation, batchnorm=False, width=256, hidden=7)
    example = torch.rand(100, 1, 28, 28) if example is None else example
    options = {"activation": activation, "keep": keep, "example": example}
    initialise_(model, name, **options, generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    return [m for m in model if isinstance(m, nn.Linear)]


@pytest.mark.parametrize("activation", FACTORS)
@pytest.mark.parametrize("keep", [1.0, 0.5, 0.3])
@pytest.mark.parametrize(("name", "first"), [("paper", 1.0), ("paper-half", 0.5)])
def test_the_papers_rows_have_the_norms_of_the_release(activation: str, keep: float, name: str, first: float) -> None:
    forward, backward = FACTORS[activation]
    inner = forward / keep + backward * keep
    expected = [first + backward * keep, *[inner] * 6, 1 + forward / keep]
    layers = filled(name, activation, keep)
    assert len(layers) == 8
    for layer, square in zip(layers, expected, strict=True):
        assert torch.allclose(layer.weight.norm(dim=1), torch.tensor(1 / math.sqrt(square)), rtol=1e-5)


def test_xavier_and_he_ignore_dropout() -> None:
    for layer in filled("xavier"):
        bound = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert 0.98 * bound < layer.weight.abs().max().item() <= bound
    for layer in filled("he", "tanh"):
        # The sample standard deviation of n normals has a relative standard error of 1 / sqrt(2 n).
        error = 5 / math.sqrt(2 * layer.weight.numel())
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / layer.in_features), rel=error)


@pytest.mark.parametrize("activation", FACTORS)
def test_forward_is_scaled_for_the_real_inputs_and_for_dropout(activation: str) -> None:
    example = torch.rand(1000, 1, 28, 28) * 0.4
    first, *others = filled("forward", activation, 0.5, example)
    root = example.square().mean().sqrt().item()
    assert torch.allclose(first.weight.norm(dim=1), torch.tensor(1 / root), rtol=1e-5)
    for layer in others:
        assert torch.allclose(layer.weight.norm(dim=1), torch.tensor(gain(activation, 0.5)), rtol=1e-5)


def test_every_init_is_a_function_of_its_generator_() -> None:
    for name in INITS:
        torch.manual_seed(1)
        first = filled(name)
        torch.manual_seed(2)
        second = filled(name)
        example_matters = name in ("forward", "mean")
        for a, b in zip(first[1:], second[1:], strict=True):
            assert torch.allclose(a.weight, b.weight, rtol=1e-2 if example_matters else 0, atol=0)
            assert torch.equal(a.bias, b.bias)
            assert bool(a.bias.any()) == (name == "default")


@pytest.mark.parametrize(("activation", "keep"), [("relu", 0.5), ("tanh", 0.3), ("gelu", 1.0)])
def test_forward_is_initialize_with_its_defaults(activation: str, keep: float) -> None:
    example = torch.rand(100, 1, 28, 28)
    model = networks.mlp(INPUTS, 1 - keep, activation=activation, batchnorm=False, width=256, hidden=7)
    unitvar.initialize_(model, example, generator=torch.Generator().manual_seed(0))
    layers = [m for m in model if isinstance(m, nn.Linear)]
    for ours, forward in zip(layers, filled("forward", activation, keep, example), strict=True):
        assert torch.allclose(ours.weight, forward.weight, rtol=1e-5, atol=0)


def test_default_is_what_torch_does() -> None:
    # U(-1/√n, 1/√n): rows of squared norm 1/3, whose mean over 256 rows of n weights has this standard error.
    for layer in filled("default"):
        squares = layer.weight.square().sum(1)
        error = math.sqrt(4 / 45 / layer.weight.numel())
        assert squares.mean().item() == pytest.approx(1 / 3, abs=5 * error)


def test_unknown_names_are_named() -> None:
    with pytest.raises(ValueError, match=r"init='kaiming' is not one of 'paper'"):
        filled("kaiming")
    model = networks.mlp(4, 0.5, batchnorm=False)
    options = {"keep": 0.5, "example": torch.rand(2, 4), "generator": torch.Generator()}
    with pytest.raises(ValueError, match=r"activation='silu' is not in the paper's Table 1"):
        initialise_(model, "paper", activation="silu", **options)  # type: ignore[arg-type]
