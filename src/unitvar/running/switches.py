"""Switches of torch that belong to the whole process, shared by all threads that need them.

Such a switch cannot be set for one thread alone, so its holders are counted: the first one switches, the last one puts
back what was there before. Two threads then never undo each other's setting, nor leave one behind. Each of these
switches changes how fast other threads run, not what they compute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch

from unitvar._torch import (
    FAKE_LOGGER,
    cudnn_enabled,
    may_compile,
    mkldnn_enabled,
    set_cudnn_enabled,
    set_mkldnn_enabled,
)
from unitvar.running.undo import Undo, undoing

__all__ = ["Switch", "attention_in_parts", "recurrences_in_steps", "stay_uncompiled", "uncompiled", "without_fake_logs"]


class Switch:
    """Hold a process-wide setting for as long as any thread needs it.

    Args:
        setting: makes a context manager that changes the setting and puts it back. The first holder enters it, the last
            one leaves it, which may be another thread.

    Example:
        >>> from contextlib import contextmanager
        >>> @contextmanager
        ... def spoken():
        ...     print("on")
        ...     yield
        ...     print("off")
        >>> switch = Switch(spoken)
        >>> with switch.held(), switch.held():
        ...     print("held twice")
        on
        held twice
        off
    """

    def __init__(self, setting: Callable[[], AbstractContextManager[object]]) -> None:
        self._setting = setting
        self._lock = threading.Lock()
        self._holders: set[object] = set()
        self._open: AbstractContextManager[object] | None = None

    def held(self) -> AbstractContextManager[None]:
        """Keep the setting changed for the length of a block."""
        return _held(self)

    def hold(self, undo: Undo) -> None:
        """Keep the setting changed until an Undo puts it back."""
        holder = object()  # nobody else's: to release it twice does no harm
        undo.add(lambda: self._release(holder))
        self._hold(holder)

    def _hold(self, holder: object) -> None:
        with self._lock:
            self._holders.add(holder)
            if self._open is None:
                self._open = self._setting()
                try:
                    self._open.__enter__()
                except BaseException:
                    self._open = None
                    raise

    def _release(self, holder: object) -> None:
        with self._lock:
            self._holders.discard(holder)
            if not self._holders and self._open is not None:
                self._open.__exit__(None, None, None)
                self._open = None


@undoing()
def _held(undo: Undo, switch: Switch) -> None:
    switch.hold(undo)


# The settings stand for themselves: the last holder, who leaves them, may be of another thread than the first.
@undoing(alone=True)
def _fast_path_off(undo: Undo) -> None:
    undo.add(partial(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()))
    torch.backends.mha.set_fastpath_enabled(False)


@undoing(alone=True)
def _fused_off(undo: Undo) -> None:
    undo.add(partial(set_mkldnn_enabled, mkldnn_enabled()))
    undo.add(partial(set_cudnn_enabled, cudnn_enabled()))
    set_mkldnn_enabled(False)
    set_cudnn_enabled(False)


@undoing(alone=True)
def _logger_off(undo: Undo) -> None:
    logger = logging.getLogger(FAKE_LOGGER)
    undo.add(partial(setattr, logger, "disabled", logger.disabled))
    logger.disabled = True


_FAST_PATH = Switch(_fast_path_off)
_FUSED = Switch(_fused_off)
_LOGGER = Switch(_logger_off)
_EAGER = Switch(lambda: torch.compiler.set_stance("force_eager"))


def attention_in_parts() -> AbstractContextManager[None]:
    """Keep attention in parts that can be seen: its fast path is a single op."""
    return _FAST_PATH.held()


def recurrences_in_steps() -> AbstractContextManager[None]:
    """Have recurrences computed step by step: a fused kernel shows no pre-activation."""
    return _FUSED.held()


def without_fake_logs() -> AbstractContextManager[None]:
    """Keep torch from logging what fails without data: it works with data, or is raised then."""
    return _LOGGER.held()


@undoing()
def uncompiled(undo: Undo) -> None:
    """Run compiled modules as they were written: compiled code would skip whoever looks on."""
    stay_uncompiled(undo)


def stay_uncompiled(undo: Undo) -> None:
    """Do what :func:`uncompiled` does until an Undo puts it back."""
    if may_compile():
        _EAGER.hold(undo)
