"""Faults at every op, hook, batch and line of the library: what fails leaves no trace."""

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode

import unitvar
from tests.attack.calls import BATCHES, CALLS, victim
from tests.attack.case import Case
from tests.attack.snapshot import differences, snapshot
from unitvar._torch import dispatch_modes

__all__ = ["KINDS", "Strike", "at_batches", "at_hooks", "at_lines", "at_ops", "attempt", "lines_of", "ops_of"]

SOURCE = str(Path(unitvar.__file__).parent)
# What puts things back, and what calls it: the rest only computes.
GUARDING = ("running/", "batchnorm/", "flow/run.py", "flow/history.py", "flow/meter.py", "graph/trace.py",
            "planning/__init__.py", "planning/fill.py", "planning/measured.py", "expectation/")  # fmt: skip


class InjectedError(Exception):
    """An error of nobody's."""


KINDS: dict[str, type[BaseException]] = {"error": InjectedError, "interrupt": KeyboardInterrupt}


@cache
def _allowed(name: str) -> frozenset[str]:
    """Name what a block of the user's changes without the library, so that the library is not blamed for it."""
    bare = CALLS[name].bare
    if bare is None:
        return frozenset()
    model = victim()
    before = snapshot(model)
    # Alive until the end: what is new would look unchanged in the memory of something old.
    kept = [*model.buffers(), *(parameter.detach() for parameter in model.parameters())]
    bare(model, BATCHES)
    changed = frozenset(differences(before, snapshot(model)))
    del kept
    return changed


def attempt(
    name: str,
    fault: Callable[[], AbstractContextManager["Strike"]],
    *,
    model: nn.Module | None = None,
    batches: Iterable[Tensor] = BATCHES,
) -> Case:
    """Run a call under a fault, and compare the model with what it was.

    A call that raises holds if it leaves no trace, one that succeeds if it leaves what it always does. An interrupt
    must come out as one. An error may not: recording goes on with real tensors when fake ones fail.
    """
    model = victim() if model is None else model
    before, raised = snapshot(model), None
    strike = Strike()
    try:
        with fault() as strike:
            CALLS[name].run(model, batches)
    except BaseException as error:
        raised = error
    after = snapshot(model)
    while dispatch_modes():  # so that one failure is not taken for many
        _pop_mode()
    changed = set(differences(before, after)) - _allowed(name)
    whole = CALLS[name].all_or_nothing and all(_result(name)[key] == after[key] for key in changed)
    # The one exception that the docs make: an error while weights are drawn says which of them are filled.
    told = any("weights are filled" in note for note in getattr(raised, "__notes__", ()))
    if raised is None:
        ended = strike.met is None or issubclass(strike.kind, Exception)
    else:
        ended = strike.met is not None and _came_of(raised, strike.met)
    note = f"{type(raised).__name__ if raised else ''}: {', '.join(sorted(changed))}"
    return Case(name, ended and (not changed or whole or told), note if ended else f"{note} (struck: {strike.met!r})")


class Strike(AbstractContextManager["Strike"]):
    """A fault: the error it raises, and whether it was met."""

    def __init__(self, kind: type[BaseException] = InjectedError) -> None:
        self.kind = kind
        self.met: BaseException | None = None

    def __exit__(self, *_: object) -> None:
        pass

    def strike(self, *_: object) -> None:
        """Raise; as a hook, too."""
        self.met = self.met or self.kind("a fault")
        raise self.met


def _came_of(error: BaseException | None, fault: BaseException) -> bool:
    """Return True if an error is a fault, or was raised because of it."""
    while error is not None and error is not fault:
        error = error.__cause__ or error.__context__
    return error is fault


@cache
def _result(name: str) -> dict[str, object]:
    """Read what a call that succeeds leaves: an interrupt may come when all is written."""
    model = victim()
    CALLS[name].run(model, BATCHES)
    return snapshot(model)


class _Dispatched(TorchDispatchMode):
    def __init__(self, on_op: Callable[[], None]) -> None:
        super().__init__()
        self.on_op = on_op

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.on_op()
        return func(*args, **(kwargs or {}))


class _Ops(Strike):
    """Count ops, whoever runs them, and raise before one of them."""

    def __init__(self, at: int, kind: type[BaseException] = InjectedError) -> None:
        super().__init__(kind)
        self.at, self.count = at, 0
        self.mode = _Dispatched(self._on_op)

    def __enter__(self) -> "_Ops":
        self.mode.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.mode.__exit__(None, None, None)

    def _on_op(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.strike()


@cache
def ops_of(name: str) -> int:
    """Count the ops of a call that succeeds, once what is computed a single time is there."""
    CALLS[name].run(victim(), BATCHES)
    with _Ops(0) as counted:
        CALLS[name].run(victim(), BATCHES)
    return counted.count


def at_ops(name: str, kind: str, ops: Iterable[int]) -> Iterator[Case]:
    """Raise at each of some ops: the model's, and those with which the library copies and puts back."""
    for at in ops:
        found = attempt(name, lambda at=at: _Ops(at, KINDS[kind]))
        yield Case(f"{name}, {kind} at op {at}", found.held, found.note)


def at_hooks(name: str, kind: str) -> Iterator[Case]:
    """Raise in a hook of each module: before its forward, after it, and in its backward."""
    for where in ("register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook"):
        for at in range(len(list(victim().modules()))):
            model, strike = victim(), Strike(KINDS[kind])
            getattr(list(model.modules())[at], where)(strike.strike)
            found = attempt(name, lambda strike=strike: strike, model=model)
            yield Case(f"{name}, {kind} by {where} of module {at}", found.held, found.note)
    for at in range(len(list(victim().parameters()))):
        model, strike = victim(), Strike(KINDS[kind])
        parameter = list(model.parameters())[at]
        if parameter.requires_grad:
            parameter.register_hook(strike.strike)
            found = attempt(name, lambda strike=strike: strike, model=model)
            yield Case(f"{name}, {kind} by a hook of parameter {at}", found.held, found.note)


class _Breaking(Strike):
    """Batches that break off, every time they are read."""

    def __init__(self, at: int, kind: type[BaseException]) -> None:
        super().__init__(kind)
        self.at = at

    def __iter__(self) -> Iterator[Tensor]:
        for i, batch in enumerate(BATCHES):
            if i == self.at:
                self.strike()
            yield batch


def at_batches(name: str, kind: str) -> Iterator[Case]:
    """Raise instead of each batch."""
    for at in range(len(BATCHES)):
        breaking = _Breaking(at, KINDS[kind])
        found = attempt(name, lambda breaking=breaking: breaking, batches=breaking)
        yield Case(f"{name}, {kind} at batch {at}", found.held, found.note)


Place = tuple[str, int]


class _Lines(Strike):
    """Count how often each line of the library is reached, and raise at one of them, once."""

    def __init__(self, at: Place | None = None, visit: int = 1, kind: type[BaseException] = InjectedError) -> None:
        super().__init__(kind)
        self.at, self.visit = at, visit
        self.seen: Counter[Place] = Counter()

    def __enter__(self) -> "_Lines":
        self.before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(SOURCE):
            return None
        name = file[len(SOURCE) + 1 :]
        inside: set[int] = set()

        def local(frame: FrameType, event: str, _: object) -> Any:
            if event == "line" and frame.f_lineno not in _try_lines(file):
                if frame.f_lineno in _with_lines(file):
                    # Reached again when the block ends, where no signal can strike before __exit__ is called.
                    inside.symmetric_difference_update({frame.f_lineno})
                    if frame.f_lineno not in inside:
                        return local
                place = name, frame.f_lineno
                self.seen[place] += 1
                if place == self.at and self.seen[place] == self.visit:
                    sys.settrace(None)
                    self.strike()
            return local

        return local


@cache
def _try_lines(file: str) -> frozenset[int]:
    """Find the lines that do nothing, which no signal can strike."""
    return frozenset(node.lineno for node in ast.walk(_tree(file)) if isinstance(node, ast.Try))


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))


@cache
def _with_lines(file: str) -> frozenset[int]:
    tree = _tree(file)
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.With)]
    return frozenset(
        line for block in blocks for line in (block.lineno, *(item.context_expr.lineno for item in block.items))
    )


@cache
def lines_of(name: str) -> Counter[Place]:
    """Count how often a call that succeeds reaches each line that guards something."""
    CALLS[name].run(victim(), BATCHES)
    with _Lines() as counted:
        CALLS[name].run(victim(), BATCHES)
    return Counter({place: n for place, n in counted.seen.items() if place[0].startswith(GUARDING)})


def at_lines(name: str, kind: str, places: Iterable[tuple[Place, int]]) -> Iterator[Case]:
    """Raise at each of some visits of lines of the library's own code."""
    for place, visit in places:
        found = attempt(name, lambda place=place, visit=visit: _Lines(place, visit, KINDS[kind]))
        yield Case(f"{name}, {kind} at {place[0]}:{place[1]}, visit {visit}", found.held, found.note)
