"""One file a family of ops: what each does to means and variances of single elements.

The rules of :mod:`unitvar.moments.ops` say what an op does to one number that stands for all elements, on average over
weights. These say what it does to every element, with the weights as they are, in torch code that autograd, compilation
and export can follow. Little but names would be shared, so each stands by itself.
"""

from unitvar.expectation.ops import (
    activations,
    affine,
    attention,
    convolution,
    linear,
    noise,
    norms,
    pooling,
    recurrent,
    reductions,
    views,
)  # fmt: skip
from unitvar.expectation.ops.table import RULES, Rule, find

__all__ = [
    "RULES", "Rule", "activations", "affine", "attention", "convolution", "find", "linear", "noise", "norms", "pooling",
    "recurrent", "reductions", "views",
]  # fmt: skip
