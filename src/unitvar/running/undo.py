"""Putting things back: every step runs, whatever becomes of the others.

A ``finally`` with several statements stops at the first that fails, and an interrupt (Ctrl-C) may come at any of them.
Here each step is registered before the change that it undoes, and may be run twice. All steps run, the last one first.
A step that fails is tried again after the others, and an interrupt waits until all are done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Concatenate, Generic, ParamSpec, TypeVar

__all__ = ["Undo", "undoing"]

Arguments = ParamSpec("Arguments")
Given = TypeVar("Given")

_PATIENCE = 5  # interrupts while things are put back, after which the user means it

# The innermost block of this thread or task. A context belongs to one of them: others are not concerned.
_innermost: ContextVar[Undo | None] = ContextVar("unitvar_undo", default=None)


class Undo:
    """Collect steps that put things back, and run all of them at the end of a ``with`` block.

    An interrupt can also strike between the end of a block and the first line of its ``__exit__``. The block around it
    then runs what is left, and the outermost block is entered twice: ``with undo, undo:``.

    Args:
        on_failure: whether the steps are run only if the block fails.
        alone: whether the block stands for itself. For blocks of the user's, which may end in any order.

    Example:
        >>> with Undo() as undo:
        ...     undo.add(lambda: print("first step"))
        ...     undo.add(lambda: print("second step"))
        second step
        first step
    """

    def __init__(self, *, on_failure: bool = False, alone: bool = False) -> None:
        self._steps: list[Callable[[], object]] = []
        self._failed: list[Callable[[], object]] = []  # once
        self._lost: list[Exception] = []  # the errors of those that failed twice
        self._on_failure, self._alone = on_failure, alone
        self._outer: Undo | None = None
        self._entered = 0
        self._error: BaseException | None = None

    def add(self, step: Callable[[], object]) -> None:
        """Register a step, which must do no harm if it is run twice or before the change that it undoes."""
        self._steps.append(step)

    def enter(self, context: AbstractContextManager[Given]) -> Given:
        """Enter another context manager, which is left in its turn."""
        assert not self._on_failure, "what is entered must be left, whether or not the block fails"
        entered = context.__enter__()
        self.add(lambda: context.__exit__(type(self._error) if self._error else None, self._error, None))
        return entered

    def __enter__(self) -> Undo:
        self._entered += 1
        if self._entered == 1 and not self._alone:
            self._outer = _innermost.get()
            if self._outer is not None:
                self._outer.add(self._rest)
            _innermost.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        held: BaseException | None = None
        for _attempt in range(_PATIENCE):
            try:
                self._error = error
                if error is None and self._on_failure:
                    self._steps.clear()
                self._lost += self._run()
                self._leave()
                break
            except BaseException as interrupt:  # whatever is no Exception: those belong to the steps
                held = interrupt
        else:
            assert held is not None
            raise held
        lost, self._lost = self._lost, []
        if lost and self._outer is not None and self._entered == 1:
            self._outer._lost += lost  # the outermost block, which is entered twice, tells it
        elif lost:
            text = "; ".join(f"{type(e).__name__}: {e}" for e in lost)
            message = f"{len(lost)} of the things that a run changed could not be restored ({text})."
            if error is None:
                raise RuntimeError(message) from lost[0]
            error.add_note(message)
        if held is not None:
            raise held

    def _run(self) -> list[Exception]:
        """Run all steps; return the errors of those that failed twice."""
        while self._steps:
            step = self._steps[-1]
            try:
                step()
            except Exception:
                self._failed.append(step)
            if self._steps and self._steps[-1] is step:  # the rest of a block inside takes itself off
                self._steps.pop()
        lost = []
        while self._failed:
            try:
                self._failed[0]()
            except Exception as error:
                lost.append(error)
            self._failed.pop(0)
        return lost

    def _leave(self) -> None:
        outer = self._outer
        if outer is not None:
            outer._steps[:] = [step for step in outer._steps if step != self._rest]
        if _innermost.get() is self:
            _innermost.set(outer)

    def _rest(self) -> None:
        """Run what an interrupt has left of a block, when the block around it ends."""
        outer = self._outer
        self.__exit__(None, None if outer is None else outer._error, None)


class _Undoing(Generic[Given]):
    """A context manager made of a function that registers steps."""

    def __init__(self, function: Callable[[Undo], Given], options: dict[str, bool]) -> None:
        self._function = function
        self._undo = Undo(**options)

    def __enter__(self) -> Given:
        try:
            self._undo.__enter__()
            return self._function(self._undo)
        except BaseException as error:
            self._undo.__exit__(type(error), error, None)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._undo.__exit__(kind, error, trace)


def undoing(
    **options: bool,
) -> Callable[[Callable[Concatenate[Undo, Arguments], Given]], Callable[Arguments, AbstractContextManager[Given]]]:
    """Make a context manager of a function whose first argument is an :class:`Undo`.

    Args:
        **options: of :class:`Undo`.

    Returns:
        A decorator. The context manager gives what the function returns.

    Example:
        >>> @undoing()
        ... def doubled(undo, numbers):
        ...     before = list(numbers)
        ...     undo.add(lambda: numbers.__setitem__(slice(None), before))
        ...     numbers += before
        >>> numbers = [1, 2]
        >>> with doubled(numbers):
        ...     print(numbers)
        [1, 2, 1, 2]
        >>> numbers
        [1, 2]
    """

    def decorate(
        function: Callable[Concatenate[Undo, Arguments], Given],
    ) -> Callable[Arguments, AbstractContextManager[Given]]:
        @functools.wraps(function)
        def context(*args: Arguments.args, **kwargs: Arguments.kwargs) -> AbstractContextManager[Given]:
            return _Undoing[Given](lambda undo: function(undo, *args, **kwargs), options)

        return context

    return decorate
