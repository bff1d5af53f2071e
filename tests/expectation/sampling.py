"""Brute force: the same network, run many times with its dropout on."""

import torch
from torch import Tensor, nn

from unitvar._torch import AnyBatchNorm


def dropping(model: nn.Module) -> nn.Module:
    """Switch everything but batch norms to training mode."""
    for module in model.modules():
        module.training = not isinstance(module, AnyBatchNorm)
    return model


def runs(model: nn.Module, x: Tensor, n: int, *, at_once: int = 500) -> Tensor:
    """Return n outputs for each example, [n, examples, ...]; the batch is repeated, so masks are independent."""
    dropping(model)
    found = []
    with torch.no_grad():
        for _ in range(n // at_once):
            many = x.repeat(at_once, *(1 for _ in x.shape[1:]))
            out = model(many)
            out = out[0] if isinstance(out, tuple) else out
            found.append(out.reshape(at_once, x.shape[0], *out.shape[1:]))
    model.eval()
    return torch.cat(found)


def errors(found: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Return by how many standard errors of the sample mean and variance lie off."""
    n = len(found)
    centre, spread = found.mean(0), found.var(0)
    fourth = (found - centre).pow(4).mean(0)
    return (
        (mean - centre).abs() / (spread / n).sqrt(),
        (var - spread).abs() / ((fourth - spread.square()).clamp_min(1e-30) / n).sqrt(),
    )


class Residual(nn.Module):
    """Add a branch to its input."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class DropPath(nn.Module):
    """Drop whole examples, as residual networks do."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = 1 - self.p
        return x * x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(keep).div_(keep)
