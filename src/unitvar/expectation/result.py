"""The result: means, variances, and for logits the uncertainties that users of MC dropout know."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unitvar.expectation.uncertain import Source, Uncertain, wide
from unitvar.running.calling import flattened
from unitvar.shown import counted, html_table, notes

__all__ = ["Expectation"]

_POINTS = 128
_MOST_DIMENSIONS = 21_201  # of torch's Sobol sequence
_LARGEST_COVARIANCE = 256  # classes up to which logits are drawn with their covariance
_CHUNK = 1 << 22


@dataclass(frozen=True, eq=False, repr=False)
class Expectation:
    """Mean and variance of a model's output over its dropout.

    Attributes:
        mean: the mean, in the structure that the model returns.
        var: the variance of each element, in the same structure; float32 for outputs in half precision.
        methods: how each kind of op was computed: "exact" (for independent elements), "closed form" or "quadrature"
            (for Gaussian ones), "closed form and quadrature" (mean and variance), "first order", "independent",
            "sampled", "at the mean".
        sampled: ops without a rule, which were sampled or taken at the mean, and the module of the first.
    """

    mean: Any
    var: Any
    methods: Mapping[str, str] = field(default_factory=dict)
    sampled: Mapping[str, str] = field(default_factory=dict)
    logits: Any = None

    @property
    def _headline(self) -> str:
        tensors = [t for t in flattened(self.mean) if isinstance(t, Tensor)]
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors[:3]) + (", …" if len(tensors) > 3 else "")
        many = f"{counted(len(self.sampled), 'op')} sampled" if self.sampled else "no op sampled"
        return f"mean and variance of {counted(len(tensors), 'tensor')} of shape {shapes}; {many}"

    def __repr__(self) -> str:
        return f"<Expectation: {self._headline}>"

    def _repr_html_(self) -> str:
        sampled = [f"{op} in {where or 'the model itself'} was sampled" for op, where in self.sampled.items()]
        table = html_table(("op", "how it was followed"), self.methods.items(), words=2)
        return notes(self._headline) + table + notes(*sampled)

    @property
    def std(self) -> Any:
        """Return the standard deviation of a single output."""
        if not isinstance(self.var, Tensor):
            raise TypeError(f"The output is a {type(self.var).__name__}; take the root of the variance that you need.")
        return self.var.sqrt()

    @cached_property
    def probabilities(self) -> Tensor:
        """Return E softmax(logits), classes last.

        The logits are taken as Gaussian and the mean is that of 128 quasi-random draws (Sobol), always the same ones.
        Where the last layer is linear the draws have its covariance, for up to 256 classes; otherwise logits are
        independent.
        """
        return self._drawn[0]

    @cached_property
    def entropy(self) -> Tensor:
        """Return the entropy of the mean probabilities, in nats: the whole uncertainty of the prediction."""
        return _entropy(self.probabilities)

    @cached_property
    def mutual_information(self) -> Tensor:
        """Return the entropy of the mean less the mean entropy: the part that is due to dropout, as BALD has it."""
        return (self.entropy - self._drawn[1]).clamp_min(0)

    @cached_property
    def _drawn(self) -> tuple[Tensor, Tensor]:
        logits = self._the_logits()
        # What was computed without gradients has none, wherever it is asked for: the covariance is made of parameters.
        with torch.set_grad_enabled(torch.is_grad_enabled() and logits.mean.requires_grad):
            return self._averaged(logits)

    @staticmethod
    def _averaged(logits: Uncertain) -> tuple[Tensor, Tensor]:
        mean, root = wide(logits.mean), _root(logits)
        classes = mean.shape[-1]
        total, entropy = torch.zeros_like(mean), mean.new_zeros(mean.shape[:-1])
        points = _normal_points(classes).to(mean)
        step = max(1, _CHUNK // max(1, mean.numel()))
        for part in torch.split(points, step):
            noise = part.reshape(-1, *(1 for _ in mean.shape[:-1]), classes)
            moved = noise * root if root.shape == mean.shape else (root @ noise.unsqueeze(-1)).squeeze(-1)
            logs = torch.log_softmax(mean + moved, -1)
            p = logs.exp()
            total = total + p.sum(0)
            entropy = entropy - (p * logs.clamp_min(torch.finfo(mean.dtype).min)).sum((0, -1))
        return total / len(points), entropy / len(points)

    def _the_logits(self) -> Uncertain:
        if isinstance(self.logits, Uncertain) and self.logits.mean.dim() > 0:
            return self.logits
        raise TypeError(
            f"Probabilities need one tensor of logits, classes last; the output is a {type(self.mean).__name__}. Make "
            "the model return its logits alone, or as an attribute or key 'logits'."
        )


def _entropy(p: Tensor) -> Tensor:
    nats: Tensor = -torch.special.xlogy(p, p).sum(-1)
    return nats


def _root(logits: Uncertain) -> Tensor:
    """Return a root of the logits' covariance: a matrix for each example, or standard deviations."""
    classes = logits.mean.shape[-1]
    if not logits.sources or classes > _LARGEST_COVARIANCE:
        return logits.var.sqrt()
    covariance = _covariance(logits.sources, classes)
    values, vectors = torch.linalg.eigh(covariance)  # a root exists where a Cholesky factor does not
    root: Tensor = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
    return root


def _covariance(sources: tuple[Source, ...], classes: int) -> Tensor:
    parts = []
    for _, var, matrix in sources:
        m = torch.eye(classes, dtype=var.dtype, device=var.device) if matrix is None else matrix
        parts.append(torch.einsum("in,...n,jn->...ij", m, var, m))
    return torch.stack(parts).sum(0)


def _normal_points(dimensions: int) -> Tensor:
    """Return fixed points that fill a standard normal distribution evenly."""
    if dimensions > _MOST_DIMENSIONS:
        return torch.randn(_POINTS, dimensions, generator=torch.Generator().manual_seed(0), device="cpu")
    with torch.device("cpu"):  # the engine takes no device
        engine = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=0)  # type: ignore[no-untyped-call]
        points = engine.draw(_POINTS, dtype=torch.float64)
    edge = 0.5 / _POINTS / math.e
    normal: Tensor = torch.special.ndtri(points.clamp(edge, 1 - edge)).float()
    return normal
