"""What the paper prints, to lay beside what we compute."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TABLE1", "Printed"]


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
