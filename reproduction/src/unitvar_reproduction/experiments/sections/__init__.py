"""What each experiment found, in words and numbers, beside what the paper claims.

A function for each experiment turns its saved JSON into a section of the report. Every number is read from there. A new
experiment is a module here and a line in SECTIONS, which has the order of the page.
"""

from __future__ import annotations

from collections.abc import Callable

from unitvar_reproduction.experiments.densenet.section import densenet
from unitvar_reproduction.experiments.section import VERDICTS, Grid, Payload, Section
from unitvar_reproduction.experiments.sections.batchnorm import cost, reestimation
from unitvar_reproduction.experiments.sections.trained import digits, mnist
from unitvar_reproduction.experiments.sections.untrained import backward, factors, forward, stability, table1
from unitvar_reproduction.experiments.trainability.section import trainability
from unitvar_reproduction.experiments.training.section import training
from unitvar_reproduction.experiments.vgg.section import vgg

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
    "vgg_medium": vgg,
    "vgg_small": vgg,
    "trainability": trainability,
    "trainability_small": trainability,
    "densenet": densenet,
    "densenet_medium": densenet,
    "densenet_small": densenet,
    "reestimation": reestimation,
    "stability": stability,
    "cost": cost,
    "training": training,
}
