"""Training flags: setting them for a while, dropout off among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from unitvar._torch import AnyBatchNorm

__all__ = ["dropout_off", "evaluating", "in_mode"]


@contextmanager
def dropout_off(model: nn.Module) -> Iterator[nn.Module]:
    """Switch off every stochastic layer, while batch norms keep their mode.

    Sets ``training = False`` on every module that is not a batch norm: all that follows ``self.training`` is off,
    whether it is ``nn.Dropout``, dropout inside an LSTM or attention, or noise of your own. The flags themselves are
    set, not ``.eval()`` called, so overridden ``train`` methods have no say. On exit each flag is as it was.

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
    with _flags_set((module for module in model.modules() if not isinstance(module, AnyBatchNorm)), False):
        yield model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Switch every module to evaluation, batch norms too, and put each flag back."""
    with _flags_set(model.modules(), False):
        yield model


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Set every module's training flag, and put each back."""
    with _flags_set(model.modules(), training):
        yield


@contextmanager
def _flags_set(modules: Iterable[nn.Module], training: bool) -> Iterator[None]:
    flags = [(module, module.training) for module in modules]
    try:
        for module, flag in flags:
            if flag != training:
                module.training = training
        yield
    finally:
        for module, flag in flags:
            if module.training != flag:
                module.training = flag
