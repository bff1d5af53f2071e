"""One step of each optimiser, by hand."""

import pytest
import torch
from torch import Tensor, nn

from unitvar_reproduction.training.schedule import Schedule

RATE, DECAY = 0.01, 0.5
WEIGHT, SLOPE = 2.0, torch.tensor([[3.0, -0.25, -1.5]])  # where the penalty outweighs the loss, the sign is its own


def stepped(slopes: list[Tensor], **options: object) -> list[Tensor]:
    """Return how parameters, all of them WEIGHT, move in one step with these gradients."""
    parameters = [nn.Parameter(torch.full_like(slope, WEIGHT)) for slope in slopes]
    optimiser = Schedule(1, rate=RATE, weight_decay=DECAY, **options).over(parameters)  # type: ignore[arg-type]
    for parameter, slope in zip(parameters, slopes, strict=True):
        parameter.grad = slope.clone()
    optimiser.step()
    return [parameter.detach() - WEIGHT for parameter in parameters]


def test_adam_divides_the_penalty_with_the_gradient() -> None:
    """Coupled L2: a first step is the rate in the direction of gradient and penalty together; AdamW adds more."""
    (moved,) = stepped([SLOPE], optimiser="adam")
    g = SLOPE + DECAY * WEIGHT
    torch.testing.assert_close(moved, -RATE * g / (g.abs() + 1e-8), rtol=1e-4, atol=0)


@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_nesterov_looks_ahead_on_its_first_step(momentum: float) -> None:
    (moved,) = stepped([SLOPE], momentum=momentum)
    torch.testing.assert_close(moved, -RATE * (1 + momentum) * (SLOPE + DECAY * WEIGHT), rtol=1e-4, atol=0)


@pytest.mark.parametrize("decayed", [True, False])
def test_vectors_are_penalised_only_if_asked_for(decayed: bool) -> None:
    weight, bias = stepped([SLOPE, SLOPE[0]], decay_vectors=decayed)
    torch.testing.assert_close(weight, -RATE * 1.9 * (SLOPE + DECAY * WEIGHT), rtol=1e-4, atol=0)
    torch.testing.assert_close(bias, -RATE * 1.9 * (SLOPE[0] + DECAY * WEIGHT * decayed), rtol=1e-4, atol=0)
