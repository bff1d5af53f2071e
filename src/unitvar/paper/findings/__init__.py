"""What each experiment found, in words and numbers, beside what the paper claims.

A function for each experiment turns its saved JSON into a section of the report. Every number is read from there. A new
experiment is a module here and a line in SECTIONS, which has the order of the page.
"""

from __future__ import annotations

from collections.abc import Callable

from unitvar.paper.findings.batchnorm import cost, reestimation
from unitvar.paper.findings.densenet import densenet
from unitvar.paper.findings.section import VERDICTS, Grid, Payload, Section
from unitvar.paper.findings.trained import digits, mnist
from unitvar.paper.findings.untrained import backward, factors, forward, stability, table1
from unitvar.paper.findings.vgg import vgg

__all__ = ["SECTIONS", "VERDICTS", "Grid", "Section"]

SECTIONS: dict[str, Callable[[Payload], Section]] = {
    "table1": table1,
    "forward": forward,
    "backward": backward,
    "mnist": mnist,
    "mnist_small": mnist,
    "digits": digits,
    "factors": factors,
    "vgg": vgg,
    "vgg_small": vgg,
    "densenet": densenet,
    "densenet_small": densenet,
    "reestimation": reestimation,
    "stability": stability,
    "cost": cost,
}
