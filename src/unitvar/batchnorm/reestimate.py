"""Re-estimation of BatchNorm statistics with dropout off."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from unitvar.batchnorm import ranks
from unitvar.batchnorm.feed import Forward, undisturbed
from unitvar.batchnorm.methods import execution_order, find_layers, one_pass, sequential
from unitvar.batchnorm.observe import Observer
from unitvar.batchnorm.options import Options
from unitvar.batchnorm.report import BatchNormReport, lone_values
from unitvar.batchnorm.sharded import gathered
from unitvar.batchnorm.statistics import BatchNormStatistics, LayerStatistics, keep
from unitvar.batchnorm.sweep import Sweep, progress_bar
from unitvar.running.calling import check_real
from unitvar.running.lazy import lazy_on_failure
from unitvar.running.modules import inner
from unitvar.running.undo import Undo, undoing
from unitvar.running.untouched import preserved


def reestimate_bn_(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    stats: str = "both",
    method: str = "one-pass",
    forward: Forward | None = None,
    max_batches: int | None = None,
    tolerance: float | None = None,
    frozen: bool = False,
    progress: bool = False,
    group: ranks.Group = None,
) -> BatchNormReport:
    """Recompute the running statistics of every BatchNorm with dropout off, in place.

    Over batches ``b`` with ``n_b`` values per channel, mean ``m_b`` and biased variance ``v_b``,
    ``mu = sum n_b m_b / N`` and ``var = sum n_b (v_b + (m_b - mu)²) / N``, pooled in float64. ``running_var`` gets
    torch's convention, the unbiased ``var N / (N - 1)``. Nothing else in the model changes, nor does the random state.
    If the call fails, nothing has changed at all.

    Args:
        model: any model; wrapped by DistributedDataParallel, compiled or sharded by FSDP2 too.
        batches: an iterable of tensors, of tuples or lists (the first element is the input), or of dicts (keyword
            arguments). Shuffle them: one-pass statistics of deep layers depend on how batches are composed.
        stats: ``"both"``, or ``"var"``, the paper's recipe, which keeps the means.
        method: ``"one-pass"`` normalises each batch with its own statistics; ``"sequential"`` takes one layer at a
            time, in execution order, with final statistics before it: exact for any batch size, at one pass per layer.
        forward: ``forward(model, batch)`` runs a batch your way; it gets the inner module of a wrapped model.
        max_batches: how many batches to use at most.
        tolerance: stop once the relative standard error of the variance is below this in the worst channel.
        frozen: also re-estimate layers in eval mode whose parameters take no gradient.
        progress: show a tqdm bar.
        group: the processes to merge over; None is the default group if there is one, False this process alone.

    Returns:
        What changed, layer by layer.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
        >>> report = reestimate_bn_(model, [torch.randn(32, 8) for _ in range(10)])
        >>> report["2"].values
        320
    """
    options = Options(stats, method, forward, max_batches, tolerance, frozen, progress, group)
    with Undo() as undo, undo, lazy_on_failure(inner(model)):
        return _gathered(model, batches, options).apply_(model)


def bn_statistics(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    stats: str = "both",
    method: str = "one-pass",
    forward: Forward | None = None,
    max_batches: int | None = None,
    tolerance: float | None = None,
    frozen: bool = False,
    progress: bool = False,
    group: ranks.Group = None,
) -> BatchNormStatistics:
    """Compute what :func:`reestimate_bn_` would store, with the counts behind it, and leave the model unchanged.

    The arguments are those of :func:`reestimate_bn_`, which is ``bn_statistics(...).apply_(model)``. Statistics of
    several data sets or sites can be merged exactly, blended with those of a model, saved and applied elsewhere.

    Returns:
        The statistics, layer by layer in execution order.

    Example:
        >>> model = nn.Sequential(nn.BatchNorm1d(1))
        >>> one = bn_statistics(model, [torch.tensor([[1.0], [3.0]])])
        >>> two = bn_statistics(model, [torch.tensor([[8.0]]), torch.tensor([[8.0]])])
        >>> report = one.merge(two).apply_(model)  # as from all four values
        >>> model[0].running_mean, model[0].running_var
        (tensor([5.]), tensor([12.6667]))
    """
    options = Options(stats, method, forward, max_batches, tolerance, frozen, progress, group)
    with Undo() as undo, undo, lazy_on_failure(inner(model)):
        return _gathered(model, batches, options)


def reestimated_bn(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    stats: str = "both",
    method: str = "one-pass",
    forward: Forward | None = None,
    max_batches: int | None = None,
    tolerance: float | None = None,
    frozen: bool = False,
    progress: bool = False,
    group: ranks.Group = None,
) -> AbstractContextManager[BatchNormReport]:
    """Evaluate with re-estimated statistics, then have the old ones back.

    The arguments are those of :func:`reestimate_bn_`. What the block does to the running statistics is undone too.

    Returns:
        A context manager that gives the report.

    Example:
        >>> model = nn.Sequential(nn.BatchNorm1d(2))
        >>> with reestimated_bn(model, [torch.tensor([[1.0, 2.0], [3.0, 4.0]])]):
        ...     model[0].running_mean
        tensor([2., 3.])
        >>> model[0].running_mean
        tensor([0., 0.])
    """
    options = Options(stats, method, forward, max_batches, tolerance, frozen, progress, group)
    return _reestimated(model, batches, options)


@undoing(alone=True)
def _reestimated(undo: Undo, model: nn.Module, batches: Iterable[Any], options: Options) -> BatchNormReport:
    with Undo() as guard, guard, lazy_on_failure(inner(model)):
        found = _gathered(model, batches, options)
        keep(undo, found, model)
        return found.apply_(model)


@torch.inference_mode(False)  # what is gathered here outlives it
def _gathered(model: nn.Module, batches: Iterable[Any], options: Options) -> BatchNormStatistics:
    group = ranks.resolve(options.group)
    model = inner(model)
    check_real(model)
    layers, kept = find_layers(model, frozen=options.frozen)
    observer = Observer(layers)
    bar = progress_bar(batches, options.max_batches, ranks.first(group)) if options.progress else None
    with Undo() as undo:
        if bar is not None:
            undo.add(bar.close)
        source = undo.enter(undisturbed(batches))
        start = undo.enter(preserved(model))
        undo.enter(gathered(model))
        sweep = Sweep(model, source, observer, options.forward, bar)
        gather = one_pass if options.method == "one-pass" else sequential
        with observer.attached():
            total = gather(sweep, options, start, group)
        for layer in layers:
            if layer.old is not None:
                layer.write(*layer.old)  # a lazy layer had nothing yet that preserved() could put back
    order = execution_order(observer)
    kept |= {layer.name: "not reached by any batch" for layer in layers if layer not in order}
    if remark := lone_values(options.method, [(x.name, x.pooled.count, x.spread.batches) for x in order if x.pooled]):
        warnings.warn(remark[0].upper() + remark[1:], stacklevel=3)
    found = tuple(LayerStatistics(x.name, x.pooled.copy(), x.spread) for x in order if x.pooled is not None)
    return BatchNormStatistics(found, kept, options.stats, options.method, total)
