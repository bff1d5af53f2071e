"""Switches of torch that belong to the whole process, shared by all threads that need them.

Such a switch cannot be set for one thread alone, so its holders are counted: the first one switches, the last one puts
back what was there before. Two threads then never undo each other's setting, nor leave one behind. Each of these
switches changes how fast other threads run, not what they compute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

from unitvar._torch import FAKE_LOGGER, may_compile, mkldnn_enabled, set_mkldnn_enabled

__all__ = ["Switch", "attention_in_parts", "recurrences_in_steps", "uncompiled", "without_fake_logs"]


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
        self._holders = 0
        self._open = ExitStack()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the setting changed for the length of a block."""
        with self._lock:
            if not self._holders:
                self._open.enter_context(self._setting())
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    self._open.close()


@contextmanager
def _fast_path_off() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _fused_off() -> Iterator[None]:
    before = mkldnn_enabled(), torch.backends.cudnn.enabled
    set_mkldnn_enabled(False)
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        set_mkldnn_enabled(before[0])
        torch.backends.cudnn.enabled = before[1]


@contextmanager
def _logger_off() -> Iterator[None]:
    logger = logging.getLogger(FAKE_LOGGER)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


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


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled modules as they were written: compiled code would skip whoever looks on."""
    if not may_compile():
        yield
        return
    with _EAGER.held():
        yield
