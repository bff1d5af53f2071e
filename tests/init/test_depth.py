"""Twenty layers keep their variance, forward and backward."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from tests.init.fills import generator
from unitvar import activation_moments, init


def deep(fill_mode: str, name: str, keep: float, seed: int) -> tuple[list[float], list[float]]:
    """Mean squares of the pre-activations and of their gradients in the paper's network: 15 x 500, then 250."""
    g = generator(seed)
    torch.manual_seed(seed)
    widths = [500] * 16 + [250] * 5
    h = torch.randn(500, widths[0], generator=g)
    zs = []
    for i, (n, m) in enumerate(itertools.pairwise(widths)):
        before, dropout = ("identity", 0.0) if i == 0 else (name, 1 - keep)
        w = init.sphere_(torch.empty(m, n), before, dropout, mode=fill_mode, generator=g)
        zs.append((h @ w.T).requires_grad_())
        zs[-1].retain_grad()
        fn = getattr(F, name, None) or getattr(torch, name)
        h = F.dropout(fn(zs[-1]), 1 - keep)
    (zs[-1] * torch.randn(zs[-1].shape, generator=g)).sum().backward()
    return [z.square().mean().item() for z in zs], [z.grad.square().mean().item() for z in zs]  # type: ignore[union-attr]


@pytest.mark.parametrize("keep", [1.0, 0.8, 0.6, 0.3])
@pytest.mark.parametrize("name", ["relu", "tanh", "elu"])
def test_twenty_layers_keep_the_forward_variance(name: str, keep: float) -> None:
    for seed in range(3):
        forward, _ = deep("forward", name, keep, seed)
        assert min(forward) > 0.4
        assert max(forward) < 2.5


@pytest.mark.parametrize("keep", [1.0, 0.8, 0.6, 0.3])
@pytest.mark.parametrize("name", ["relu", "elu"])
def test_twenty_layers_keep_the_gradient_variance(name: str, keep: float) -> None:
    for seed in range(3):
        _, backward = deep("backward", name, keep, seed)
        assert min(backward) > 0.4
        assert max(backward) < 2.5


def test_the_papers_backward_term_explodes_under_autograd() -> None:
    """Erratum 2: scaled by the bare-mask factor p E f'², 19 steps at p = 0.6 multiply the gradient by p^-38 or so."""
    g = generator()
    keep, grads = 0.6, []
    h = torch.randn(500, 400, generator=g)
    for i in range(20):
        radius = 1.0 if i == 0 else 1 / math.sqrt(keep * activation_moments("relu").slope)
        z = (h @ init.sphere_(torch.empty(400, 400), gain=radius, generator=g).T).requires_grad_()
        z.retain_grad()
        grads.append(z)
        h = F.dropout(F.relu(z), 1 - keep)
    grads[-1].backward(torch.randn(z.shape, generator=g))
    growth = grads[0].grad.square().mean() / grads[-1].grad.square().mean()  # type: ignore[union-attr]
    assert keep**-38 / 3 < growth.item() < keep**-38 * 3
    assert growth.item() > 1e8 / 3
