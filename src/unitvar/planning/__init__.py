"""plan() and initialize_(): every weight of a model, scaled for what reaches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from unitvar.planning import fill, measured
from unitvar.planning.fitting import check_generator
from unitvar.planning.layers import LayerPlan, Plan
from unitvar.planning.options import Options, Overrides
from unitvar.planning.solve import planned
from unitvar.running.calling import check_real, device_of, moved
from unitvar.running.example import check_example, check_numbers
from unitvar.running.lazy import lazy_kept, lazy_on_failure, materialise, uninitialised
from unitvar.running.modules import inner
from unitvar.running.shards import from_first_rank, resharded, sharded, whole
from unitvar.running.undo import Undo
from unitvar.running.untouched import untouched

__all__ = ["LayerPlan", "Plan", "initialize_", "plan"]

Inputs = str | tuple[float, float] | list[tuple[float, float]]


def plan(
    model: nn.Module,
    example: Any,
    *,
    mode: str = "forward",
    distribution: str = "sphere",
    residual: str = "auto",
    gain: float | str = 1.0,
    embeddings: str = "keep",
    only: str | Sequence[str] | None = None,
    inputs: Inputs = "auto",
    rules: Overrides | None = None,
    strict: bool = False,
) -> Plan:
    r"""Compute the scale of every weight of a model, and change nothing.

    The model is run once in train mode, on tensors without data, and the moments of its signals are followed from
    op to op. A weight gets the row norm s that gives its output unit second moment, :math:`s^2 = 1 / E[x^2]`, where x
    is what reaches it after all activations, dropouts, pools, sums and norms (or the norm of another ``mode``).

    Args:
        model: any module, in any mode, on any device, the meta device too.
        example: a batch: a tensor; a tuple of positional arguments; a dict of keyword arguments. NaN, another dtype
            than the model takes, and a batch that it cannot run are refused before anything is planned.
        mode: ``"forward"``, ``"backward"``, ``"mean"`` or ``"paper"``, as in :func:`unitvar.init.gain`.
        distribution: ``"sphere"``, ``"orthonormal"``, ``"normal"`` or ``"uniform"``.
        residual: what each of n residual branches adds to its stream: ``"scaled"``, E b² = 1/n, by its last weight;
            ``"damped"``, E b² = n^(-3/2), by all of its weights; ``"auto"``, damped in post-norm streams and scaled in
            others; ``"unit"``, E b² = 1; ``"zero"``, nothing, so that the network starts as its skips. ``mode="paper"``
            ignores branches.
        gain: multiplies every weight but those that make an output; below 1, signals shrink with depth. ``"auto"``:
            0.03^(1/layers) in networks without norms and skips where the noise of dropout masks drowns the signal, 1 in
            all others; ``Plan.gain`` says which.
        embeddings: ``"keep"``, or ``"unit"``: unit second moment; a table that is also the output layer's weight gets
            the scale that gives the output unit second moment, and so do the tables beside it.
        only: shell pattern or patterns on parameter names, any name of a tied one; all others keep their values.
        inputs: ``"measured"`` (mean and variance of the example), ``"standard"`` (zero mean, unit variance),
            ``(mean, std)``, a list of pairs, one for each floating-point tensor, or ``"auto"``: measured if the example
            has numbers, standard if it is constant (``torch.zeros``) or on the meta device. The plan says which.
        rules: op name → rule, for this call; see :func:`unitvar.rule`. A pair is a rule and its backward factor; a
            function alone keeps that of the op. A warning names an op that the model does not run.
        strict: whether an op without a rule is an error.

    Returns:
        The plan; ``print`` it.

    Example:
        >>> net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
        >>> print(plan(net, torch.zeros(1, 64)))  # doctest: +ELLIPSIS
        sphere weights, mode forward: 2 weights, 0 left alone
        ...
    """
    options = Options(
        mode=mode, distribution=distribution, residual=residual, gain=gain, embeddings=embeddings, only=only,
        inputs=inputs, rules=rules, strict=strict,
    )  # fmt: skip
    check_example(example)
    check_numbers(example)
    model = inner(model)
    with Undo() as undo, undo, lazy_kept(model):
        _materialise(model, example)
        return _planned(model, example, options)


def initialize_(
    model: nn.Module,
    example: Any,
    *,
    method: str = "analytic",
    mode: str = "forward",
    distribution: str = "sphere",
    residual: str = "auto",
    gain: float | str = 1.0,
    embeddings: str = "keep",
    only: str | Sequence[str] | None = None,
    inputs: Inputs = "auto",
    rules: Overrides | None = None,
    strict: bool = False,
    generator: torch.Generator | None = None,
) -> Plan:
    """Fill every weight of a model, scaled for what reaches it, and zero the biases of those layers.

    Norms, frozen weights and parametrised weights are not changed, and embeddings only with ``embeddings="unit"``. The
    plan lists what it leaves alone.

    If planning or ``method="measured"`` fails, nothing has changed. Filling keeps no copy of the weights. An interrupt
    (Ctrl-C) is raised after all of them are filled. If memory runs out, a note on the error says which weights are
    filled.

    A model that FSDP2 or tensor parallelism has sharded is filled shard by shard, see :meth:`Plan.apply_`; every rank
    must call it, and the plan is that of the first rank's example.

    Args:
        model: as in :func:`plan`, changed in place.
        example: as in :func:`plan`; real data for ``method="measured"``.
        method: ``"analytic"``, or ``"measured"``: then one forward pass with dropout on rescales each weight as soon
            as its output is computed, so that it has unit second moment on this batch, whatever the ops. With either,
            a bias that ``only`` excludes is added on top. (Recurrences, whose ops show no pre-activation, and layers
            that the pass skips at random keep their analytic scale.)
        mode: as in :func:`plan`.
        distribution: as in :func:`plan`.
        residual: as in :func:`plan`.
        gain: as in :func:`plan`.
        embeddings: as in :func:`plan`.
        only: as in :func:`plan`.
        inputs: as in :func:`plan`.
        rules: as in :func:`plan`.
        strict: as in :func:`plan`.
        generator: draws the weights, leaving the global random state alone; default: the global one.

    Returns:
        The plan that was followed; after ``method="measured"``, with the scales that came out: the root mean square of
        the norms of a weight's rows.

    Example:
        >>> net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
        >>> _ = initialize_(net, torch.zeros(1, 64))
        >>> net[3].weight.norm(dim=1).round(decimals=4)[:3]
        tensor([1., 1., 1.], grad_fn=<SliceBackward0>)
    """
    options = Options(
        mode=mode, distribution=distribution, residual=residual, gain=gain, embeddings=embeddings, only=only,
        inputs=inputs, rules=rules, strict=strict, method=method,
    )  # fmt: skip
    check_example(example)
    check_numbers(example)
    check_generator(generator)
    model = inner(model)
    if method == "measured":
        check_real(model)
    if method == "measured" and sharded(model):
        raise ValueError(
            'method="measured" rescales whole weights, and this model is sharded over ranks (DTensor parameters): use '
            'method="analytic", or initialize with "measured" before sharding, and apply that plan: plan.apply_(model).'
        )
    with torch.inference_mode(False), Undo(on_failure=True) as undo, undo, lazy_on_failure(model):
        _materialise(model, example)
        made = _planned(model, example, options)
        if method == "measured":
            parameters = dict(model.named_parameters())
            touched = [parameters[n] for layer in made.layers for n in (layer.name, *layer.biases)]
            with fill.kept_on_failure(touched, generator):
                if (interrupt := fill.fill(model, made, generator)) is not None:
                    raise interrupt
                factors = measured.rescale(model, example, made)
            scaled = (replace(x, scale=x.scale * factors.get(x.name, 1.0)) for x in made.layers)
            return replace(made, layers=tuple(scaled))
        interrupt = fill.fill(model, made, generator)
    if interrupt is not None:  # here, where lazy layers keep what they were filled with
        raise interrupt
    return made


def _planned(model: nn.Module, example: Any, options: Options) -> Plan:
    """Plan a model; one that is sharded over ranks, as it was before, on the first rank's example."""
    if not sharded(model):
        return planned(model, example, options)
    resharded(model)
    example = from_first_rank(model, moved(example, torch.device("cpu")))  # plans of other batches are other plans
    try:
        with whole(model):
            return planned(model, example, options)
    except Exception as error:
        error.add_note(
            "The model is sharded over ranks, so it was planned without the values of its parameters. If that caused "
            "this error, make the plan before sharding and fill the sharded model with plan.apply_(model)."
        )
        raise


def _materialise(model: nn.Module, example: Any) -> None:
    if uninitialised(model) and device_of(model).type != "meta":
        with untouched(model, attributes=False):
            materialise(model, moved(example, device_of(model)))
