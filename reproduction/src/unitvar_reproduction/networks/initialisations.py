"""The initialisations that are compared: the paper's, Xavier's, He's, ours and torch's own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unitvar import initialize_
from unitvar.init import sphere_
from unitvar_reproduction.training.loop import seeded
from unitvar_reproduction.values import TABLE1

__all__ = ["INITS", "initialise_"]

INITS = ("paper", "paper-half", "xavier", "he", "forward", "mean", "default")


def initialise_(
    model: nn.Sequential,
    name: str,
    *,
    activation: str,
    keep: float,
    example: Tensor,
    generator: torch.Generator,
) -> nn.Sequential:
    """Fill the weights of an MLP in place, and set its biases to zero, but for torch's default, which draws them.

    ``paper`` has the edges and the factors of the authors' release, which are those printed in Table 1; ``paper-half``
    takes 0.5 for the first layer's factor instead of 1. ``xavier`` and ``he`` are those of the release, too: He's is
    sqrt(2 / n) whatever the activation. ``forward`` and ``mean`` are :func:`unitvar.initialize_` in that mode, told
    the second moment of the inputs. ``default`` is what ``nn.Linear`` does to itself.

    Args:
        model: linear layers, each but the last followed by the activation and dropout.
        name: one of INITS.
        activation: its name, as in Table 1.
        keep: 1 - the drop probability.
        example: inputs, for ``forward`` and ``mean``.
        generator: the source of randomness.

    Returns:
        The model.
    """
    if name not in INITS:
        raise ValueError(f"init={name!r} is not one of {', '.join(map(repr, INITS))}.")
    linears = [m for m in model if isinstance(m, nn.Linear)]
    if name == "default":
        with seeded(generator.initial_seed()):
            for layer in linears:
                layer.reset_parameters()
        return model
    for layer in linears:
        nn.init.zeros_(layer.bias)
    if name in ("forward", "mean"):
        initialize_(model, example, mode=name, inputs="measured", generator=generator)
        return model
    for i, layer in enumerate(linears):
        if name == "xavier":
            nn.init.xavier_uniform_(layer.weight, generator=generator)
        elif name == "he":
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2 / layer.in_features), generator=generator)
        else:
            first = 0.5 if name == "paper-half" else 1.0
            place = "first" if i == 0 else "last" if i == len(linears) - 1 else "hidden"
            sphere_(layer.weight, gain=_paper_gain(activation, keep, place, first), generator=generator)
    return model


def _paper_gain(activation: str, keep: float, place: str, first: float) -> float:
    """Return 1 / sqrt(E f² / p + p E f'²) with the printed factors, and the release's at the edges."""
    printed = {row.name: row for row in TABLE1}
    if activation not in printed:
        raise ValueError(f"activation={activation!r} is not in the paper's Table 1: {', '.join(printed)}.")
    row = printed[activation]
    forward = first if place == "first" else row.second / keep
    backward = 1.0 if place == "last" else keep * row.slope
    return 1 / math.sqrt(forward + backward)
