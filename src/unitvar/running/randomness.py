"""Random state: reading it, putting it back, and telling whether anything was drawn.

The generators of torch, Python and numpy belong to the process. What is put back here is put back for all threads: a
thread that draws from them meanwhile gets numbers that were drawn before.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unitvar.running.held import holdings
from unitvar.running.undo import Undo, undoing

__all__ = ["RandomState", "owned_generators", "random_state_kept", "same"]


@dataclass(frozen=True, eq=False)
class RandomState:
    """Hold every generator a model is likely to draw from: torch's, Python's, numpy's and those it owns."""

    torch_cpu: Tensor
    accelerators: tuple[Tensor, ...]
    python: object
    numpy: Any
    owned: tuple[tuple[Any, Any], ...]

    @staticmethod
    def read(owned: Iterable[Any] = ()) -> RandomState:
        """Read all states as they stand."""
        # numpy.random that nobody has imported is numpy.random that nobody draws from.
        numpy_random = sys.modules.get("numpy.random")
        return RandomState(
            torch.get_rng_state(),
            tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else (),  # type: ignore[no-untyped-call]
            random.getstate(),
            numpy_random.get_state() if numpy_random else None,
            tuple((generator, _state_of(generator)) for generator in owned),
        )

    def restore(self) -> None:
        """Put all states back."""
        for step in self.steps():
            step()

    def steps(self) -> Iterator[Callable[[], object]]:
        """Yield what puts each generator back, one after the other."""
        yield partial(torch.set_rng_state, self.torch_cpu)
        if self.accelerators:  # an accelerator first used in between keeps its state: there is none to go back to
            yield partial(torch.cuda.set_rng_state_all, self.accelerators)
        yield partial(random.setstate, self.python)  # type: ignore[arg-type]
        if self.numpy is not None:
            yield partial(sys.modules["numpy.random"].set_state, self.numpy)
        yield from (partial(_set_state_of, generator, state) for generator, state in self.owned)

    def same_as(self, other: RandomState) -> bool:
        """Return True if nothing was drawn between the two readings."""
        return (
            same(self.torch_cpu, other.torch_cpu)
            and same(self.accelerators, other.accelerators)
            and self.python == other.python
            and _plain(self.numpy) == _plain(other.numpy)
            and _plain([s for _, s in self.owned]) == _plain([s for _, s in other.owned])
        )


def _state_of(generator: Any) -> Any:
    if hasattr(generator, "bit_generator"):  # numpy's Generator
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state_of(generator: Any, state: Any) -> None:
    if hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        (generator.setstate if isinstance(generator, random.Random) else generator.set_state)(state)


def _plain(state: Any) -> object:
    """Turn a state into what == compares: arrays and tensors into bytes."""
    if isinstance(state, Tensor):
        return state.numpy().tobytes()
    if isinstance(state, Mapping):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, (tuple, list)):
        return [_plain(value) for value in state]
    return state.tobytes() if hasattr(state, "tobytes") else state


def owned_generators(model: nn.Module) -> list[Any]:
    """Find the generators that modules hold as attributes or in containers: torch's, Python's and numpy's."""
    found = sys.modules.get("numpy.random")
    kinds = (torch.Generator, random.Random, *((found.Generator, found.RandomState) if found else ()))
    every = (value for _, values in holdings(model) for value in values)
    found_here = {id(value): value for value in every if isinstance(value, kinds)}
    # SystemRandom has no state.
    return [generator for generator in found_here.values() if not isinstance(generator, random.SystemRandom)]


@undoing()
def random_state_kept(undo: Undo, model: nn.Module) -> RandomState:
    """Put every generator back where it was, however the block ends."""
    state = RandomState.read(owned_generators(model))
    for step in state.steps():
        undo.add(step)
    return state


def same(a: object, b: object) -> bool:
    """Compare two nested structures of tensors bit by bit; what holds no tensors counts as equal."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=a.is_floating_point())
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return len(a) == len(b) and all(k in b and same(v, b[k]) for k, v in a.items())
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return True
