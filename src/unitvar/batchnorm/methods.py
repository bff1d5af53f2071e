"""The two ways to gather statistics: all layers in one pass, or one layer after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from unitvar._torch import AnyBatchNorm, own_buffers
from unitvar.batchnorm import ranks
from unitvar.batchnorm.feed import check_batches
from unitvar.batchnorm.moments import Moments, Spread
from unitvar.batchnorm.observe import Layer, Observer
from unitvar.batchnorm.options import Options
from unitvar.batchnorm.sweep import Sweep
from unitvar.running.lazy import uninitialised
from unitvar.running.randomness import RandomState


def find_layers(model: nn.Module, *, frozen: bool) -> tuple[list[Layer], dict[str, str]]:
    """Find every BatchNorm with running statistics that may change, and say which are kept.

    Args:
        model: the inner model.
        frozen: whether layers in eval mode whose parameters take no gradient may change too.

    Returns:
        The layers, and name → reason for those that are kept.
    """
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, AnyBatchNorm) and module.running_mean is not None and module.running_var is not None
    ]
    scripted = {name: _SCRIPTED for name, module in model.named_modules() if _is_scripted(module)}
    if not found:
        raise ValueError(
            "The model has no BatchNorm with running statistics (nn.BatchNorm1d/2d/3d, SyncBatchNorm or a subclass, "
            "track_running_stats=True): there is nothing to re-estimate."
            + (f" {len(scripted)} of its modules are {_SCRIPTED}." if scripted else "")
        )
    kept = {} if frozen else {name: "frozen" for name, module in found if _is_frozen(module)}
    if len(kept) == len(found):
        raise ValueError(
            f"All {len(found)} BatchNorm layers are frozen (in eval mode, requires_grad=False): "
            "pass frozen=True to re-estimate them."
        )
    return [Layer(name, module) for name, module in found if name not in kept], kept | scripted


_SCRIPTED = "BatchNorm in TorchScript, whose input cannot be seen: re-estimate before torch.jit.script"


def _is_scripted(module: nn.Module) -> bool:
    if not isinstance(module, torch.jit.ScriptModule):
        return False
    return "BatchNorm" in str(getattr(module, "original_name", "")) and "running_mean" in own_buffers(module)


def _is_frozen(module: AnyBatchNorm) -> bool:
    # Without parameters there is no telling: model.eval() alone freezes nothing.
    parameters = list(module.parameters(recurse=False))
    return not module.training and bool(parameters) and not any(p.requires_grad for p in parameters)


def one_pass(sweep: Sweep, options: Options, start: RandomState, group: ranks.Group) -> int:
    """Gather all layers at once, each batch normalised with its own statistics.

    Args:
        sweep: what to run.
        options: how far to run it.
        start: unused; for the same signature as :func:`sequential`.
        group: the ranks to merge over.

    Returns:
        The number of batches, over all ranks.
    """
    found = ranks.gather(lambda: _first(sweep, options, group), group)
    total = sum(rank.batches for rank in found)
    if total == 0:
        raise ValueError("batches is empty: there is nothing to estimate from. (An iterator that was already used?)")
    sweep.observer.sequences = {sequence: None for rank in found for sequence in rank.sequences}
    _pool(sweep.observer.layers, found)
    return total


def sequential(sweep: Sweep, options: Options, start: RandomState, group: ranks.Group) -> int:
    """Gather layer after layer in execution order, with final statistics in all layers before it.

    The first sweep is a one-pass: it finds the order, and is right for layers that come before all others. A layer that
    is used more than once feeds itself; it is pooled over its uses, normalised with its batch's own statistics.

    Args:
        sweep: what to run.
        options: how far to run it.
        start: the random state from which every sweep starts, so that shuffling and augmentation repeat.
        group: the ranks to merge over.

    Returns:
        The number of batches, over all ranks.
    """
    observer = sweep.observer
    start.restore()
    total = one_pass(sweep, options, start, group)
    order = execution_order(observer)
    later = {name for sequence in observer.sequences for name in sequence[1:]}
    for position, layer in enumerate(order):
        if layer.name in later and position > 0:
            observer.until = layer if layer.most_uses == 1 else None
            layer.clear()
            if sweep.bar is not None:
                sweep.bar.reset(total=sweep.last)
                sweep.bar.set_description(f"BatchNorm {position + 1}/{len(order)}")
            start.restore()
            _pool([layer], ranks.gather(partial(_again, sweep, layer), group))
        layer.finish(options.stats)
        layer.final = True
    return total


def execution_order(observer: Observer) -> list[Layer]:
    """Order the layers that were reached so that each comes after those that came before it in some batch.

    Batches may take different ways. Where their orders contradict each other, the layer with the fewest left before it
    goes first.
    """
    sequences = list(observer.sequences)
    before = {name: {n for s in sequences if name in s for n in s[: s.index(name)]} for s in sequences for name in s}
    order: list[str] = []
    while before:
        order.append(min(before, key=lambda name: len(before[name].difference(order))))
        del before[order[-1]]
    by_name = {layer.name: layer for layer in observer.layers}
    return [by_name[name] for name in order]


@dataclass(frozen=True)
class _Found:
    """What one rank sends to the others."""

    batches: int
    sequences: list[tuple[str, ...]]
    layers: dict[str, tuple[Moments | None, Spread, int]]


def _first(sweep: Sweep, options: Options, group: ranks.Group) -> _Found:
    check_batches(sweep.batches, repeatedly=options.method == "sequential")
    batches = sweep.run(options.max_batches, options.tolerance)
    if batches == 0 and group is not None and (lazy := uninitialised(sweep.model)):
        raise ValueError(f"Lazy layer {lazy[0]!r} needs a batch to be initialised, but this rank has none.")
    observer = sweep.observer
    return _found(batches, observer, observer.layers)


def _again(sweep: Sweep, layer: Layer) -> _Found:
    before = sweep.last
    batches = sweep.run(before)
    if batches != before:
        raise ValueError(
            f"The first pass read {before} batches, but the pass for BatchNorm {layer.name!r} read {batches}: "
            "method='sequential' needs an iterable that yields the same batches on every pass."
        )
    return _found(batches, sweep.observer, [layer])


def _found(batches: int, observer: Observer, layers: Sequence[Layer]) -> _Found:
    return _Found(
        batches,
        list(observer.sequences),
        {layer.name: (layer.pooled, layer.spread, layer.most_uses) for layer in layers},
    )


def _pool(layers: Sequence[Layer], found: Sequence[_Found]) -> None:
    """Merge what all ranks found, in rank order, so that each arrives at the same bits."""
    for layer in layers:
        layer.clear()
        for pooled, spread, uses in (rank.layers[layer.name] for rank in found):
            if pooled is not None:
                layer.pooled = pooled if layer.pooled is None else layer.pooled.merge(pooled)
                layer.spread.merge(spread)
                layer.most_uses = max(layer.most_uses, uses)
        if layer.pooled is not None and layer.pooled.count < 2:
            raise ValueError(
                f"BatchNorm {layer.name!r} received a single value per channel in all batches, which has no "
                "variance: pass more or larger batches."
            )
        if layer.pooled is not None:
            layer.remember()  # it may have been reached on other ranks only
