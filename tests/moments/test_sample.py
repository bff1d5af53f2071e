"""Ops without a rule are run on random numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.moments.models import Op

FILTER = torch.linspace(0.1, 3, 65).to(torch.cfloat) * 1j


SPECTRA: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "real part": (lambda x: torch.fft.fft(x, norm="ortho").real, 1 / 2 + 1 / 128),  # two bins have no imaginary part
    "imaginary part": (lambda x: torch.fft.fft(x, norm="ortho").imag, 1 / 2 - 1 / 128),
    "modulus": (lambda x: torch.fft.fft(x, norm="ortho").abs(), 1.0),
    "and back": (lambda x: torch.fft.irfft(torch.fft.rfft(x), n=128), 1.0),
    "filtered": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * FILTER, n=128), FILTER.abs().square().mean().item()),
    "as pairs": (lambda x: torch.view_as_complex(torch.view_as_real(torch.fft.fft(x))).abs(), 128.0),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_a_fourier_transform_keeps_energy_as_parseval_says(name: str) -> None:
    op, exact = SPECTRA[name]
    net = nn.Sequential(nn.Linear(128, 128), Op(op), nn.Linear(128, 4))
    x = torch.randn(32, 128)
    plan = unitvar.plan(net, x)
    assert plan["2.weight"].second == pytest.approx(exact, rel=0.05)  # 4096 draws: 2 %
    assert any("fft" in op for op in plan.unsupported)  # sampled, and said so
    # Transposed, a transform keeps energy, too: 128 outputs of E g² = 1 against 4 weights of E g² = 1 / scale².
    if name in ("and back", "filtered"):
        assert unitvar.plan(net, x, mode="backward")["2.weight"].scale ** 2 * exact == pytest.approx(32.0, rel=0.1)


def test_an_op_is_sampled_in_the_dtype_of_its_arguments() -> None:
    """Distances of 8 standard normals from fixed points c: E d² = 8 + E |c|²."""
    points = torch.randn(16, 8)
    net = nn.Sequential(nn.Linear(8, 8), Op(lambda x: torch.cdist(x, points.to(x.dtype))), nn.Linear(16, 2))
    for dtype in (torch.float32, torch.float64):
        found = unitvar.plan(net.to(dtype), torch.zeros(256, 8, dtype=dtype))["2.weight"].second
        assert found == pytest.approx(8 + points.square().sum(1).mean().item(), rel=0.05)


def test_a_sort_is_reported() -> None:
    """Which of the sorted elements are read later decides their moments, and no rule follows that."""
    net = nn.Sequential(nn.Linear(16, 16), Op(lambda x: x.sort(1).values[:, :3]), nn.Linear(16, 4))
    assert unitvar.plan(net, torch.zeros(4, 20, 16)).unsupported == {"aten.sort": 1}
