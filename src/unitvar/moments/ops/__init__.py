"""What each op does to a signal: one file a family, and in it, for each op, all that is known of it."""

from unitvar.moments.ops import (
    attention,
    borders,
    convolution,
    embeddings,
    interpolation,
    joins,
    linear,
    masks,
    noise,
    norms,
    pointwise,
    pooling,
    recurrent,
    reductions,
    views,
)

__all__ = [
    "attention", "borders", "convolution", "embeddings", "interpolation", "joins", "linear", "masks", "noise", "norms",
    "pointwise", "pooling", "recurrent", "reductions", "views",
]  # fmt: skip
