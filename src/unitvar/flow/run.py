"""measure(): real runs with real gradients, after which the model is as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import gradient_hooks
from unitvar.flow.meter import Meter, Sampler, measuring
from unitvar.flow.predict import Predictions, predict
from unitvar.flow.report import LayerFlow, NormGap, VarianceReport
from unitvar.flow.shares import MeasuredShares
from unitvar.flow.tally import Tally
from unitvar.running.calling import call, check_real, copied, device_of, flattened, moved
from unitvar.running.example import check_example, explained
from unitvar.running.gathering import sharding_kept
from unitvar.running.lazy import lazy_kept, materialise
from unitvar.running.modes import dropout_off
from unitvar.running.modules import inner, modules_tracked
from unitvar.running.randomness import random_state_kept
from unitvar.running.restore import values_kept
from unitvar.running.shards import from_first_rank, fsdp_modules, resharded, sharded, spread_like, whole
from unitvar.running.switches import recurrences_in_steps
from unitvar.running.undo import Undo, undoing
from unitvar.running.untouched import untouched
from unitvar.shown import progress_bar

__all__ = ["measure", "sample"]

Loss = Callable[[Any], Tensor]


def measure(
    model: nn.Module, batch: Any, *, loss: Loss | None = None, runs: int = 4, progress: bool = False
) -> VarianceReport:
    r"""Measure signals and gradients in every layer of a model, beside what is predicted for its weights.

    The model is run in train mode, dropout on, with autograd. For every use of a weight, in execution order: mean and
    variance of the pre-activation z, the variance of the gradient g = dL/dz, and the share of units that no gradient
    reaches. *Variance* is the mean square over all elements, as in the theory: units, positions, examples and runs.
    Predictions assume weights that are independent of each other and of the data, with the mean and the mean square
    that they have: they hold at initialisation, and after training they tell how far it has led away from that.

    The model is left unchanged: parameters, buffers, ``.grad``, flags, hooks and random state.

    Args:
        model: any module, in any mode; wrapped by DistributedDataParallel or compiled, what is inside is measured, on
            this process's batch.
        batch: a tensor; a tuple of positional arguments; a dict of keyword arguments.
        loss: ``loss(output)``, a scalar. Default: the sum of all floating-point outputs, each element with a random
            sign, so that E g² is one at the output.
        runs: how often to run, with other masks and other signs each time.
        progress: show a tqdm bar over the runs and the prediction; for large models.

    Returns:
        The report; ``print`` it, or ``.plot()`` it.

    Example:
        >>> net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
        >>> report = measure(net, torch.randn(256, 64))
        >>> [layer.name for layer in report]
        ['0.weight', '3.weight']
        >>> round(report["3.weight"].gradient, 6)
        1.0
    """
    _check(loss, runs)
    check_example(batch)
    model = inner(model)
    with progress_bar(runs + 1, progress) as done, Undo() as undo, undo, _prepared(model, batch) as batch:
        with _running(model) as path:
            shares = MeasuredShares(_examples(batch))
            meter = Meter(model, path, norms=True, sampler=shares)
            outputs: list[Tally] = []
            for run in range(runs):
                shares.begin()
                _run(model, batch, loss, meter, outputs, run)
                done()
            off = _without_noise(model, batch, path) if meter.norms else {}
        # The default loss has E g² = 1 at every output; an output that the model uses itself gets more than the loss's.
        seconds = [(1.0 if loss is None and tally.count else tally.second) or 0.0 for tally in outputs]
        try:
            with random_state_kept(model):
                (predicted, shifts), why = _predicted(model, copied(batch), seconds), ""
        except Exception as error:  # a model that runs, but not under the recorder
            predicted, shifts, why = {}, {}, f"{type(error).__name__}: {error}"
        done()
    layers = []
    for key, layer in meter.layers.items():
        expected = predicted.get(key)
        found = shares.of(layer, expected.examples if expected else None)
        layers.append(LayerFlow.of(layer, expected, runs, found))
    assert meter.norms is not None
    gaps = [NormGap.of(*key, on, off[key], model, shifts.get(key)) for key, on in meter.norms.items() if key in off]
    return VarianceReport(tuple(layers), tuple(gaps), runs, why)


def sample(model: nn.Module, batch: Any, sampler: Sampler) -> None:
    """Run a model once in train mode, and hand every layer's input and pre-activation to a function.

    Args:
        model: as in :func:`measure`.
        batch: as in :func:`measure`.
        sampler: is called with the layer, what reaches its weight, and its pre-activation; it must not keep them.
    """
    check_example(batch)
    model = inner(model)
    with Undo() as undo, undo, _prepared(model, batch) as batch, _running(model) as path, torch.no_grad():
        meter = Meter(model, path, sampler=sampler)
        with meter:
            _call(model, copied(batch))
        meter.settle()


def _check(loss: Loss | None, runs: int) -> None:
    if loss is not None and not callable(loss):
        raise TypeError(f"loss={loss!r} is not a function of the model's output that returns a scalar.")
    if isinstance(runs, bool) or not isinstance(runs, int):
        raise TypeError(f"runs={runs!r} is not a whole number.")
    if runs < 1:
        raise ValueError(f"runs={runs} is not 1 or more.")


@undoing()
def _prepared(undo: Undo, model: nn.Module, batch: Any) -> Any:
    """Return the batch as the model wants it, lazy layers made real for as long as that takes."""
    device = device_of(model)
    check_real(model)
    resharded(model)  # what FSDP2 has left gathered has no memory of its own to come back to
    undo.enter(torch.inference_mode(False))
    undo.enter(lazy_kept(model))
    batch = moved(copied(batch), device)
    with untouched(model, attributes=False):
        materialise(model, batch)
    return batch


@undoing()
def _running(undo: Undo, model: nn.Module) -> Callable[[], str]:
    """Put back all that runs change, and open up what would compute many ops in one."""
    undo.enter(untouched(model))
    undo.enter(sharding_kept(model))  # what attributes then come back to are shards
    undo.enter(values_kept(model))
    undo.enter(_gradients_kept(model))
    if any(isinstance(m, nn.RNNBase) for m in model.modules()):
        undo.enter(recurrences_in_steps())
    if "torch.jit" in sys.modules:  # its optimiser takes gradients out of autograd's hands
        undo.enter(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
    paths = undo.enter(modules_tracked(model))
    undo.enter(measuring())
    return lambda: paths[-1]


@undoing()
def _gradients_kept(undo: Undo, model: nn.Module) -> None:
    """Set gradients aside, and what acts on them as soon as they are there."""
    for p in model.parameters():
        undo.add(partial(setattr, p, "grad", p.grad))
        p.grad = None
        table = gradient_hooks(p)
        if table:
            undo.add(partial(table.update, dict(table)))
            table.clear()


def _call(model: nn.Module, batch: Any) -> Any:
    try:
        return call(model, batch)
    except Exception as error:
        raise explained(error, batch, model) from error.__cause__


def _run(model: nn.Module, batch: Any, loss: Loss | None, meter: Meter, outputs: list[Tally], run: int) -> None:
    meter.begin()
    batch = copied(batch)  # a model may write to its input
    with torch.enable_grad():
        with meter:
            result = _call(model, batch)
        meter.settle()
        floats = [t for t in flattened(result) if isinstance(t, Tensor) and t.is_floating_point()]
        outputs += [Tally() for _ in range(len(floats) - len(outputs))]
        for tensor, tally in zip(floats, outputs, strict=False):
            if tensor.requires_grad:
                tensor.register_hook(tally.add)  # type: ignore[no-untyped-call]
        scalar = _projected(floats, run) if loss is None else _scalar(loss(result))
        if scalar is None or not scalar.requires_grad:
            return
        leaves = [t for t in (*model.parameters(), *_floats(batch)) if t.requires_grad]
        with meter:  # checkpoints run the model again
            # Only .backward() reaches what a reentrant checkpoint hides, and what FSDP2 has gathered.
            if meter.hidden or not leaves or fsdp_modules(model):
                scalar.backward()  # type: ignore[no-untyped-call]
            else:  # touches no .grad and sets off nothing that waits for one
                torch.autograd.grad(scalar, leaves, allow_unused=True)
        meter.settle()


def _projected(floats: list[Tensor], run: int) -> Tensor | None:
    """Sum all outputs with random signs: a gradient of mean square one, its elements independent."""
    generator = torch.Generator("cpu").manual_seed(run)
    terms = []
    for tensor in floats:
        if tensor.requires_grad:
            signs = torch.randint(2, tensor.shape, generator=generator, device="cpu").to(tensor.device) * 2 - 1
            terms.append((tensor.float() * spread_like(signs, tensor)).sum())
    return torch.stack([t.to(terms[0].device) for t in terms]).sum() if terms else None


def _predicted(model: nn.Module, batch: Any, outputs: list[float]) -> Predictions:
    """Predict; of a model that is sharded over ranks, for what it was before, on the first rank's batch."""
    if not sharded(model):
        return predict(model, batch, outputs)
    # Gathering the numbers takes all ranks at once, in one order: they must all run the same.
    batch = from_first_rank(model, moved(batch, torch.device("cpu")))
    with whole(model):
        return predict(model, batch, outputs)


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"loss(output) returned a {type(value).__name__}, not a scalar tensor.")
    if value.numel() != 1:
        raise ValueError(f"loss(output) has shape {tuple(value.shape)}: return a scalar, its mean or its sum.")
    return value.reshape(())


def _without_noise(model: nn.Module, batch: Any, path: Callable[[], str]) -> dict[tuple[str, int], Any]:
    """Measure what reaches each batch norm with all noise off; they still normalise with their batch's statistics."""
    meter = Meter(model, path, norms=True)
    with dropout_off(model), torch.no_grad(), meter:
        _call(model, copied(batch))
    assert meter.norms is not None
    return dict(meter.norms)


def _examples(batch: Any) -> int:
    """Count the examples of a batch: the first dimension of its first tensor."""
    first = next((t for t in flattened(batch) if isinstance(t, Tensor)), None)
    return first.shape[0] if first is not None and first.dim() else 0


def _floats(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from _floats(value)
    elif isinstance(batch, Mapping):
        yield from _floats(tuple(batch.values()))
