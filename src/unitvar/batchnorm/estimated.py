"""Statistics that a model has for a while, and the weights that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unitvar._torch import AnyBatchNorm
from unitvar.batchnorm.buffers import running, write
from unitvar.batchnorm.reestimate import bn_statistics
from unitvar.batchnorm.report import BatchNormReport
from unitvar.running.modules import inner
from unitvar.running.shards import local

__all__ = ["Estimated", "WhenEvaluated"]


class Estimated:
    """Estimate statistics, set them in a model, and take them out again, whatever others swap meanwhile.

    Args:
        model: its statistics are set here and now.
        batches: as for :func:`unitvar.bn_statistics`.
        **options: as for :func:`unitvar.bn_statistics`.

    Attributes:
        report: what was changed, the latest time that the statistics were set.
    """

    def __init__(self, model: nn.Module, batches: Iterable[Any], **options: Any) -> None:
        self._statistics = bn_statistics(model, batches, **options)
        self._weights = _fingerprint(dict(model.named_parameters()))
        self.report: BatchNormReport = self._statistics.apply_(model)

    def apply_(self, model: nn.Module) -> None:
        """Set the statistics again."""
        self.report = self._statistics.apply_(model)

    def undo(self, model: nn.Module) -> None:
        """Put back what was there, unless somebody has swapped all tensors of the model, and ours with them."""
        if self._is_in(model):
            modules = dict(inner(model).named_modules())
            for change in self.report:
                module = modules[change.name]
                assert isinstance(module, AnyBatchNorm)
                write(module, change.old_mean, change.old_var)

    def belongs_to(self, weights: Mapping[str, Any]) -> bool:
        """Return True for the weights that the statistics were estimated with, bit for bit, in a state dict, say."""
        return _fingerprint({name: weights[name] for name in self._weights if name in weights}) == self._weights

    @property
    def state(self) -> dict[str, Tensor]:
        """Return the statistics as a state dict names them."""
        return _named(self.report, "new")

    def others(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the statistics that a model has or had apart from these, as a state dict names them."""
        held = _named(self.report, "old") if self._is_in(model) else model.state_dict()
        return {name: held[name].clone() for name in self.state}

    def _is_in(self, model: nn.Module) -> bool:
        modules = dict(inner(model).named_modules())
        held = ((running(modules[change.name]), (change.new_mean, change.new_var)) for change in self.report)
        return all(torch.equal(have.cpu(), new) for pair in held for have, new in zip(*pair, strict=True))


class WhenEvaluated:
    """Set statistics when a model first runs in eval mode: whoever swaps weights for an evaluation has done so by then.

    A state dict that is taken later has them if the weights are still those of the evaluation, else the old ones.

    Args:
        model: the model that will be evaluated.
        estimate: makes the statistics, and sets them.
    """

    def __init__(self, model: nn.Module, estimate: Callable[[], Estimated]) -> None:
        self._estimate: Callable[[], Estimated] | None = estimate
        self._found: Estimated | None = None
        self._hooks = (
            model.register_forward_pre_hook(self._before_run),
            model.register_state_dict_pre_hook(self._before_save),  # type: ignore[no-untyped-call]
        )

    def end(self, model: nn.Module) -> None:
        """Put back what was there."""
        for hook in self._hooks:
            hook.remove()
        if self._found is not None:
            self._found.undo(model)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_run(self, model: nn.Module, args: Any) -> None:
        estimate = self._estimate
        if estimate is not None and not model.training:
            self._estimate = None  # which runs the model, too
            self._found = estimate()

    def _before_save(self, model: nn.Module, prefix: str, keep_vars: bool) -> None:
        if self._found is not None and not self._found.belongs_to(dict(model.named_parameters())):
            self._found.undo(model)


def _fingerprint(weights: Mapping[str, Tensor]) -> dict[str, float]:
    """Tell weights from others without a copy of them; of sharded ones, what this rank has."""
    with torch.no_grad():
        parts = {name: local(t) for name, t in weights.items()}
        return {name: torch.hash_tensor(t.real).item() for name, t in parts.items() if t.numel()}


def _named(report: BatchNormReport, when: str) -> dict[str, Tensor]:
    return {
        f"{layer.name}.running_{what}": getattr(layer, f"{when}_{what}") for layer in report for what in ("mean", "var")
    }
