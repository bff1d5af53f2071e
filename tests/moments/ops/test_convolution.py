"""Convolutions: taps, borders, and what positions share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

import unitvar
from unitvar.moments import Correlation, Moments
from unitvar.moments.ops.convolution import conv, conv_transpose

SHAPE = (64, 8, 12, 12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 64, 3), nn.Conv2d(8, 64, 3, padding=1, stride=2), nn.Conv2d(8, 64, 5, padding=4, dilation=2),
        nn.Conv2d(8, 64, 3, groups=4), nn.Conv2d(8, 64, 3, padding="same"), nn.Conv2d(8, 64, 4, padding="same"),
        nn.ConvTranspose2d(8, 64, 4, 2, 1), nn.ConvTranspose2d(8, 64, 3, 2, 1, 1, groups=2), nn.Linear(12, 64),
    ],
    ids=str,
)  # fmt: skip
def test_a_weight_gives_unit_second_moment(layer: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(layer)
    unitvar.initialize_(model, torch.zeros(SHAPE))
    with torch.no_grad():
        assert model(torch.randn(SHAPE)).square().mean().item() == pytest.approx(1.0, rel=0.05)


@given(st.integers(2, 9), st.integers(2, 9), st.integers(1, 5), st.integers(0, 3), st.integers(1, 2))
def test_neighbours_share_the_taps_that_both_see(
    height: int, width: int, kernel: int, padding: int, stride: int
) -> None:
    assume(min(height, width) + 2 * padding >= kernel + stride)
    # An input that is the same everywhere: what two outputs share is what their weights share.
    x = Moments(0.0, 1.0, (1, 1, height, width), correlation=Correlation(positions=1.0, neighbours=1.0))
    weight = Moments(0.0, 1.0, (1, 1, kernel, kernel))
    out = conv(x, weight, None, (stride, stride), (padding, padding), (1, 1), 1)
    masks = F.unfold(torch.ones(1, 1, height, width), kernel, padding=padding, stride=stride)
    masks = masks.reshape(kernel * kernel, *out.shape[2:])
    along = [(masks[:, :, 1:] * masks[:, :, :-1]), (masks[:, 1:] * masks[:, :-1])]
    expected = sum(both.sum(0).mean().item() for both in along) / 2
    assert out.pair("neighbours") == pytest.approx(expected, rel=1e-5)
    assert out.second == pytest.approx(masks.sum(0).mean().item(), rel=1e-5)


CONVOLUTIONS: list[dict[str, Any]] = [
    {"stride": s, "padding": p, "dilation": d} for s, p, d in [(1, 1, 1), (2, 1, 1), (1, 0, 1), (1, 2, 2), (2, 2, 1)]
]


def taps_of(call: Callable[..., Tensor], x: Tensor, options: dict[str, Any]) -> Tensor:
    """Give what each tap of a 3x3 kernel sees at each position, by convolving with one tap at a time."""
    kernels = torch.eye(9, dtype=torch.float64).view(9, 1, 1, 3, 3)
    return torch.stack([call(x[None, None], kernel, **options)[0, 0].flatten() for kernel in kernels])


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("rule", [conv, conv_transpose])
def test_two_outputs_share_the_taps_that_both_see(rule: Callable[..., Moments], options: dict[str, Any]) -> None:
    if rule is conv_transpose and options["padding"] == 0:
        options = {**options, "output_padding": 0}
    call = F.conv2d if rule is conv else F.conv_transpose2d
    seen = taps_of(call, torch.ones(6, 5, dtype=torch.float64), options)
    weight = Moments(0.0, 1 / 72, (8, 8, 3, 3))
    keys = {"output_padding": "extra"}
    out = rule(Moments(0.0, 1.0, (2, 8, 6, 5), correlation=Correlation(positions=1.0)), weight, **{
        keys.get(k, k): (v, v) for k, v in options.items()
    })  # fmt: skip
    together = seen.T @ seen  # taps that positions p and q have in common
    n = len(together)
    distinct = (together.sum() - together.trace()) / (n * (n - 1))
    assert out.second == pytest.approx(together.trace().item() / n / 9, rel=1e-9)
    assert out.pair("positions") == pytest.approx(distinct.item() / 9, rel=1e-9)


def test_borders_get_quieter_as_brute_force_says() -> None:
    sizes, ones = (7, 5), torch.ones(1, 1, 3, 3, dtype=torch.float64) / 9
    x, exact = Moments(0.0, 1.0, (2, 8, *sizes)), torch.ones(1, 1, *sizes, dtype=torch.float64)
    for stride in (1, 2, 1):
        x = conv(x, Moments(0.0, 1 / 72, (8, 8, 3, 3)), None, (stride, stride), (1, 1), (1, 1))
        exact = F.conv2d(exact, ones, stride=stride, padding=1)  # E z² = sum of E x² / fan-in
        rows, columns = (torch.as_tensor(p) for p in x.profile or ())
        assert x.second == pytest.approx(exact.mean().item(), rel=1e-9)
        assert torch.allclose(torch.outer(rows, columns) * x.second, exact[0, 0], rtol=1e-9)
