"""Fans, by brute force: the variance of the real layer on Gaussian input."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.init.fills import each, generator
from unitvar import init

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(40, 60),
    "conv1d": lambda: nn.Conv1d(8, 12, 5),
    "conv2d": lambda: nn.Conv2d(8, 16, 3),
    "conv2d-stride": lambda: nn.Conv2d(8, 16, 3, stride=2),
    "conv2d-grouped": lambda: nn.Conv2d(8, 16, 3, groups=4),
    "conv2d-depthwise": lambda: nn.Conv2d(64, 64, 3, groups=64),
    "conv3d": lambda: nn.Conv3d(4, 6, 3),
    "transposed": lambda: nn.ConvTranspose2d(8, 16, 3),
    "transposed-2-2": lambda: nn.ConvTranspose2d(16, 8, 2, stride=2),
    "transposed-3-2": lambda: nn.ConvTranspose2d(16, 8, 3, stride=2),
    "transposed-4-2-grouped": lambda: nn.ConvTranspose2d(16, 8, 4, stride=2, groups=4),
    "transposed-1-2": lambda: nn.ConvTranspose2d(16, 8, 1, stride=2),
    "transposed1d-5-(3)": lambda: nn.ConvTranspose1d(16, 8, 5, stride=3),
}


def layer_options(layer: nn.Module) -> dict[str, object]:
    if isinstance(layer, nn.Linear):
        return {}
    transposed = isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d))
    return {"transposed": transposed, "groups": layer.groups, "stride": layer.stride}


def interior(layer: nn.Module, y: Tensor) -> Tensor:
    """Cut the border off, where padding or the edge takes connections away, at a multiple of the stride."""
    if isinstance(layer, nn.Linear):
        return y
    border = 6
    for dim, step in enumerate(layer.stride, start=2):
        length = (y.shape[dim] - 2 * border) // step * step
        y = y.narrow(dim, border, length)
    return y


def variances(fill_: Callable[..., Tensor], layer: nn.Module, mode: str) -> tuple[float, float]:
    """Mean squares of the output and of the input's gradient, for unit-variance input and output gradient."""
    forward, backward = [], []
    for seed in range(12):
        fill_(layer.weight, "identity", mode=mode, generator=generator(seed), **layer_options(layer))
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        shape = {nn.Linear: (200, 40), nn.Conv3d: (2, 4, 18, 18, 18)}.get(type(layer))
        if shape is None:
            dims = layer.weight.dim() - 2  # type: ignore[operator, union-attr]
            shape = (40 if dims == 1 else 4, layer.in_channels, *[30] * dims)  # type: ignore[arg-type]
        x = torch.randn(shape, generator=generator(100 + seed), requires_grad=True)
        y = layer(x)
        (grad,) = torch.autograd.grad(y, x, torch.randn(y.shape, generator=generator(200 + seed)))
        forward.append(interior(layer, y.detach()).square().mean().item())
        margin = (slice(None), slice(None)) + (slice(6, -6),) * (x.dim() - 2)
        backward.append(grad[margin].square().mean().item())
    return sum(forward) / len(forward), sum(backward) / len(backward)


@each
@pytest.mark.parametrize("name", LAYERS)
def test_the_real_layer_keeps_its_variance(fill_: Callable[..., Tensor], name: str) -> None:
    layer = LAYERS[name]()
    assert variances(fill_, layer, "forward")[0] == pytest.approx(1, rel=0.12)
    assert variances(fill_, layer, "backward")[1] == pytest.approx(1, rel=0.12)


def test_fans_count_the_connections_that_exist() -> None:
    depthwise = init.fans(torch.empty(32, 1, 3, 3), groups=32)
    assert (depthwise.fan_in, depthwise.fan_out) == (9, 9)
    doubling = init.fans(torch.empty(16, 8, 2, 2), transposed=True, stride=2)
    assert (doubling.fan_in, doubling.fan_out) == (16, 32)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(1, 5))
def test_fans_equal_the_counted_connections(
    inputs: int, outputs: int, groups: int, stride: int, transposed: bool, kernel: int
) -> None:
    make = nn.ConvTranspose1d if transposed else nn.Conv1d
    layer = make(inputs * groups, outputs * groups, kernel, stride=stride, groups=groups, bias=False)
    nn.init.ones_(layer.weight)
    # A ring, so that there is no border: 12 positions of one input at a time; the sum of the outputs counts its edges.
    ring = torch.ones(1, inputs * groups, 60)
    edges = layer(ring).sum().item()
    fan = init.fans(layer.weight, transposed=transposed, groups=groups, stride=stride)
    if transposed:
        assert edges == ring.numel() * fan.fan_out
        assert fan.fan_in * outputs * stride == pytest.approx(fan.fan_out * inputs)
    else:
        assert edges == layer(ring).numel() * fan.fan_in
        assert fan.fan_out * inputs * stride == pytest.approx(fan.fan_in * outputs)


def test_no_output_of_a_transposed_convolution_is_louder_than_another() -> None:
    layer = nn.ConvTranspose2d(32, 16, 3, stride=2, bias=False)
    init.sphere_(layer.weight, "identity", transposed=True, stride=2)
    y = layer(torch.randn(64, 32, 12, 12)).detach()[:, :, 6:18, 6:18]
    phases = torch.stack([y[:, :, i::2, j::2].square().mean() for i in (0, 1) for j in (0, 1)])
    torch.testing.assert_close(phases, torch.ones(4), rtol=0.1, atol=0)
