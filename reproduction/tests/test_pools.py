"""Workers of a sweep."""

from __future__ import annotations

import os
import platform
import resource

import pytest
import torch

from unitvar_reproduction.sweep.pools import KEEP_MEMORY, processes

BLOCK = 64 << 20  # bytes; more than glibc ever keeps by itself


def cleared_pages(rounds: int) -> int:
    """Use a large block so many times, and count the pages that the system had to give."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        torch.ones(BLOCK // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEEP_MEMORY:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_a_worker_does_not_ask_for_the_same_pages_again_and_again() -> None:
    pages = BLOCK // resource.getpagesize()
    with processes(1) as pool:
        # A worker that has room left from before needs some pages fewer than one block has; without the settings, 16.
        assert 0.9 * pages <= pool.result(pool.submit(cleared_pages, 16)) < 4 * pages


def test_the_environment_is_the_workers_only() -> None:
    before = variables()
    with processes(1) as pool:
        assert pool.result(pool.submit(variables)).items() >= KEEP_MEMORY.items()
    assert variables() == before
    with pytest.raises(KeyError), processes(1):
        raise KeyError
    assert variables() == before


def test_what_the_user_has_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    before = variables()
    with processes(1) as pool:
        assert pool.result(pool.submit(variables)) == before
    assert variables() == before
