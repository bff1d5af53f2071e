"""Process-wide switches: the first in switches, the last out restores."""

import importlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from tests.running.threads import together
from unitvar import _torch
from unitvar.running.switches import Switch, attention_in_parts, recurrences_in_steps, uncompiled, without_fake_logs


def stance() -> str:
    return importlib.import_module("torch._dynamo.eval_frame")._stance.stance


SWITCHES: dict[str, tuple[Callable[[], AbstractContextManager[None]], Callable[[], object], object]] = {
    "fast path": (attention_in_parts, torch.backends.mha.get_fastpath_enabled, False),
    "mkldnn": (recurrences_in_steps, _torch.mkldnn_enabled, False),
    "cudnn": (recurrences_in_steps, lambda: torch.backends.cudnn.enabled, False),
    "logger": (without_fake_logs, lambda: logging.getLogger(_torch.FAKE_LOGGER).disabled, True),
    "stance": (uncompiled, stance, "force_eager"),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_stays_on_until_the_last_of_two_threads_leaves(name: str) -> None:

    switch, read, value = SWITCHES[name]
    before = read()
    assert before != value
    both_in, first_out = threading.Barrier(2, timeout=30), threading.Event()

    def first() -> object:
        with switch():
            both_in.wait()
        first_out.set()
        return read()

    def second() -> object:
        with switch():
            both_in.wait()
            assert first_out.wait(30)
            return read()

    assert together(first, second) == [value, value]
    assert read() == before


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_put_back_after_an_error_and_nests(name: str) -> None:
    switch, read, value = SWITCHES[name]
    before = read()

    def fail() -> None:
        with switch():
            with switch():
                pass
            assert read() == value
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert read() == before


def test_a_setting_that_fails_holds_nothing() -> None:
    calls: list[str] = []

    @contextmanager
    def setting() -> Iterator[None]:
        calls.append("set")
        if len(calls) == 1:
            raise RuntimeError("not now")
        yield
        calls.append("restored")

    switch = Switch(setting)
    with pytest.raises(RuntimeError, match="not now"), switch.held():
        pass
    with switch.held():
        pass
    assert calls == ["set", "set", "restored"]
