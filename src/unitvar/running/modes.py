"""Training flags: setting them for a while, dropout off among them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial

from torch import nn

from unitvar._torch import AnyBatchNorm
from unitvar.running.undo import Undo, undoing

__all__ = ["dropout_off", "evaluating", "in_mode"]


def dropout_off(model: nn.Module) -> AbstractContextManager[nn.Module]:
    """Switch off every stochastic layer, while batch norms keep their mode.

    Sets ``training = False`` on every module that is not a batch norm. This switches off everything that follows
    ``self.training``: ``nn.Dropout``, dropout inside an LSTM or attention, and noise of your own. It sets the flags
    directly instead of calling ``.eval()``, so overridden ``train`` methods do not interfere. On exit each flag is
    restored.

    Args:
        model: the model; it may be in any mode, each module in its own.

    Returns:
        A context manager that gives the model.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        >>> with dropout_off(model):
        ...     [module.training for module in model]
        [False, True, False]
        >>> model[2].training
        True
    """
    return _dropout_off(model)


@undoing(alone=True)
def _dropout_off(undo: Undo, model: nn.Module) -> nn.Module:
    _set_flags(undo, (module for module in model.modules() if not isinstance(module, AnyBatchNorm)), False)
    return model


@undoing()
def evaluating(undo: Undo, model: nn.Module) -> nn.Module:
    """Switch every module to evaluation, batch norms too, and put each flag back."""
    _set_flags(undo, model.modules(), False)
    return model


@undoing()
def in_mode(undo: Undo, model: nn.Module, training: bool) -> None:
    """Set every module's training flag, and put each back."""
    _set_flags(undo, model.modules(), training)


def _set_flags(undo: Undo, modules: Iterable[nn.Module], training: bool) -> None:
    # A frozen TorchScript module has no flag.
    flags = [(module, module.training) for module in modules if hasattr(module, "training")]
    for module, flag in flags:
        undo.add(partial(_set_flag, module, flag))
    for module, _ in flags:
        _set_flag(module, training)


def _set_flag(module: nn.Module, flag: bool) -> None:
    if module.training != flag:
        module.training = flag
