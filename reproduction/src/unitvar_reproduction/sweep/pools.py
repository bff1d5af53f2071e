"""Where trials run: local processes of one thread each, a Ray cluster, or all processes of a torchrun together."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch

from unitvar_reproduction import record

__all__ = ["Pool", "check_device", "processes", "ray_cluster", "together"]

# glibc gives large blocks back to the system as soon as they are free, and at the next step has to ask for pages again
# that must be cleared, a tenth of a step or so (docs/benchmarks.md). A worker keeps them. Read when a process starts.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have, before any trial is sent there."""
    try:
        torch.empty(1, device=name)
    except Exception as error:  # RuntimeError, AssertionError, NotImplementedError: each backend has its own
        have = ["cpu", *(kind for kind in ("cuda", "mps", "xpu") if getattr(torch, kind).is_available())]
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={name!r} cannot be used here ({reason}); this machine has {', '.join(have)}."
        ) from error


@runtime_checkable
class Pool(Protocol):
    """So many trials at once, wherever they run."""

    size: int

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Start a call; return a handle to it."""

    def wait(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        """Return the handles of calls that are done, after some seconds or as soon as there is one."""

    def result(self, handle: Any) -> Any:
        """Return what a call that is done returned, or raise what it raised."""


class _Local:
    def __init__(self, executor: Executor, size: int) -> None:
        self.size = size
        self._executor = executor

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._executor.submit(function, *arguments)

    def wait(self, handles: Sequence[Future[Any]], seconds: float) -> list[Future[Any]]:
        return list(wait(handles, timeout=seconds, return_when=FIRST_COMPLETED).done)

    def result(self, handle: Future[Any]) -> Any:
        return handle.result()


@contextmanager
def processes(size: int) -> Iterator[Pool]:
    """Give a pool of local processes; what still runs when the block is left by an error is abandoned."""
    # Not fork: torch's thread pools do not survive it.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(size, mp_context=context, initializer=_prepare)
    with _inherited(KEEP_MEMORY):  # workers start when they are needed
        try:
            yield _Local(executor, size)
            executor.shutdown()
        except BaseException:
            for process in list((executor._processes or {}).values()):
                process.terminate()
            executor.shutdown(cancel_futures=True)
            raise


@contextmanager
def _inherited(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for processes that start in the block, unless the user has set one of them."""
    if variables.keys() & os.environ.keys():
        yield
        return
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def _prepare() -> None:
    """Set up a worker: one thread, and an end with its parent, even one that is killed."""
    torch.set_num_threads(1)
    # Dying units leave Adam with denormal moments, on which some processors are a hundred times slower.
    torch.set_flush_denormal(True)
    record.environment()  # which remembers the commit that the worker's code is of
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


@contextmanager
def together() -> Iterator[Pool]:
    """Give a pool that runs one trial at a time in this process, as every process of a torchrun does."""
    # In a thread, so that what is shown of the sweep stays alive.
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    with ThreadPoolExecutor(1, initializer=_prepare_thread, initargs=(device,)) as executor:
        yield _Local(executor, 1)


def _prepare_thread(device: int | None) -> None:
    """Give a thread what each has to itself: how it treats denormals (see _prepare), and its GPU, else the first."""
    torch.set_flush_denormal(True)
    if device is not None:
        torch.cuda.set_device(device)


class _Ray:
    def __init__(self, ray: Any, size: int, gpus: int) -> None:
        self.size = size
        self._ray = ray
        # A trial that the cluster loses (a node goes) is started again by Ray itself.
        self._call = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=3)(_alone)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._call.remote(function, *arguments)

    def wait(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        done, _ = self._ray.wait(list(handles), num_returns=1, timeout=seconds)
        return list(done)

    def result(self, handle: Any) -> Any:
        return self._ray.get(handle)


def _alone(function: Callable[..., Any], *arguments: Any) -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        return function(*arguments)
    finally:  # a process of the cluster serves others after us
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


@contextmanager
def ray_cluster(address: str, size: int | None, device: str = "cpu") -> Iterator[Pool]:
    """Give a pool of a Ray cluster's CPUs, all of them unless a size is given, or of its GPUs if trials run on "cuda".

    The nodes need the same version of both packages, and the data where ``--data-dir`` or their cache has them.
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError("--ray needs Ray: pip install './reproduction[ray]' from a checkout.") from error
    ray.init(address=address, log_to_driver=False)
    try:
        there, gpus = ray.cluster_resources(), int(torch.device(device).type == "cuda")
        if gpus and not there.get("GPU"):
            raise ValueError(f"The Ray cluster at {address!r} has no GPU; add nodes that do, or use --device cpu.")
        most = there["GPU"] if gpus else there.get("CPU", 1)
        yield _Ray(ray, size or max(1, int(most)), gpus)
    finally:
        ray.shutdown()
