"""What the paper prints, to lay beside what we compute."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STATE_OF_THE_ART", "TABLE1", "TABLE2", "VGG_ERRORS", "Dense", "Printed"]


@dataclass(frozen=True)
class Printed:
    """A row of Table 1: the adjustment factors at N(0, 1), with the error we know of."""

    name: str
    second: float
    slope: float
    decimals: int = 3
    erratum: str = ""


TABLE1 = (
    Printed("identity", 1, 1, decimals=0),
    Printed("relu", 0.5, 0.5, decimals=1),
    Printed("gelu", 0.425, 0.444, erratum="E f'² is 2.6 % low, as a sample of some 1,600 draws would be"),
    Printed("tanh", 0.394, 0.216, erratum="E f'² was squared twice: 0.4644² = 0.2157"),
    Printed("elu", 0.645, 0.671, erratum="E f'² is 0.4 % high, as a sample of some 18,000 draws would be"),
)


@dataclass(frozen=True)
class Dense:
    """A row of Table 2: a DenseNet's test errors in percent, half-way and at the end, with BatchNorm updated or not."""

    dataset: str
    depth: int
    growth: int
    keep: float
    original: float | None
    """What the DenseNet paper reports for this network, if it does."""

    halfway: float
    halfway_updated: float
    end: float
    end_updated: float


TABLE2 = (
    Dense("svhn", 40, 12, 0.8, 1.79, 5.18, 4.19, 1.92, 1.85),
    Dense("cifar10", 100, 12, 0.8, 5.77, 6.37, 6.07, 5.62, 5.38),
    Dense("cifar100", 100, 12, 0.7, None, 24.56, 22.48, 23.91, 22.48),
    Dense("cifar100", 100, 12, 0.8, 23.79, 23.89, 22.86, 22.65, 22.17),
)

STATE_OF_THE_ART = {"cifar10": 5.77, "cifar100": 23.42}
"""What §3 sets out to beat without augmentation; on CIFAR-100 a DenseNet with k = 24, which it does not train."""

VGG_ERRORS = {("nesterov", "paper"): 7.41, ("nesterov", "he"): 24.65, ("adam", "paper"): 9.51, ("adam", "he"): 10.54}
"""Test errors of §2.3.2 in percent, by optimiser and initialisation."""
