"""Initialising costs no more than torch's own, and the moments of an unseen activation cost milliseconds.

Claims: over all weights of a ResNet-50 and a ViT-B, sphere_ ≤ 1.2 × kaiming_normal_ and orthonormal_ ≤ 1.05 ×
orthogonal_; the moments of an unseen callable ≤ 20 ms if it is smooth or kinked at 0, ≤ 50 ms with a jump anywhere.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shapes
from interleaved import RESULTS, interleave, ratio, show
from unitvar import activation_moments, init
from unitvar_reproduction import record

CALLABLES: dict[str, tuple[float, Callable[[Tensor], Tensor]]] = {
    "x sigmoid(1.702 x)": (20, lambda x: x * torch.sigmoid(1.702 * x)),
    "tanh approximation of gelu": (20, lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))),
    "sin(x) + x": (20, lambda x: torch.sin(x) + x),
    "x tanh(softplus(x))": (20, lambda x: x * torch.tanh(F.softplus(x))),
    "relu(x)²": (20, lambda x: F.relu(x).square()),
    "max(x, 0.1 x)": (20, lambda x: torch.maximum(x, 0.1 * x)),
    "elu(x, 0.7)": (20, lambda x: F.elu(x, 0.7)),
    "x if x > 0.731 else 0.1 x + 3": (50, lambda x: torch.where(x > 0.731, x, 0.1 * x + 3)),
    "1 if x > -1.23 else 0": (50, lambda x: (x > -1.23).to(x)),
    "round(x)": (50, torch.round),
}


def by_quad(fn: Callable[[Tensor], Tensor]) -> tuple[float, float, float]:
    """Compute the same three integrals as one would by hand, with scipy.integrate.quad and autograd."""
    from scipy.integrate import quad

    def at(x: float) -> tuple[float, float]:
        z = torch.tensor([x], dtype=torch.float64, requires_grad=True)
        y = fn(z)
        return y.item(), torch.autograd.grad(y.sum(), z)[0].item() if y.requires_grad else 0.0

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    integrands = (
        lambda x: at(x)[0] * density(x),
        lambda x: at(x)[0] ** 2 * density(x),
        lambda x: at(x)[1] ** 2 * density(x),
    )
    first, second, slope = (quad(g, -10, 10, epsabs=1e-11, epsrel=1e-9, limit=200, points=[0])[0] for g in integrands)
    return first, second, slope


def initialisers() -> list[dict[str, object]]:
    """Time each initialiser against its peer over all weights of a network."""
    rows: list[dict[str, object]] = []
    for network in (shapes.resnet50, shapes.vit_b):
        weights = [torch.empty(shape) for shape in network()]
        pairs: list[tuple[Callable[..., Tensor], Callable[..., Tensor], float, int]] = [
            (init.sphere_, nn.init.kaiming_normal_, 1.2, 41),
            (init.orthonormal_, nn.init.orthogonal_, 1.05, 9),
        ]
        for ours, peer, limit, repeats in pairs:

            def fill(initialise: Callable[..., Tensor], weights: list[Tensor] = weights) -> Callable[[], object]:
                return lambda: [initialise(weight) for weight in weights]

            names = ours.__name__, peer.__name__
            label = f"{network.__name__} {names[0]}"
            times = interleave({names[0]: fill(ours), names[1]: fill(peer)}, repeats=repeats, label=label)
            found = ratio(times, *names)
            rows.append(
                {
                    "network": network.__name__,
                    "ours": names[0],
                    "peer": names[1],
                    "peer ms": statistics.median(times[names[1]]) * 1e3,
                    "ratio": found["median"],
                    "limit": limit,
                    "quartile 1": found["quartile_1"],
                    "quartile 3": found["quartile_3"],
                }
            )
    return rows


def moments() -> list[dict[str, object]]:
    """Time activation_moments on callables that it has never seen, against scipy's quad."""
    rows: list[dict[str, object]] = []
    for name, (limit, fn) in CALLABLES.items():
        competitors = {"ours": lambda fn=fn: activation_moments(lambda x: fn(x)), "quad": lambda fn=fn: by_quad(fn)}
        times = interleave(competitors, repeats=15, label=name)
        rows.append(
            {
                "callable": name,
                "ms": statistics.median(times["ours"]) * 1e3,
                "limit ms": float(limit),
                "ratio to quad": ratio(times, "ours", "quad")["median"],
            }
        )
    return rows


def remembered() -> list[dict[str, object]]:
    """Time a name that was asked for before."""
    times = interleave(
        {"1000 calls": lambda: [activation_moments("gelu") for _ in range(1000)]}, repeats=15, label="name"
    )
    return [{"call": 'activation_moments("gelu"), again', "µs": statistics.median(times["1000 calls"]) * 1e3}]


if __name__ == "__main__":
    import warnings

    import scipy.integrate  # noqa: F401  # its first import is not what is measured

    warnings.simplefilter("ignore")  # quad complains where it does not converge
    found = {"initialisers": initialisers(), "moments": moments(), "remembered": remembered()}
    show("Initialising every weight, ratio to torch", found["initialisers"])
    show("Moments of an unseen callable", found["moments"])
    show("Moments of a name that was asked for before", found["remembered"])
    record.save(RESULTS / "init.json", found)
