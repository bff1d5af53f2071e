"""Dense layers and matrix products."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unitvar.expectation.ops.table import register
from unitvar.expectation.reuse import arithmetic
from unitvar.expectation.uncertain import Common, Source, Uncertain, example_size, mean_of, var_of, wide

__all__ = ["combined", "product"]


@register("linear", keeps=True, mixes=True, keyed=True)
def linear(
    op: Any, x: Any, weight: Any, bias: Any = None, *, keys: tuple[int | None, ...] = (), key: int = 0
) -> Uncertain:
    """Multiply by a weight: exact for independent elements, and for any that other dense layers have mixed."""
    if isinstance(weight, Uncertain) or isinstance(bias, Uncertain):  # dropped weights
        made = product(x, _transposed(weight))
        return made if bias is None else Uncertain(made.mean + mean_of(bias), made.var + var_of(bias))
    mean, matrix = F.linear(x.mean, weight, bias), wide(weight)
    if x.sources:
        sources = tuple(
            Source(s.key, s.var, matrix if s.matrix is None else matrix @ s.matrix) for s in x.sources
        )  # fmt: skip
        return Uncertain(mean, combined(sources), sources=sources)
    if x.common is None:
        sources = (Source(keys[0] or 0, x.var, matrix),) if keys else ()
        return Uncertain(mean, F.linear(x.var, matrix.square()), sources=sources)
    return _with_common(x, mean, matrix)


def _transposed(weight: Any) -> Any:
    return Uncertain(weight.mean.mT, weight.var.mT) if isinstance(weight, Uncertain) else weight.mT


def combined(sources: tuple[Source, ...]) -> Tensor:
    """Return the variance that independent sources add up to."""
    parts = [s.var if s.matrix is None else F.linear(s.var, s.matrix.square()) for s in sources]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _with_common(x: Uncertain, mean: Tensor, matrix: Tensor) -> Uncertain:
    common = x.common
    assert common is not None
    features, out = matrix.shape[1], matrix.shape[0]
    var = F.linear(x.rest, matrix.square())
    if common.block % features == 0:  # whole rows share their noise
        size = F.linear(common.size, matrix)
        return Uncertain(mean, var + size.square(), Common(size, common.block // features * out, common.key))
    if features % common.block == 0:  # a row has several blocks, as a flattened image has channels
        blocks = features // common.block
        sizes = common.size.reshape(*common.size.shape[:-1], blocks, common.block)
        each = torch.einsum("...gb,ogb->...og", sizes, matrix.reshape(out, blocks, common.block))
        return Uncertain(mean, var + each.square().sum(-1))
    return Uncertain(mean, F.linear(x.var, matrix.square()))


def product(a: Any, b: Any) -> Uncertain:
    """Multiply two matrices, of which either or both are uncertain: exact if they are independent."""
    mean = mean_of(a) @ mean_of(b)
    mean_a, mean_b = wide(mean_of(a)), wide(mean_of(b))
    if isinstance(a, Uncertain) and a.weights is not None:
        return _weighted(a, b, mean)
    var = None
    if isinstance(b, Uncertain):
        left = mean_a.square() + a.var if isinstance(a, Uncertain) else mean_a.square()
        var = left @ b.var
    if isinstance(a, Uncertain):
        right = a.var @ mean_b.square()
        var = right if var is None else var + right
    assert var is not None
    return Uncertain(mean, var)


def _weighted(weights: Uncertain, values: Any, mean: Tensor) -> Uncertain:
    """Average values with softmax weights.

    The weights sum to one, so only differences between values count: an error in a logit moves the average towards its
    value or away from it. What dropout on the weights adds is independent of that.
    """
    assert weights.weights is not None
    centre, (spread, extra) = wide(mean_of(values)), weights.weights
    wide_mean = wide(mean)
    own = spread if extra is None else spread + extra  # what dropout adds counts from zero, not from the average
    var = own @ centre.square()
    o = arithmetic(spread, extra, centre, weights.mean)
    shift = o.sub(wide_mean * spread.sum(-1, keepdim=True), spread @ centre, alpha=2)
    var = o.clamp(o.addcmul(var, wide_mean, shift), 0)
    if isinstance(values, Uncertain):
        square = wide(weights.mean).square()
        var = o.add(var, o.add(square, weights.var) @ values.var)
    return Uncertain(mean, var)


@register("matmul", "mm", "bmm")
def matmul(op: Any, a: Any, b: Any) -> Uncertain:
    """Multiply two matrices."""
    return product(a, b)


@register("addmm", "baddbmm", "addbmm")
def addmm(op: Any, bias: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Uncertain:
    """Multiply two matrices and add a bias."""
    if not isinstance(a, Uncertain) and not isinstance(b, Uncertain):
        mean = op(bias.mean, a, b, beta=beta, alpha=alpha)
        return Uncertain(mean, (beta**2 * bias.var).expand(mean.shape))
    made = product(a, b)
    mean = alpha * made.mean + beta * mean_of(bias)
    return Uncertain(mean, alpha**2 * made.var + beta**2 * var_of(bias))


def spans_examples(x: Uncertain) -> bool:
    """Return True if the common noise covers whole examples."""
    return x.common is not None and x.common.block == example_size(x.mean)
