"""Norms: fused and by hand, after a ReLU and a sum, where neither mean nor variance is that of one layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.composition.spelling import assert_as_predicted, assert_same_plans, shared, white

WIDTH, EPS = 96, 1e-5


def layer_by_moments(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + EPS)


def layer_by_var(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + EPS)


def layer_by_var_mean(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) / (variance + EPS).sqrt()


def rms_by_rsqrt(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def rms_by_division(x: Tensor) -> Tensor:
    return x / torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + EPS)


def rms_by_norm(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5


def rms_by_length(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True) * x.shape[-1] ** 0.5


def batch_by_hand(x: Tensor) -> Tensor:
    dims = tuple(d for d in range(x.dim()) if d != x.dim() - 1)
    mean = x.mean(dims, keepdim=True)
    return (x - mean) / ((x - mean).square().mean(dims, keepdim=True) + EPS).sqrt()


def batch_by_var(x: Tensor) -> Tensor:
    return (x - x.mean((0, 1))) * (x.var((0, 1), correction=0) + EPS).rsqrt()


def batch_module(x: Tensor) -> Tensor:
    return nn.BatchNorm1d(WIDTH, affine=False, track_running_stats=False)(x.mT).mT


def batch_functional(x: Tensor) -> Tensor:
    return F.batch_norm(x.flatten(0, 1), None, None, training=True).unflatten(0, x.shape[:2])


Norm = Callable[[Tensor], Tensor]
FAMILIES: dict[str, dict[str, Norm]] = {
    "layer": {
        "F.layer_norm": lambda x: F.layer_norm(x, (WIDTH,)),
        "module": nn.LayerNorm(WIDTH),
        "one group": lambda x: F.group_norm(x.flatten(0, 1), 1).unflatten(0, x.shape[:2]),
        "moments": layer_by_moments,
        "var": layer_by_var,
        "var_mean": layer_by_var_mean,
    },
    "rms": {
        "F.rms_norm": lambda x: F.rms_norm(x, (WIDTH,), eps=EPS),
        "module": nn.RMSNorm(WIDTH, eps=EPS),
        "rsqrt": rms_by_rsqrt,
        "division": rms_by_division,
        "normalize": rms_by_norm,
        "length": rms_by_length,
    },
    "batch": {
        "functional": batch_functional,
        "module": batch_module,
        "by hand": batch_by_hand,
        "var": batch_by_var,
    },
}
INPUTS = {
    "white": (white(24, 8, WIDTH), "standard"),
    "shared": (shared(24, 8, WIDTH, dims=(1,)), "measured"),
}


class Normed(nn.Module):
    """A residual block after a norm, another norm, and two linear layers; all after a ReLU."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.first, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)
        self.mix, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = x + 2 * self.down(F.gelu(self.up(self.norm(x))))
        return self.last(self.mix(self.norm(x)).mean(1))


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_spellings_of_a_norm_have_one_plan(family: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_same_plans({kind: Normed(norm) for kind, norm in FAMILIES[family].items()}, sample(), inputs=known)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize(("family", "kind"), [(f, k) for f, kinds in FAMILIES.items() for k in kinds if k != "module"])
def test_what_follows_a_norm_is_what_was_predicted(family: str, kind: str, inputs: str) -> None:
    sample, known = INPUTS[inputs]
    assert_as_predicted(lambda: Normed(FAMILIES[family][kind]), sample, inputs=known, draws=8)
